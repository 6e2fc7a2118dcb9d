"""Writing to one partition of an internal topic: what is wanted within one turn of the loop shares one batch.

Rules:
1. Records that belong together are in one batch, so that they are in the log together or not at all.
2. `apply` is called when the records are committed, in the order of the log, and `reply` after it; an error of the
   replication that comes with committed records (too few replicas in sync by then) still applies them, because they
   are in the log and the next coordinator will read them.
3. After `close`, nothing is applied: another node may have written something else. Everybody who waits is told.
4. Whoever waits longer than the deadline is told so; the records are applied when, and if, they are committed.
5. `dropped` is called when it is certain that the records will not be applied here: they were refused, or are lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.replication.partition import ALL_IN_SYNC

if TYPE_CHECKING:
    from chronik.replication.partition import Partition

BATCH_BYTES_MAX = 256 * 1024
"""A batch is closed when it is this large; one write alone may be larger, up to what the topic takes."""
WAITING_WRITES_MAX = 100_000
"""Writes that wait for replication, per partition; more are refused."""
WRITE_TIMEOUT_MS = 5000

RawRecord = tuple[bytes, bytes | None]
"""Key and value as they are in the log; without a value it is a tombstone."""
Apply = Callable[[int], None]
"""Called with the log offset of the first of the records."""
Reply = Callable[[ErrorCode], None]

_CODES: dict[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE})


class _Write:
    __slots__ = ("apply", "dropped", "first", "records", "reply")

    def __init__(
        self,
        records: Sequence[RawRecord],
        apply: Apply | None,
        reply: Reply | None,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        self.records = records
        self.apply = apply
        self.reply = reply
        self.dropped = dropped
        self.first = 0

    def answer(self, error: ErrorCode) -> None:
        reply, self.reply = self.reply, None
        if reply is not None:
            reply(error)

    def drop(self, error: ErrorCode) -> None:
        if self.dropped is not None:
            self.dropped()
        self.answer(error)


class _Flight:
    """One batch on its way."""

    __slots__ = ("base_offset", "deadline_ms", "future", "writes")

    def __init__(self, writes: list[_Write], base_offset: int, deadline_ms: int) -> None:
        self.writes = writes
        self.base_offset = base_offset
        self.deadline_ms = deadline_ms
        self.future: asyncio.Future[None] | None = None


class LogWriter:
    """The writer of one partition, for as long as this node leads it."""

    def __init__(self, partition: Partition, clock_ms: Callable[[], int], *, too_large: ErrorCode) -> None:
        """`too_large` is what clients are told about a record that the topic does not take."""
        self.partition = partition
        self._clock_ms = clock_ms
        self._too_large = too_large
        self._queue: list[_Write] = []
        self._flights: deque[_Flight] = deque()
        self._waiting = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Writes that are not committed yet."""
        return self._waiting

    def code_of(self, error: BaseException | None) -> ErrorCode:
        """What clients are told when a write failed."""
        if not isinstance(error, KafkaError):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return self._too_large if error.code in _TOO_LARGE else _CODES.get(error.code, error.code)

    def add(
        self,
        records: Sequence[RawRecord],
        apply: Apply | None,
        reply: Reply | None,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """Writes the records with the next batch, at the end of this turn of the loop."""
        write = _Write(records, apply, reply, dropped)
        if self._closed or self._waiting >= WAITING_WRITES_MAX:
            write.drop(ErrorCode.NOT_COORDINATOR if self._closed else ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        if not self._queue:
            asyncio.get_running_loop().call_soon(self.flush)
        self._queue.append(write)
        self._waiting += 1

    def append(
        self,
        records: Sequence[RawRecord],
        reply: Reply,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> int:
        """Appends now, after what was added before; returns the log offset of the first record. Raises KafkaError.

        `reply` is called when the records are committed. For changes that the caller makes to his state at once.
        """
        if self._closed:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "this node no longer coordinates; ask FindCoordinator")
        self.flush()
        try:
            return self._send([_Write(records, None, reply)], producer_id, producer_epoch)
        except KafkaError as error:
            raise KafkaError(self.code_of(error), error.message) from error

    def flush(self) -> None:
        """Appends what is queued, in batches."""
        queue, self._queue = self._queue, []
        self._waiting -= len(queue)
        batch: list[_Write] = []
        size = 0
        for write in queue:
            more = sum(len(key) + len(value or b"") for key, value in write.records)
            if batch and size + more > BATCH_BYTES_MAX:
                self._send_or_refuse(batch)
                batch, size = [], 0
            batch.append(write)
            size += more
        if batch:
            self._send_or_refuse(batch)

    def _send_or_refuse(self, writes: list[_Write]) -> None:
        try:
            self._send(writes)
        except KafkaError as error:
            if len(writes) > 1 and error.code in _TOO_LARGE:
                for write in writes:
                    self._send_or_refuse([write])
                return
            for write in writes:
                write.drop(self.code_of(error))

    def _send(self, writes: list[_Write], producer_id: int = -1, producer_epoch: int = -1) -> int:
        now = self._clock_ms()
        records: list[Record] = []
        for write in writes:
            write.first = len(records)
            records.extend(Record(len(records) + i, now, key, value) for i, (key, value) in enumerate(write.records))
        if not records:
            self._after_the_others(writes)
            return self.partition.end_offset
        data = memoryview(
            build_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, transactional=producer_id >= 0)
        )
        appended = self.partition.append(data, required_acks=ALL_IN_SYNC, now_ms=now, internal=True)
        flight = _Flight(writes, appended.base_offset, now + WRITE_TIMEOUT_MS)
        self._flights.append(flight)
        self._waiting += len(writes)
        committed = self.partition.committed(appended.last_offset + 1)
        if committed is None:
            committed = asyncio.get_running_loop().create_future()
            committed.set_result(None)
        flight.future = committed
        committed.add_done_callback(lambda future: self._landed(flight, future))
        return appended.base_offset

    def _after_the_others(self, writes: list[_Write]) -> None:
        """Writes without records wait for those before them."""
        if self._flights:
            self._flights[-1].writes.extend(writes)
            self._waiting += len(writes)
            return
        for write in writes:
            write.answer(ErrorCode.NONE)

    def _landed(self, flight: _Flight, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()  # looked at in any case, or asyncio complains
        if self._closed or flight not in self._flights:
            return
        last = flight.base_offset + sum(len(write.records) for write in flight.writes)
        committed = error is None or (self.partition.is_leader and self.partition.high_watermark >= last)
        self._flights.remove(flight)
        self._waiting -= len(flight.writes)
        code = ErrorCode.NONE if error is None else self.code_of(error)
        for write in flight.writes:
            if not committed:
                write.drop(code)
                continue
            if write.apply is not None:
                write.apply(flight.base_offset + write.first)
            write.answer(code)

    def expire(self, now_ms: int) -> None:
        """Tells those who have waited too long (Rule 4)."""
        for flight in self._flights:
            if flight.deadline_ms > now_ms:
                break
            for write in flight.writes:
                write.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def close(self) -> None:
        """This node no longer leads the partition (Rule 3)."""
        self._closed = True
        queue, self._queue = self._queue, []
        flights, self._flights = self._flights, deque()
        self._waiting = 0
        for write in queue:
            write.drop(ErrorCode.NOT_COORDINATOR)
        for flight in flights:
            for write in flight.writes:
                write.drop(ErrorCode.NOT_COORDINATOR)
