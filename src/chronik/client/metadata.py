"""What a client knows of a cluster: brokers, topics, partitions and leaders, as the last Metadata answers said."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from chronik.client.errors import error_for_code
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from chronik.protocol.wire import ZERO_UUID

NO_NODE = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Broker(msgspec.Struct, frozen=True):
    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PartitionMetadata(msgspec.Struct, frozen=True):
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    error_code: int = 0


class TopicMetadata(msgspec.Struct, frozen=True):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, PartitionMetadata]


class Metadata:
    """The cached view; `update` folds an answer into it."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = NO_NODE
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.errors: dict[str, KafkaError] = {}

    def update(self, answer: MetadataResponse) -> None:
        """Take over brokers and controller from an answer, and the topics that it speaks of."""
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        self.brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
        for topic in answer.topics:
            name = topic.name or ""
            if topic.error_code and not (topic.partitions and topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE):
                self.topics.pop(name, None)
                self.errors[name] = error_for_code(topic.error_code, f"topic {name}", _advice(topic.error_code, name))
            else:
                self.errors.pop(name, None)
                self.topics[name] = _topic(topic)

    def topic(self, name: str) -> TopicMetadata:
        """What is known of a topic; KafkaError with what the cluster said when it is not there."""
        found = self.topics.get(name)
        if found is None:
            raise self.errors.get(name) or error_for_code(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name}",
                _advice(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name),
            )
        return found

    def leader(self, where: TopicPartition) -> Broker:
        """The broker that leads a partition; a retriable KafkaError when there is none at the moment."""
        partition = self.topic(where.topic).partitions.get(where.partition)
        if partition is None:
            count = len(self.topics[where.topic].partitions)
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {where.topic} has no partition {where.partition}; it has {count}, counted from 0",
            )
        broker = self.brokers.get(partition.leader)
        if broker is None:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"partition {where} has no leader at the moment (replicas on brokers {list(partition.replicas)}); "
                "bring one of them up",
            )
        return broker


def _topic(topic: MetadataResponseTopic) -> TopicMetadata:
    return TopicMetadata(
        topic.name or "",
        topic.topic_id or ZERO_UUID,
        topic.is_internal,
        {
            p.partition_index: PartitionMetadata(
                p.partition_index,
                p.leader_id,
                p.leader_epoch,
                tuple(p.replica_nodes),
                tuple(p.isr_nodes),
                tuple(p.offline_replicas),
                p.error_code,
            )
            for p in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        },
    )


def _advice(code: int, name: str) -> str | None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"it does not exist; check the name, or create it with `chronik topic create {name}`"
    return None
