"""Reading a partition log: on the loop when the bytes are in memory, on a thread when the disk must be waited for.

Bytes that this process neither wrote nor checked are checked (CRC-32C) on a thread when they are first read, and so is
everything that had to be waited for: damage on the disk is found there and never served (docs/decisions/0025).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import HEADER_SIZE, read_records
from chronik.storage.batch_walk import FRAME, LENGTH_OVERHEAD, SMALLEST_LENGTH, DamagedBatch, valid_prefix, walk
from chronik.storage.epochs import EpochCache
from chronik.storage.files import Buffer, File
from chronik.storage.log_state import LogState
from chronik.storage.segment import TIME_INDEX_SUFFIX, WOULD_WAIT, Segment

READ_ATTEMPTS = 4
"""A read on a thread is void when what it read was cut or replaced meanwhile; so often it is tried again."""

WALKED_BATCHES_MAX = 64
"""Headers walked in what was read before the index is asked."""

OFFSET_BYTES = 8

_FRAME_SIZE = FRAME.size
_EMPTY = b""

T = TypeVar("T")

Found = tuple[int, int, int]
"""Offset, timestamp, leader epoch."""

logger = structlog.get_logger()


class ThreadRead(NamedTuple):
    """What a thread found: checked batches, where they begin, and what follows them."""

    data: Buffer
    position: int
    next_offset: int
    exhausted: bool
    """The segment has nothing at or after the offset; the next one goes on."""


class _Replaced(Exception):
    """What a thread searched is no longer in the log."""


class LogReads(LogState):
    """The reading half of a partition log."""

    __slots__ = ()

    def read_nowait(
        self, offset: int, max_bytes: int, *, end_offset: int | None = None, at_least_one: bool = True
    ) -> Buffer | None:
        """Whole batches from the one that holds `offset`, up to `end_offset`; None when the disk must be waited for.

        At most `max_bytes`, except that one batch is returned whatever its size if `at_least_one`. Empty at the end.
        Raises KafkaError(OFFSET_OUT_OF_RANGE).
        """
        if end_offset is None or end_offset > self.end_offset:
            end_offset = self.end_offset
        if offset < self.log_start_offset or offset >= end_offset:
            if offset < self.log_start_offset or offset > self.end_offset:
                raise self.out_of_range(offset)
            return _EMPTY
        segments = self.segments
        segment = segments[-1]
        if offset < segment.base_offset:
            segment = segments[self.segment_index(offset)]
        files = self.services.files
        try:
            while True:
                start = segment.locate(offset, files)
                stop = segment.size if end_offset >= segment.next_offset else segment.locate(end_offset, files)
                if start == WOULD_WAIT or stop == WOULD_WAIT:
                    return None
                if start < stop:
                    break
                following = self.segment_index(segment.base_offset) + 1
                if following >= len(segments) or segments[following].base_offset >= end_offset:
                    return _EMPTY
                segment = segments[following]
            return self._read_located(segment, start, stop, max_bytes, end_offset, at_least_one)
        except KafkaError:
            return None  # a thread looks closer and says what is wrong
        except OSError as error:
            raise self._read_failed(segment, error) from error

    def _read_located(
        self, segment: Segment, start: int, stop: int, max_bytes: int, end_offset: int, at_least_one: bool
    ) -> Buffer | None:
        wanted = stop - start
        if wanted > max_bytes:
            wanted = min(wanted, max(max_bytes, HEADER_SIZE))
        if not segment.is_checked(start, start + wanted):
            return None
        slot = segment.log_slot
        file = slot.file
        if file is None:
            file = self.services.files.get(slot)
        else:
            slot.touched = True
        data = file.read_nowait(start, wanted)
        if data is None:
            return None
        if start + wanted == stop:
            if wanted > max_bytes and not at_least_one:
                return _EMPTY
            # Where this reader goes on, unless that is the start of the next segment.
            if segment.next_offset >= end_offset:
                segment.remember_cursor(end_offset, stop)
            return data
        length = int.from_bytes(data[8:12], "big", signed=True)
        first = LENGTH_OVERHEAD + length
        if length < SMALLEST_LENGTH:
            return None
        if first > wanted or wanted > max_bytes:
            if not at_least_one or start + first > stop:
                return _EMPTY if not at_least_one else None
            if not segment.is_checked(start, start + first):
                return None
            if first > wanted:
                data = file.read_nowait(start, first)
                if data is None:
                    return None
        return self._whole_batches(segment, data, start)

    def _whole_batches(self, segment: Segment, data: bytearray, start: int) -> Buffer | None:
        """Cut `data` after its last whole batch and remember where its reader goes on; None when it looks damaged."""
        size = len(data)
        at = following = 0
        next_offset = -1
        unpack = FRAME.unpack_from
        steps = 0
        while size - at >= _FRAME_SIZE:
            base, length, last_delta = unpack(data, at)
            if length < SMALLEST_LENGTH:
                return None
            following = at + LENGTH_OVERHEAD + length
            if following > size:
                if next_offset < 0:
                    next_offset = base
                break
            next_offset = base + last_delta + 1
            at = following
            steps += 1
            if steps == WALKED_BATCHES_MAX:
                # Many small batches: the index leads close to the end.
                jump = self._floor_position(segment, start + size - 1) - start
                if jump > at:
                    at = jump
                    next_offset = -1
        if next_offset >= 0:
            segment.remember_cursor(next_offset, start + at)
        return memoryview(data)[:at] if at != size else data

    def _floor_position(self, segment: Segment, position: int) -> int:
        floor = segment.index.floor_position_in_memory(position)
        if floor < 0:
            index = self.services.files.get(segment.index_slot)
            floor = segment.index.floor_position_in_file(position, index.read_nowait)
        return floor

    async def read(
        self, offset: int, max_bytes: int, *, end_offset: int | None = None, at_least_one: bool = True
    ) -> Buffer:
        """As `read_nowait`, but waits for the disk. Raises KafkaError(CORRUPT_MESSAGE) where the log is damaged."""
        for _ in range(READ_ATTEMPTS):
            data = self.read_nowait(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one)
            if data is not None:
                return data
            end = self.end_offset if end_offset is None else min(end_offset, self.end_offset)
            data = await self._read_on_thread(offset, max_bytes, end, at_least_one)
            if data is not None:
                return data
        raise self._changes_too_fast(f"read offset {offset}")

    def _changes_too_fast(self, what: str) -> KafkaError:
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.topic}-{self.partition} changed under every attempt to {what}; try again",
        )

    def _is_void(self, generation: int, segment: Segment) -> bool:
        """Whether what a thread found in a segment no longer counts: the log was cut, or retention or compaction took
        the segment, and with it the word of which transactions in it were aborted."""
        index = self.segment_index(segment.base_offset)
        return generation != self._generation or index < 0 or self.segments[index] is not segment

    async def _read_on_thread(self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> Buffer | None:
        index = max(self.segment_index(offset), 0)
        generation = self._generation
        while index < len(self.segments):
            segment = self.segments[index]
            if segment.base_offset >= end_offset:
                return _EMPTY
            job = partial(
                _read_checked,
                segment,
                self._open_log(segment),
                self._open_index(segment),
                (self._start_hint(segment, offset), self._start_hint(segment, end_offset)),
                (offset, end_offset, segment.size, segment.next_offset),
                max_bytes,
                at_least_one,
                self.epochs.copy() if self.epochs is not None else EpochCache(),
            )
            try:
                found = await self._on_thread(job)
            except (KafkaError, OSError) as error:
                if self._is_void(generation, segment):
                    return None
                if isinstance(error, OSError):
                    raise self._read_failed(segment, error) from error
                raise
            if self._is_void(generation, segment):
                return None
            if not found.exhausted:
                segment.mark_checked(found.position, found.position + len(found.data))
                if found.next_offset >= 0:
                    segment.remember_cursor(found.next_offset, found.position + len(found.data))
                return found.data
            if index >= len(self.segments) or self.segments[index] is not segment:
                return None
            index += 1
        return _EMPTY

    async def _on_thread(self, job: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self.services.readers.submit(job))

    def _start_hint(self, segment: Segment, offset: int) -> int:
        known = segment.cursors.get(offset)
        return known if known is not None else segment.index.floor_in_memory(max(offset - segment.base_offset, 0))

    def _open_log(self, segment: Segment) -> File:
        try:
            return self.services.files.get(segment.log_slot)
        except OSError as error:
            raise self._read_failed(segment, error) from error

    def _open_index(self, segment: Segment) -> File | None:
        try:
            return self.services.files.get(segment.index_slot) if segment.index.in_file else None
        except OSError:
            return None  # an index is a hint: without it the walk begins at the start of the segment

    def _read_failed(self, segment: Segment, error: OSError) -> KafkaError:
        logger.error("reading a log failed", path=segment.log_slot.path, error=str(error))
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"reading {self.topic}-{self.partition} failed: {error.strerror or error}; check the disk",
        )

    # --- searches ------------------------------------------------------------------------------------------------

    async def offset_for_timestamp(self, timestamp: int) -> Found | None:
        """(offset, its timestamp, its leader epoch) of the first record not older than `timestamp`, or None."""
        return await self._found(lambda: self._search_all(timestamp))

    async def max_timestamp_offset(self) -> Found | None:
        """(offset, timestamp, leader epoch) of the first record with the largest timestamp, or None."""
        return await self._found(self._search_largest)

    async def _found(self, search: Callable[[], Awaitable[Found | None]]) -> Found | None:
        for _ in range(READ_ATTEMPTS):
            try:
                return await search()
            except _Replaced:
                continue
        raise self._changes_too_fast("search it")

    async def _search_all(self, timestamp: int) -> Found | None:
        for segment in list(self.segments):
            if segment.max_timestamp < timestamp or segment.next_offset <= self.log_start_offset:
                continue
            found = await self._search_on_thread(segment, timestamp, segment.base_offset)
            if found is not None:
                return found
        return None

    async def _search_largest(self) -> Found | None:
        candidates = [segment for segment in self.segments if segment.size]
        if not candidates:
            return None
        segment = max(candidates, key=lambda candidate: candidate.max_timestamp)
        return await self._search_on_thread(segment, segment.max_timestamp, segment.max_timestamp_offset)

    async def _search_on_thread(self, segment: Segment, timestamp: int, from_offset: int) -> Found | None:
        """Search a segment, not before the batch that holds `from_offset`. Raises _Replaced."""
        generation = self._generation
        if self._is_void(generation, segment):
            raise _Replaced
        job = partial(
            _search_time,
            segment,
            self._open_log(segment),
            self._open_index(segment),
            self._open_time_index(segment),
            segment.size,
            timestamp,
            max(from_offset, segment.base_offset),
            self.log_start_offset,
        )
        try:
            found = await self._on_thread(job)
        except (DamagedBatch, KafkaError, OSError) as error:
            if self._is_void(generation, segment):
                raise _Replaced from error
            if isinstance(error, DamagedBatch):
                raise segment.damage(error.position, error.reason) from error
            if isinstance(error, OSError):
                raise self._read_failed(segment, error) from error
            raise
        if self._is_void(generation, segment) or (found is not None and found[0] < self.log_start_offset):
            raise _Replaced
        return found

    def _open_time_index(self, segment: Segment) -> File | None:
        if not segment.time_index.in_file:
            return None
        try:
            return self.services.fs.open(f"{segment.path}{TIME_INDEX_SUFFIX}")
        except OSError:
            return None

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records between two offsets."""
        found: list[tuple[int, int]] = []
        for segment in self.segments[max(self.segment_index(start), 0) :]:
            for entry in segment.aborted(self.services.fs):
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append((entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end:
                    return found
        return found

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch not above `epoch`, the offset where it ended), or (−1, −1) when it is unknown."""
        if self.epochs is None:
            return -1, -1
        return self.epochs.end_offset_for(epoch, self.end_offset)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch that a record of this offset was written in, or −1."""
        return -1 if self.epochs is None else self.epochs.at(offset)


def _read_checked(
    segment: Segment,
    log: File,
    index: File | None,
    hints: tuple[int, int],
    bounds: tuple[int, int, int, int],
    max_bytes: int,
    at_least_one: bool,
    epochs: EpochCache,
) -> ThreadRead:
    """On a thread: find, read and check the batches of one segment."""
    offset, end_offset, segment_size, next_offset = bounds
    start = segment.locate_waiting(offset, hints[0], log, index, segment_size)
    stop = segment_size
    if end_offset < next_offset:
        stop = segment.locate_waiting(end_offset, hints[1], log, index, segment_size)
    if start >= stop:
        return ThreadRead(_EMPTY, start, -1, True)
    wanted = min(stop - start, max(max_bytes, HEADER_SIZE))
    data = log.read_at(start, wanted + OFFSET_BYTES)
    if len(data) < wanted:
        raise segment.damage(start, f"{stop - start} bytes should be there, {len(data)} are")
    first = LENGTH_OVERHEAD + int.from_bytes(data[8:12], "big", signed=True)
    if first > max_bytes and not at_least_one:
        return ThreadRead(_EMPTY, start, -1, False)
    if first > wanted:
        if start + first > stop:
            raise segment.damage(start, f"a batch claims {first} bytes, {stop - start} are left")
        wanted = first
        data = log.read_at(start, wanted + OFFSET_BYTES)
    if start + wanted >= segment_size:
        data = data[:wanted]  # what another append may have added meanwhile is not the next batch of this read
    valid, after, problem = valid_prefix(data, wanted, offset, next_offset, epochs)
    if not valid:
        damage = segment.damage(start, problem or "the batch is cut short")
        logger.error(
            "a damaged batch was found and is not served", path=segment.log_slot.path, position=start, reason=problem
        )
        raise damage
    return ThreadRead(memoryview(data)[:valid], start, after, False)


def _search_time(
    segment: Segment,
    log: File,
    index: File | None,
    time_index: File | None,
    size: int,
    timestamp: int,
    from_offset: int,
    log_start_offset: int,
) -> Found | None:
    """On a thread: the first record of a segment that is not older than `timestamp`."""
    if time_index is not None:
        from_offset = max(from_offset, segment.base_offset + segment.time_index.floor(timestamp, time_index.read_at))
    start = segment.locate_waiting(from_offset, -1, log, index, size)
    for batch in walk(log, start, size, check_crc=False, floor=segment.base_offset):
        if batch.max_timestamp < timestamp or batch.last_offset < log_start_offset:
            continue
        for record in read_records(log.read_at(batch.position, batch.size)):
            if record.timestamp >= timestamp and record.offset >= log_start_offset:
                return record.offset, record.timestamp, batch.leader_epoch
    return None
