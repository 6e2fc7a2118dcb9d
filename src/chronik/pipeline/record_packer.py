"""Rows to finished record batches that nobody has sent yet: what a task of an exactly-once stream hands to the driver.

The batches are transactional and belong to no producer; whoever sends them gives them one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from chronik.client import Cluster, TopicPartition
from chronik.client.partitioner import StickyPartitioner, partition_for_key
from chronik.pipeline.source_options import OptionError
from chronik.protocol.records import Compression, Record, build_batch

BATCH_BYTES = 256 * 1024
"""A batch of this size, before compression, is closed."""

MAX_TASK_BYTES = 256 * 1024 * 1024
"""What one task may hand to the driver, which holds those of all tasks of a micro-batch at once."""

_RECORD_OVERHEAD_BYTES = 24
_HEADER_OVERHEAD_BYTES = 10


@dataclass(frozen=True)
class PackedBatch:
    """A record batch of one partition, complete but for its producer, and how many records it has."""

    place: TopicPartition
    records: int
    payload: bytes


class RecordPacker:
    """Gathers the records of one task into batches per partition, in the order in which they came."""

    def __init__(self, cluster: Cluster, compression: Compression) -> None:
        self.cluster = cluster
        self.compression = compression
        self._open: dict[TopicPartition, list[Record]] = {}
        self._sizes: dict[TopicPartition, int] = {}
        self._packed: list[PackedBatch] = []
        self._packed_bytes = 0
        self._sticky = StickyPartitioner()

    def add(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Add a record. Without a partition the key decides, as with Java's producer; without a key, batches rotate."""
        place = TopicPartition(topic, self._choose(topic, key) if partition is None else partition)
        records = self._open.setdefault(place, [])
        records.append(Record(len(records), int(time.time() * 1000), key, value, headers))
        size = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size += sum(len(name) * 2 + len(content or b"") + _HEADER_OVERHEAD_BYTES for name, content in headers)
        self._sizes[place] = self._sizes.get(place, 0) + size
        if self._sizes[place] >= BATCH_BYTES:
            self._close(place)

    def finish(self) -> list[PackedBatch]:
        """Close what is open; all batches, those of a partition in order."""
        for place in list(self._open):
            self._close(place)
        return self._packed

    def _choose(self, topic: str, key: bytes | None) -> int:
        count = self._partition_count(topic)
        return self._sticky.partition(topic, count) if key is None else partition_for_key(key, count)

    def _partition_count(self, topic: str) -> int:
        if self.cluster.knows(topic):
            return len(self.cluster.metadata.topics[topic].partitions)
        return len(self.cluster.topic(topic, auto_create=True).partitions)

    def _close(self, place: TopicPartition) -> None:
        records = self._open.pop(place)
        del self._sizes[place]
        payload = bytes(build_batch(records, compression=self.compression, transactional=True))
        self._packed.append(PackedBatch(place, len(records), payload))
        self._packed_bytes += len(payload)
        if self._packed_bytes > MAX_TASK_BYTES:
            raise OptionError(
                f"a task of this micro-batch has more than {MAX_TASK_BYTES // 2**20} MiB of records to write; with "
                "delivery=exactly_once they all pass through the driver. Have a micro-batch read less "
                "(maxOffsetsPerTrigger on its source), or use delivery=at_least_once"
            )
        known = self.cluster.metadata.topics.get(place.topic)
        self._sticky.batch_sent(*place, len(known.partitions) if known else 1)
