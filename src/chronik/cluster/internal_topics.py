"""The internal topics: what they are made of, and how they grow to the wished number of replicas as nodes join.

Creating one is up to whoever needs it first; keeping it replicated is the controller's work.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from chronik.metadata.commands import Reassignment
from chronik.metadata.configs import ConfigView
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import INTERNAL_TOPICS, BrokerInfo

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

_NAMES = {
    OFFSETS_TOPIC: (
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes",
    ),
    TRANSACTIONS_TOPIC: (
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        "transaction.state.log.segment.bytes",
    ),
}


class InternalTopic(msgspec.Struct, frozen=True):
    """How an internal topic is to be created now. `replication_factor` is what the nodes there are allow."""

    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]


def internal_topic(name: str, image: MetadataImage, view: ConfigView) -> InternalTopic:
    """The internal topic of this name, as the configuration wants it and the cluster can have it."""
    partitions, _, segment_bytes = _NAMES[name]
    online = len(image.online_brokers())
    return InternalTopic(
        name,
        view.broker_int(partitions),
        max(1, min(wished_factor(name, view), online)),
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(view.broker_int(segment_bytes)),
        },
    )


def wished_factor(name: str, view: ConfigView) -> int:
    return view.broker_int(_NAMES[name][1])


def growth(image: MetadataImage, view: ConfigView) -> list[Reassignment]:
    """Reassignments that give the partitions of internal topics the replicas they lack, on brokers that are online."""
    online = image.online_brokers()
    found: list[Reassignment] = []
    for name in sorted(INTERNAL_TOPICS):
        topic = image.topics.get(name)
        if topic is None:
            continue
        wanted = min(wished_factor(name, view), len(online))
        load = Counter(replica for partition in topic.partitions for replica in partition.replicas)
        for number, partition in enumerate(topic.partitions):
            if partition.reassigning or len(partition.replicas) >= wanted:
                continue
            target = _grown(partition.replicas, online, wanted, load, image)
            found.append(Reassignment(topic.topic_id, number, target, partition.partition_epoch))
    return found


def _grown(
    replicas: tuple[int, ...], online: list[BrokerInfo], wanted: int, load: Counter[int], image: MetadataImage
) -> tuple[int, ...]:
    """Adds brokers in racks, then on hosts, that the partition does not use yet, the least loaded first."""
    members = [image.brokers[replica] for replica in replicas if replica in image.brokers]
    target = list(replicas)
    while len(target) < wanted:
        racks = {broker.rack for broker in members if broker.rack is not None}
        hosts = {broker.host_name for broker in members}
        free = [broker for broker in online if broker.node_id not in target]
        if not free:
            break
        best = min(free, key=lambda b: (b.rack in racks, b.host_name in hosts, load[b.node_id], b.node_id))
        target.append(best.node_id)
        members.append(best)
        load[best.node_id] += 1
    return tuple(target)
