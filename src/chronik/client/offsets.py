"""Offsets of partitions: the earliest, the latest, and the first at or after a time."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from chronik.client.cluster import Cluster
from chronik.client.errors import error_for_code
from chronik.client.metadata import Broker, TopicPartition
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

_CLIENT = -1


class Isolation(enum.IntEnum):
    """Which records a reader sees: all, or only those of transactions that were committed."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class OffsetAt(msgspec.Struct, frozen=True):
    """An answer: `offset` is −1 when no record is at or after the time that was asked for."""

    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, OffsetAt]:
    """For each partition the offset of a timestamp in ms, or of EARLIEST, LATEST or MAX_TIMESTAMP.

    With READ_COMMITTED, LATEST is the last stable offset. Follows partitions that change their leader.
    """

    def ask(broker: Broker, places: list[TopicPartition]) -> dict[TopicPartition, OffsetAt | KafkaError]:
        request = ListOffsetsRequest(
            replica_id=_CLIENT,
            isolation_level=isolation,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=partition, timestamp=wanted[TopicPartition(topic, partition)]
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in by_topic(places).items()
            ],
        )
        answer = cluster.call(broker, request, ListOffsetsResponse)
        found: dict[TopicPartition, OffsetAt | KafkaError] = {}
        for topic in answer.topics:
            for p in topic.partitions:
                place = TopicPartition(topic.name, p.partition_index)
                if p.error_code:
                    found[place] = error_for_code(p.error_code, f"listing offsets of {place}")
                else:
                    offset = p.offset if p.offset >= 0 or not p.old_style_offsets else p.old_style_offsets[0]
                    found[place] = OffsetAt(offset, p.timestamp, p.leader_epoch)
        return found

    return cluster.on_leaders("listing offsets", wanted, ask)


def earliest_offsets(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    return {place: at.offset for place, at in list_offsets(cluster, dict.fromkeys(places, EARLIEST)).items()}


def end_offsets(
    cluster: Cluster, places: Iterable[TopicPartition], *, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """The offsets after the last record that a reader can see."""
    found = list_offsets(cluster, dict.fromkeys(places, LATEST), isolation=isolation)
    return {place: at.offset for place, at in found.items()}


def offsets_for_time(
    cluster: Cluster, places: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """Where to start reading to see everything from a time on: the end, where nothing is that new."""
    places = list(places)
    found = list_offsets(cluster, dict.fromkeys(places, timestamp_ms))
    starts = {place: at.offset for place, at in found.items() if at.offset >= 0}
    starts.update(end_offsets(cluster, [place for place in places if place not in starts]))
    return starts


def partitions_of(cluster: Cluster, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in cluster.topic(topic).partitions]


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions grouped under their topics, as most requests carry them."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in places:
        grouped.setdefault(topic, []).append(partition)
    return grouped
