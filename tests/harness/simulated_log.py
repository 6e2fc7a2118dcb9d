"""A partition log in memory, with a disk that loses what was not synced: what replication sees of storage.

It keeps the interface and the promises of `chronik.storage`'s logs, for tests of replication that run thousands of
histories. Batches have the first 16 bytes of Kafka's (base offset, length, leader epoch) and then one value of 8 bytes,
so a batch is a record. A `Disk` outlives the log, as a real one does; `crash` cuts it to what was synced, and a bit
more if the dice say so. With `SlowReads` a read now and then waits for the disk, as a real one does on its thread.
"""

from __future__ import annotations

import asyncio
import random
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.storage.log_config import LogConfig

HEADER = struct.Struct(">qii")
BATCH_BYTES = HEADER.size + 8
READ_ATTEMPTS = 4  # as the real log's: a read is void when the log was truncated meanwhile


class AppendInfo(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = 0
    duplicate: bool = False


def batch(value: int, *more: int) -> memoryview:
    """What a producer sends: a batch per value, without offsets."""
    return memoryview(b"".join(HEADER.pack(0, 12, -1) + each.to_bytes(8, "big") for each in (value, *more))).cast("B")


def writable(*values: int) -> memoryview:
    return memoryview(bytearray(batch(*values)))


class Entry(NamedTuple):
    offset: int
    epoch: int
    value: int


def entries_of(data: bytes | memoryview) -> list[Entry]:
    """The records in what was read."""
    found = []
    for position in range(0, len(data), BATCH_BYTES):
        offset, _, epoch = HEADER.unpack_from(data, position)
        found.append(Entry(offset, epoch, int.from_bytes(data[position + HEADER.size : position + BATCH_BYTES], "big")))
    return found


class Disk:
    """What is left of a log when its process is gone."""

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        self.entries: list[Entry] = []
        self.start = 0
        self.synced = 0
        self.high_watermark = 0

    def crash(self, chance: random.Random | None) -> None:
        """A power cut: what was not synced is lost, or its beginning is not. Without chance, all of it is kept: a
        process died, the machine did not."""
        if chance is None:
            return
        keep = chance.randint(self.synced, max(self.end, self.synced)) if chance.random() < 0.5 else self.synced
        while self.entries and self.entries[-1].offset >= keep:
            self.entries.pop()

    @property
    def end(self) -> int:
        return self.entries[-1].offset + 1 if self.entries else self.start


class SlowReads:
    """Lets a share of reads wait for the disk. The dice are for nothing else: who has none is not shaken by them."""

    def __init__(self, rng: random.Random, share: float, seconds: float) -> None:
        self._rng = rng
        self._share = share
        self._seconds = seconds
        self.stopped = False
        self.waited = 0

    def wanted(self) -> bool:
        """Whether what is read now is not in memory."""
        return not self.stopped and self._rng.random() < self._share

    async def wait(self) -> None:
        self.waited += 1
        await asyncio.sleep(self._seconds * self._rng.uniform(0.1, 1.9))


class SimulatedLog:
    """A log on such a disk. Syncs happen when the test says so, or by themselves with `sync_later`."""

    def __init__(
        self,
        topic: str,
        partition: int,
        disk: Disk,
        config: LogConfig,
        sync_later: Callable[[Callable[[], None]], None] | None = None,
        slow_reads: SlowReads | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = disk.topic_id
        self.config = config
        self.disk = disk
        self.on_synced: Callable[[SimulatedLog], None] | None = None
        self.full = False
        self.failure: str | None = None
        self.closed = False
        self._sync_later = sync_later
        self._slow_reads = slow_reads
        self._syncing = False
        self._truncations = 0
        self.high_watermark = min(disk.high_watermark, disk.end)
        disk.synced = disk.end  # recovery syncs what it found

    @property
    def log_start_offset(self) -> int:
        return self.disk.start

    @property
    def end_offset(self) -> int:
        return self.disk.end

    @property
    def synced_offset(self) -> int:
        return self.disk.synced if self.config.synced else self.disk.end

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    @property
    def latest_epoch(self) -> int:
        return self.disk.entries[-1].epoch if self.disk.entries else -1

    def append(self, data: memoryview, *, leader_epoch: int, now_ms: int, **ignored: object) -> AppendInfo:
        self._check()
        base = self.end_offset
        for entry in entries_of(data):
            self.disk.entries.append(Entry(self.end_offset, leader_epoch, entry.value))
        self._appended()
        return AppendInfo(base, self.end_offset - 1, now_ms, self.log_start_offset)

    def append_replica(self, data: memoryview) -> None:
        self._check()
        for entry in entries_of(data):
            if entry.offset < self.end_offset:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"offset {entry.offset} is here already")
            self.disk.entries.append(entry)
        self._appended()

    def _check(self) -> None:
        if self.failure is not None or self.full:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure or "the disk is full")

    def _appended(self) -> None:
        if self.config.synced:
            self._start_sync()
        else:
            self.disk.synced = self.end_offset

    def _start_sync(self) -> None:
        if self._sync_later is None or self._syncing or self.disk.synced >= self.end_offset:
            return
        self._syncing = True
        end, truncations = self.end_offset, self._truncations

        def finish() -> None:
            self._syncing = False
            if self.closed:
                return
            if truncations == self._truncations:
                self.sync(end)
            self._start_sync()

        self._sync_later(finish)

    def sync(self, end: int | None = None) -> None:
        """The disk has everything up to here."""
        self.disk.synced = max(self.disk.synced, self.end_offset if end is None else end)
        if self.on_synced is not None:
            self.on_synced(self)

    def set_high_watermark(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))

    def checkpoint(self) -> None:
        self.disk.high_watermark = self.high_watermark

    def _index(self, offset: int) -> int:
        return bisect_right(self.disk.entries, (offset, -1, -1))

    def read_nowait(
        self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool = True
    ) -> bytes | memoryview | None:
        if self._slow_reads is not None and self._slow_reads.wanted():
            return None
        return self._read(offset, max_bytes, end_offset, at_least_one)

    def _read(self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> bytes:
        if not self.log_start_offset <= offset <= self.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is out of range")
        count = max_bytes // BATCH_BYTES or (1 if at_least_one else 0)
        first = self._index(offset)
        found = [entry for entry in self.disk.entries[first : first + count] if entry.offset < end_offset]
        return b"".join(HEADER.pack(entry.offset, 12, entry.epoch) + entry.value.to_bytes(8, "big") for entry in found)

    async def read(
        self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool = True
    ) -> bytes | memoryview:
        if self._slow_reads is None:
            return self._read(offset, max_bytes, end_offset, at_least_one)
        for _ in range(READ_ATTEMPTS):
            truncations = self._truncations
            found = self._read(offset, max_bytes, end_offset, at_least_one)
            await self._slow_reads.wait()
            if truncations == self._truncations:
                return found
            again = self.read_nowait(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one)
            if again is not None:
                return again
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log changed under every attempt to read {offset}")

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        entries = self.disk.entries
        if epoch < 0 or not entries or epoch > self.latest_epoch:
            return -1, -1
        if epoch == self.latest_epoch:
            return epoch, self.end_offset
        found = -1
        for entry in entries:
            if entry.epoch > epoch:
                return (found, entry.offset) if found != -1 else (epoch, entry.offset)
            found = entry.epoch
        return found, self.end_offset

    def truncate_to(self, offset: int) -> None:
        entries = self.disk.entries
        while entries and entries[-1].offset >= offset:
            entries.pop()
        self._truncations += 1
        self.disk.synced = min(self.disk.synced, self.end_offset)
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self.disk.high_watermark = min(self.disk.high_watermark, self.end_offset)

    def reset_to(self, offset: int) -> None:
        self._truncations += 1
        self.disk.entries.clear()
        self.disk.start = self.disk.synced = self.disk.high_watermark = self.high_watermark = offset

    def delete_records_to(self, offset: int) -> None:
        self.disk.start = max(self.disk.start, offset)
        del self.disk.entries[: self._index(offset)]

    def values(self) -> list[int]:
        return [entry.value for entry in self.disk.entries]


class SimulatedLogs:
    """A node's logs, over disks that outlive it."""

    def __init__(
        self,
        disks: dict[tuple[str, int], Disk] | None = None,
        sync_later: Callable[[Callable[[], None]], None] | None = None,
        slow_reads: SlowReads | None = None,
    ) -> None:
        self.disks = disks if disks is not None else {}
        self.aside: list[tuple[str, int, bytes]] = []
        self.deleted: list[tuple[str, int, bytes]] = []
        self.on_failure: Callable[[SimulatedLog], None] | None = None
        self._sync_later = sync_later
        self._slow_reads = slow_reads
        self._logs: dict[tuple[str, int], SimulatedLog] = {}
        for (topic, partition), disk in self.disks.items():
            self._logs[topic, partition] = SimulatedLog(topic, partition, disk, LogConfig(), sync_later, slow_reads)

    def get(self, topic: str, partition: int) -> SimulatedLog | None:
        return self._logs.get((topic, partition))

    def create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> SimulatedLog:
        assert (topic, partition) not in self._logs, f"{topic}-{partition} exists already"
        disk = self.disks[topic, partition] = Disk(topic_id)
        log = SimulatedLog(topic, partition, disk, config, self._sync_later, self._slow_reads)
        self._logs[topic, partition] = log
        return log

    def delete(self, topic: str, partition: int) -> None:
        disk = self._remove(topic, partition)
        if disk is not None:
            self.deleted.append((topic, partition, disk.topic_id))

    def set_aside(self, topic: str, partition: int) -> None:
        disk = self._remove(topic, partition)
        if disk is not None:
            self.aside.append((topic, partition, disk.topic_id))

    def _remove(self, topic: str, partition: int) -> Disk | None:
        log = self._logs.pop((topic, partition), None)
        if log is not None:
            log.closed = True
        return self.disks.pop((topic, partition), None)

    def fail(self, topic: str, partition: int) -> None:
        """The disk stops a log."""
        log = self._logs[topic, partition]
        log.failure = "a sync failed"
        if self.on_failure is not None:
            self.on_failure(log)

    def known(self) -> Iterator[tuple[str, int, bytes]]:
        for (topic, partition), log in self._logs.items():
            yield topic, partition, log.topic_id

    def close(self) -> None:
        for log in self._logs.values():
            log.closed = True
