"""The leader's side of fetching: one session per follower node, and answers that hold only news.

A session remembers for every partition how far the follower is, so an idle cluster exchanges almost empty requests
however many partitions it has. A partition marks itself in the sessions of its followers when its log grows; an answer
takes its data from the marks and never looks at the rest. A follower that has everything waits, and is woken by the
first append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import structlog

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication import throttle, wire
from chronik.replication.wire import Added, Buffer, FetchRequest, FetchResponse, PartitionResult, Progress

if TYPE_CHECKING:
    from chronik.replication.leadership import Follower, Leadership
    from chronik.replication.manager import ReplicaManager
    from chronik.replication.partition import Partition
    from chronik.replication.throttle import ReplicationThrottle

log = structlog.get_logger()

_START_OVER = wire.encode_response(FetchResponse(session_error=True), [])
_NOTED = wire.encode_response(FetchResponse(), [])


class FetchSlot:
    """One partition in a follower's session."""

    __slots__ = ("fetch_offset", "follower", "leadership", "number", "partition", "sent", "session")

    def __init__(
        self, session: FetchSession, number: int, partition: Partition, leadership: Leadership, follower: Follower
    ) -> None:
        self.session = session
        self.number = number
        self.partition = partition
        self.leadership = leadership
        self.follower = follower
        self.fetch_offset = 0
        self.sent = False  # data is on its way: nothing more before the follower says that it has it

    @property
    def registration(self) -> int:
        return self.session.registration

    def current(self) -> bool:
        """Whether the partition is still led in the epoch that the follower asked for, and the follower a replica."""
        lead = self.leadership
        return self.partition.leadership is lead and lead.followers.get(self.session.node_id) is self.follower

    def throttled(self) -> bool:
        """Whether this replica is being moved, and not in sync yet."""
        settings = self.partition.settings
        return (
            bool(settings.throttled)
            and throttle.names(settings.throttled, self.partition.index, self.session.node_id)
            and self.session.node_id not in self.partition.isr
        )

    def data_available(self) -> None:
        if not self.sent:
            self.session.ready[self] = None
            self.session.wake()

    def watermark_moved(self, *, at_once: bool = False) -> None:
        self.session.moved[self] = None
        if at_once:
            self.session.wake()


class FetchSession:
    """What one follower node fetches here."""

    __slots__ = ("_parked", "expected", "moved", "node_id", "number", "ready", "registration", "results", "slots")

    def __init__(self, node_id: int, number: int) -> None:
        self.node_id = node_id
        self.number = number
        self.expected = 0
        self.registration = -1
        self.slots: dict[int, FetchSlot] = {}
        self.ready: dict[FetchSlot, None] = {}
        self.moved: dict[FetchSlot, None] = {}
        self.results: dict[int, PartitionResult] = {}
        self._parked: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def hold(self, slot: FetchSlot) -> None:
        """Leaves a throttled replica waiting for a moment."""
        asyncio.get_running_loop().call_later(throttle.PAUSE_S, self._release, slot)

    def _release(self, slot: FetchSlot) -> None:
        if self.slots.get(slot.number) is slot:
            slot.data_available()

    async def wait(self, timeout_s: float) -> None:
        """Until there is something to send, another request of this session comes, or the time is up."""
        self.wake()
        parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked = parked
        timer = asyncio.get_running_loop().call_later(timeout_s, self._time_up, parked)
        try:
            await parked
        finally:
            timer.cancel()
            if self._parked is parked:
                self._parked = None

    @staticmethod
    def _time_up(parked: asyncio.Future[None]) -> None:
        if not parked.done():
            parked.set_result(None)

    def drop(self, number: int) -> None:
        slot = self.slots.pop(number, None)
        if slot is not None:
            self._detach(slot)

    def close(self) -> None:
        """The follower started over: nothing of this session counts any more."""
        for slot in self.slots.values():
            self._detach(slot)
        self.slots.clear()
        self.wake()

    def _detach(self, slot: FetchSlot) -> None:
        self.ready.pop(slot, None)
        self.moved.pop(slot, None)
        if slot.follower.link is slot:
            slot.follower.link = None


class FetchServer:
    """Answers the followers of this node's partitions."""

    def __init__(self, replicas: ReplicaManager, throttle: ReplicationThrottle) -> None:
        self._replicas = replicas
        self._throttle = throttle
        self._sessions: dict[int, FetchSession] = {}

    def fetch(self, peer: int, payload: bytes) -> list[Buffer] | Awaitable[list[Buffer]]:
        """Takes the follower's news at once, which keeps them in order; the answer waits for something to tell."""
        request = wire.decode_request(payload)
        session = self._accept(peer, request)
        if session is None:
            return _START_OVER
        return self._answer(session, request)

    async def _answer(self, session: FetchSession, request: FetchRequest) -> list[Buffer]:
        if not session.ready and not session.results and request.max_wait_ms > 0:
            await session.wait(min(request.max_wait_ms, wire.MAX_WAIT_MS) / 1000)
        if self._sessions.get(session.node_id) is not session:
            return _START_OVER
        results, records = await self._collect(session, min(request.max_bytes, wire.MAX_RESPONSE_BYTES))
        return wire.encode_response(FetchResponse(results=results), records)

    def report(self, peer: int, payload: bytes) -> list[Buffer]:
        """Takes news while the follower's fetch waits. What they lead to is told by that fetch."""
        session = self._accept(peer, wire.decode_request(payload))
        if session is None:
            return _START_OVER
        if session.results or session.ready:
            session.wake()
        return _NOTED

    def forget(self, peer: int) -> None:
        """A follower is gone."""
        session = self._sessions.pop(peer, None)
        if session is not None:
            session.close()

    def stop(self) -> None:
        for peer in list(self._sessions):
            self.forget(peer)

    def _accept(self, peer: int, request: FetchRequest) -> FetchSession | None:
        """The request's session with its news taken in, or None when the follower has to start over."""
        session = self._sessions.get(peer)
        if request.sequence == 0 and (session is None or session.number != request.session):
            self.forget(peer)
            session = self._sessions[peer] = FetchSession(peer, request.session)
        if session is None or session.number != request.session:
            return None  # a late word of an older session says nothing about this one
        if session.expected != request.sequence:
            self.forget(peer)
            return None
        session.expected += 1
        session.registration = request.registration
        for number in request.removed:
            session.drop(number)
        for progress in request.progress:
            self._progressed(session, progress)
        for added in request.added:
            self._add(session, added)
        return session

    def _progressed(self, session: FetchSession, progress: Progress) -> None:
        number, fetch_offset = progress.slot, progress.fetch_offset
        slot = session.slots.get(number)
        if slot is None:
            return
        if not slot.current():
            self._refuse(session, number, ErrorCode.FENCED_LEADER_EPOCH)
            return
        if fetch_offset != slot.fetch_offset:
            slot.sent = False
            slot.fetch_offset = fetch_offset
        slot.partition.follower_progress(slot.follower, fetch_offset, progress.synced_offset, progress.log_start_offset)
        if not slot.sent and fetch_offset < slot.partition.end_offset:
            session.ready[slot] = None

    def _add(self, session: FetchSession, added: Added) -> None:
        session.drop(added.slot)
        partition = self._replicas.by_id(added.topic_id, added.partition)
        lead = partition.leadership if partition is not None else None
        if partition is None or lead is None:
            self._refuse(session, added.slot, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if added.leader_epoch != partition.leader_epoch:
            newer = added.leader_epoch > partition.leader_epoch
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.FENCED_LEADER_EPOCH
            self._refuse(session, added.slot, code)
            return
        follower = lead.followers.get(session.node_id)
        if follower is None:
            self._refuse(session, added.slot, ErrorCode.REPLICA_NOT_AVAILABLE)
            return
        if not self._comparable(session, added, partition):
            return
        slot = FetchSlot(session, added.slot, partition, lead, follower)
        slot.fetch_offset = added.fetch_offset
        session.slots[added.slot] = slot
        follower.link = slot
        partition.follower_progress(follower, added.fetch_offset, added.synced_offset, added.log_start_offset)
        session.moved[slot] = None
        if added.fetch_offset < partition.end_offset:
            session.ready[slot] = None

    def _comparable(self, session: FetchSession, added: Added, partition: Partition) -> bool:
        """Whether the follower's log is a prefix of ours; if not, it is told where to cut, and asks again."""
        start, end = partition.log_start_offset, partition.end_offset
        if added.fetch_offset < start:
            self._refuse(session, added.slot, ErrorCode.OFFSET_OUT_OF_RANGE, start, end)
            return False
        diverging = partition.compare(added.fetch_offset, added.last_epoch)
        if diverging is not None:
            session.results[added.slot] = PartitionResult(
                added.slot, diverging_epoch=diverging.epoch, diverging_end=diverging.end_offset
            )
            return False
        if added.fetch_offset > end:
            self._refuse(session, added.slot, ErrorCode.OFFSET_OUT_OF_RANGE, start, end)
            return False
        return True

    def _refuse(
        self, session: FetchSession, number: int, code: ErrorCode, log_start: int = -1, end_offset: int = -1
    ) -> None:
        session.drop(number)
        session.results[number] = PartitionResult(
            number, error=int(code), log_start_offset=log_start, end_offset=end_offset
        )

    async def _collect(self, session: FetchSession, max_bytes: int) -> tuple[list[PartitionResult], list[Buffer]]:
        """Data in turn from every partition that has some, then bare news, up to the limits."""
        results = list(session.results.values())
        session.results = {}
        records: list[Buffer] = []
        room = max_bytes
        while session.ready and room > 0 and len(results) < wire.MAX_RESULTS_PER_RESPONSE:
            slot = next(iter(session.ready))
            del session.ready[slot]
            if slot.throttled() and self._throttle.exhausted():
                session.hold(slot)
                continue
            data = await self._read(slot, min(room, wire.MAX_PARTITION_BYTES), first=not records)
            if data is None or session.slots.get(slot.number) is not slot:
                continue
            if not len(data):
                if room < max_bytes:  # the next batch does not fit into what is left of this answer
                    session.ready[slot] = None
                    break
                continue
            slot.sent = True
            # While the read waited for the disk, an append or a report may have marked the slot again: read now, the
            # same batches would go twice in this answer. The follower's progress marks it when there is more.
            session.ready.pop(slot, None)
            if slot.throttled():
                self._throttle.spend(len(data))
            session.moved.pop(slot, None)
            results.append(self._news(slot, len(data)))
            records.append(data)
            room -= len(data)
        while session.moved and len(results) < wire.MAX_RESULTS_PER_RESPONSE:
            slot = next(iter(session.moved))
            del session.moved[slot]
            if slot.current():
                results.append(self._news(slot, 0))
        # Errors and cuts have no records, and those come first: the order of records is the order of results.
        return results, records

    def _news(self, slot: FetchSlot, size: int) -> PartitionResult:
        partition = slot.partition
        return PartitionResult(
            slot.number,
            high_watermark=partition.high_watermark,
            log_start_offset=partition.log_start_offset,
            size=size,
        )

    async def _read(self, slot: FetchSlot, max_bytes: int, *, first: bool) -> Buffer | None:
        """The follower's next batches; None when it has to be told something else."""
        partition, session = slot.partition, slot.session
        if not slot.current():
            self._refuse(session, slot.number, ErrorCode.FENCED_LEADER_EPOCH)
            return None
        offset = slot.fetch_offset
        failure: KafkaError | None = None
        try:
            data = partition.read_nowait(offset, max_bytes, replica_id=session.node_id, at_least_one=first)
            if data is None:
                data = await partition.read(offset, max_bytes, replica_id=session.node_id, at_least_one=first)
        except KafkaError as error:
            failure = error
        if not slot.current():
            # Another may lead by now, and this log may have been cut for it: neither what was read nor the bounds of
            # what is left are the leader's, and a follower that took these for it would throw its own log away.
            self._refuse(session, slot.number, ErrorCode.FENCED_LEADER_EPOCH)
            return None
        if failure is not None:
            start, end = partition.log_start_offset, partition.end_offset
            self._refuse(session, slot.number, failure.code, start, end)
            if failure.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                log.warning(
                    "a follower cannot be served",
                    topic=partition.topic,
                    partition=partition.index,
                    follower=session.node_id,
                    error=failure.code.name,
                    reason=failure.message,
                )
            return None
        return data
