"""A partition log in memory that keeps real record batches: what the handlers see of storage, without files.

It checks sequences as a real log does, and can hold syncs back (`hold_syncs`), pretend to be cold (`cold`), fail, and
be told of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchInfo, parse_batches, read_records, stamp
from chronik.storage.log_config import LogConfig
from chronik.storage.partition_log import ProducerInfo
from chronik.storage.producers import ProducerStates


class AppendInfo(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = 0
    duplicate: bool = False


class MemoryLog:
    """One partition."""

    def __init__(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.on_synced: Callable[[MemoryLog], None] | None = None
        self.batches: list[tuple[BatchInfo, bytes]] = []
        self.log_start_offset = 0
        self.end_offset = 0
        self.synced_offset = 0
        self.high_watermark = 0
        self.stable_limit: int | None = None
        self.aborted: list[tuple[int, int]] = []
        self.hold_syncs = False
        self.cold = False
        self.append_error: Exception | None = None
        self.failure: str | None = None
        self.reads = 0
        self._producers = ProducerStates()

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.stable_limit is None else min(self.stable_limit, self.high_watermark)

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for _, data in self.batches)

    @property
    def latest_epoch(self) -> int:
        return self.batches[-1][0].leader_epoch if self.batches else -1

    def append(
        self,
        data: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        batches: list[BatchInfo] | None = None,
        internal: bool = False,
        verification: int | None = None,
    ) -> AppendInfo:
        if self.append_error is not None:
            raise self.append_error
        base = self.end_offset
        for info in parse_batches(data) if batches is None else batches:
            if info.size > self.config.max_message_bytes:
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {info.size} bytes is too large")
            if info.has_producer_id:
                duplicate = self._producers.check(info)
                if duplicate is not None:
                    return AppendInfo(duplicate.base_offset, duplicate.last_offset, duplicate=True)
            stamp(data, info.position, self.end_offset, leader_epoch)
            stored = bytes(data[info.position : info.end])
            kept = parse_batches(stored)[0]
            self.batches.append((kept, stored))
            if kept.has_producer_id:
                self._producers.apply(kept, now_ms)
            self.end_offset = kept.next_offset
        if not self.hold_syncs:
            self.synced_offset = self.end_offset
        return AppendInfo(base, self.end_offset - 1, -1, self.log_start_offset)

    def producer(self, producer_id: int) -> ProducerInfo | None:
        entry = self._producers.entries.get(producer_id)
        return ProducerInfo(producer_id, entry.epoch, entry.last_sequence, -1, -1, -1) if entry is not None else None

    def sync(self) -> None:
        self.synced_offset = self.end_offset
        if self.on_synced is not None:
            self.on_synced(self)

    def set_high_watermark(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))

    def read_nowait(self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool = True) -> bytes | None:
        self.reads += 1
        return None if self.cold else self._read(offset, max_bytes, end_offset, at_least_one)

    async def read(self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool = True) -> bytes:
        return self._read(offset, max_bytes, end_offset, at_least_one)

    def _read(self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> bytes:
        found: list[bytes] = []
        size = 0
        for info, data in self.batches:
            if info.last_offset < offset or info.base_offset >= end_offset:
                continue
            if size + len(data) > max_bytes and (found or not at_least_one):
                break
            found.append(data)
            size += len(data)
        return b"".join(found)

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        for info, data in self.batches:
            for record in read_records(data):
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp, info.leader_epoch
        return None

    async def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        best: tuple[int, int, int] | None = None
        for info, data in self.batches:
            for record in read_records(data):
                if best is None or record.timestamp > best[1]:
                    best = (record.offset, record.timestamp, info.leader_epoch)
        return best

    def epoch_at(self, offset: int) -> int:
        return next((info.leader_epoch for info, _ in self.batches if info.last_offset >= offset), -1)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        later = next((info.base_offset for info, _ in self.batches if info.leader_epoch > epoch), self.end_offset)
        return (epoch, later) if any(info.leader_epoch <= epoch for info, _ in self.batches) else (-1, -1)

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        return self.aborted

    def delete_records_to(self, offset: int) -> None:
        self.log_start_offset = offset
        self.batches = [(info, data) for info, data in self.batches if info.last_offset >= offset]

    def records(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Offset, key and value of everything that was appended."""
        return [(r.offset, r.key, r.value) for _, data in self.batches for r in read_records(data)]


class MemoryLogs:
    """A node's logs."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, int], MemoryLog] = {}

    def get(self, topic: str, partition: int) -> MemoryLog | None:
        return self._logs.get((topic, partition))

    def create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> MemoryLog:
        log = self._logs[topic, partition] = MemoryLog(topic, partition, topic_id, config)
        return log

    def delete(self, topic: str, partition: int) -> None:
        self._logs.pop((topic, partition), None)

    def set_aside(self, topic: str, partition: int) -> None:
        self._logs.pop((topic, partition), None)

    def known(self) -> Iterator[tuple[str, int, bytes]]:
        for (topic, partition), log in self._logs.items():
            yield topic, partition, log.topic_id
