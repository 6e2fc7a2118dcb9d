"""The one partition of `__consumer_offsets` in the simulation: a replicated log as coordinators see it.

Who leads appends; what is appended is committed some time later. When leadership moves, everything committed stays, and
of the rest a part that the seed decides. A new leader learns only after a while how much of its log is committed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from chronik.cluster.internal_topics import OFFSETS_TOPIC
from chronik.groups.records import parsed
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.internal_offsets import OffsetCommitKey, OffsetCommitValue
from chronik.protocol.records import parse_batches, read_records, stamp


class Appended(msgspec.Struct):
    base_offset: int
    last_offset: int


class Batch(msgspec.Struct):
    base: int
    last: int
    data: bytes


class ReplicatedLog:
    """What all replicas together hold."""

    def __init__(self, rng: random.Random, later: Callable[[float, Callable[[], None]], None]) -> None:
        self.rng = rng
        self.later = later
        self.batches: list[Batch] = []
        self.committed = 0  # nothing below is ever lost
        self.epoch = 0
        self.refuse_writes = 0.0
        self.commit_delay_s = 0.02
        self.commit_offsets: dict[int, int] = {}  # from a committed value, unique in a run, to its place in the log
        self.leader: Leader | None = None

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else 0

    def elect(self) -> Leader:
        """A new leader, in a new epoch; what was not committed may be lost."""
        self.epoch += 1
        uncommitted = [batch for batch in self.batches if batch.last >= self.committed]
        lost = self.rng.randint(0, len(uncommitted))
        if lost:
            del self.batches[-lost:]
        known = self.rng.randint(0, self.committed) if self.rng.random() < 0.5 else self.committed
        known = max((b.last + 1 for b in self.batches if b.last + 1 <= known), default=0)
        previous, self.leader = self.leader, Leader(self, self.epoch, known)
        if previous is not None:
            previous.resign()
        self.replicate(self.leader)
        return self.leader

    def replicate(self, leader: Leader) -> None:
        """Some time from now, what the leader has now is committed."""
        end = self.end

        def reach() -> None:
            if leader.epoch == self.epoch:
                self.committed = max(self.committed, end)
                leader.reached(self.committed)

        self.later(self.rng.random() * self.commit_delay_s, reach)


class Leader:
    """One node's lead of the partition, with the face of `replication.Partition`."""

    topic = OFFSETS_TOPIC
    index = 0
    holds_lease = True

    def __init__(self, log: ReplicatedLog, epoch: int, high_watermark: int) -> None:
        self.log = log
        self.epoch = epoch
        self.high_watermark = high_watermark
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.log_start_offset = 0

    @property
    def is_leader(self) -> bool:
        return self.epoch == self.log.epoch

    @property
    def end_offset(self) -> int:
        return self.log.end

    def append(self, data: memoryview, **_: Any) -> Appended:
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not the leader")
        if self.log.rng.random() < self.log.refuse_writes:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "too few replicas")
        base = self.log.end
        (info,) = parse_batches(data)
        stamp(data, 0, base, self.epoch)
        last = base + info.last_offset_delta
        self.log.batches.append(Batch(base, last, bytes(data)))
        for record in read_records(bytes(data)):
            entry = parsed(record.key, record.value)
            if entry is not None and isinstance(entry[0], OffsetCommitKey) and isinstance(entry[1], OffsetCommitValue):
                self.log.commit_offsets[entry[1].offset] = record.offset
        self.log.replicate(self)
        return Appended(base, last)

    def committed(self, offset: int) -> asyncio.Future[None] | None:
        if self.is_leader and self.high_watermark >= offset:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.is_leader:
            future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not the leader"))
        else:
            self._waiting.append((offset, future))
        return future

    def reached(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, high_watermark)
        waiting, self._waiting = self._waiting, []
        for offset, future in waiting:
            if offset > self.high_watermark:
                self._waiting.append((offset, future))
            elif not future.done():
                future.set_result(None)

    def resign(self) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no longer the leader"))
        self._waiting = []

    def read_nowait(self, offset: int, max_bytes: int, *, replica_id: int = -1, **_: Any) -> bytes:
        end = self.end_offset if replica_id != -1 else self.high_watermark
        found = b""
        for batch in self.log.batches:
            if batch.last >= offset and batch.base < end and len(found) < max_bytes:
                found += batch.data
        return found
