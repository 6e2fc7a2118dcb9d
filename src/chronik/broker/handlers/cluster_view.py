"""The cluster as clients are told it: which brokers they can reach, who the controller is, and what they may do.

Shared by Metadata, DescribeCluster and DescribeTopicPartitions, so that these never contradict each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from chronik.broker.context import Services
    from chronik.metadata.image import MetadataImage
    from chronik.metadata.model import PartitionInfo

CLUSTER_OPERATIONS = 8096
"""Every operation on a cluster, as a bit set of Kafka's codes: nothing is forbidden where nothing is configured."""

TOPIC_OPERATIONS = 3576
"""The same for a topic."""


class KnownBroker(NamedTuple):
    """A broker with the address that clients are to use."""

    node_id: int
    host: str
    port: int
    rack: str | None


def known_brokers(services: Services) -> list[KnownBroker]:
    """The brokers that are alive, in order of their ids; this node itself while it knows of nobody."""
    brokers = services.store.image.brokers
    alive = [
        KnownBroker(node_id, brokers[node_id].host, brokers[node_id].port, brokers[node_id].rack)
        for node_id in sorted(brokers)
        if brokers[node_id].alive
    ]
    if alive:
        return alive
    config = services.config
    return [KnownBroker(config.node_id, config.advertise.host, config.advertise.port, config.rack)]


def controller_id(services: Services) -> int:
    """The leader of the Raft group, where clients can reach it; -1 when that is not known."""
    leader = services.controller_id()
    if any(broker.node_id == leader for broker in known_brokers(services)):
        return leader
    return -1


def offline_replicas(image: MetadataImage, partition: PartitionInfo) -> list[int]:
    """The replicas whose brokers are not alive."""
    return [replica for replica in partition.replicas if not image.is_alive(replica)]
