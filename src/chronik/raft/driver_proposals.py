"""Proposals: taken here by the leader, forwarded to it by everybody else, resolved by application on this node.

A forwarded proposal travels with all others of the same turn of the loop; the leader answers with its place in the log
(term and index), and then this node waits until it has applied that entry itself. When it is certain that the leader
did not take a proposal it is tried again until its deadline; when the answer was lost it is not, for it may have been.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from chronik.raft.driver_errors import (
    LeaderUnreachable,
    NoLeader,
    OutcomeUnknown,
    ProposalTooLarge,
    ProposeError,
    ProposeTimeout,
    QueueFull,
)
from chronik.raft.driver_group import Group
from chronik.raft.errors import NotLeader, ProposalDropped
from chronik.raft.transport_frames import PeerError, RemoteError

PROPOSE = "raft.propose"
RETRY_PAUSE_S = 0.03
CONNECT_S = 0.1
OLD_LEADER_GRACE_S = 0.5
"""How long the answer of a leader is still waited for after another one was elected."""

_encode = msgspec.msgpack.Encoder().encode
_decode_proposals = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_place = msgspec.msgpack.Decoder(tuple[int, int]).decode


class _NotTaken(ProposeError):
    """The leader certainly did not take it: try again."""


class _Proposal:
    __slots__ = ("data", "deadline", "index", "result", "sent")

    def __init__(self, data: bytes, deadline: float, result: asyncio.Future[object]) -> None:
        self.data = data
        self.deadline = deadline
        self.result = result
        self.sent = False
        """Whether it may be in somebody's log."""
        self.index = 0


class Proposals:
    """The proposals of this node. All of one turn of the loop are taken, or forwarded, together."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._loop = group.loop
        self._queue: deque[_Proposal] = deque()
        self._flush_scheduled = False
        self._in_flight: dict[asyncio.Task[None], int] = {}
        group.transport.serve(PROPOSE, self._take)
        group.on_change.append(self._leader_changed)

    async def propose(self, data: bytes, timeout_s: float) -> object:
        """The result of applying `data` on this node. Raises `ProposeError` by the deadline."""
        group = self._group
        settings = group.settings
        if len(data) > settings.proposal_bytes_max:
            raise ProposalTooLarge(f"a proposal of {len(data)} bytes, the limit is {settings.proposal_bytes_max}")
        deadline = self._loop.time() + timeout_s
        problem: ProposeError | None = None
        while True:
            group.require_part()
            if len(group.waiting) + len(self._queue) >= settings.proposals_waiting_max:
                raise QueueFull(f"{settings.proposals_waiting_max} proposals wait already: try again")
            if self._loop.time() >= deadline:
                raise problem or NoLeader(f"nothing was proposed: {group.explain()}")
            if not group.core.leader_id:
                problem = None
                await group.change(deadline)
                continue
            try:
                return await self._submit(data, deadline)
            except _NotTaken as error:
                problem = LeaderUnreachable(f"nothing was proposed: {error}; {group.explain()}")
                await group.change(min(deadline, self._loop.time() + RETRY_PAUSE_S))

    async def _submit(self, data: bytes, deadline: float) -> object:
        result: asyncio.Future[object] = self._loop.create_future()
        proposal = _Proposal(data, deadline, result)
        self._queue.append(proposal)
        self._schedule_flush()
        timer = self._loop.call_at(deadline, self._expire, proposal)
        try:
            return await result
        finally:
            timer.cancel()
            self._group.waiting.forget(proposal.index, result)

    def _expire(self, proposal: _Proposal) -> None:
        if proposal.result.done():
            return
        if proposal.sent:
            proposal.result.set_exception(
                ProposeTimeout(f"not applied here in time, it may still be: {self._group.explain()}: try again")
            )
        else:
            cause = f"the leader was not reached in time: {self._group.explain()}"
            proposal.result.set_exception(LeaderUnreachable(cause))

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._queue:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        group, settings = self._group, self._group.settings
        while self._queue and len(self._in_flight) < settings.forwards_in_flight_max:
            batch: list[_Proposal] = []
            size = 0
            while self._queue and len(batch) < settings.batch_max and size < settings.batch_bytes_max:
                proposal = self._queue.popleft()
                if not proposal.result.done():
                    batch.append(proposal)
                    size += len(proposal.data)
            if not batch:
                return
            if group.leads:
                self._append_own(batch)
            else:
                leader = group.core.leader_id
                task = self._loop.create_task(self._forward(batch, leader))
                self._in_flight[task] = leader
                task.add_done_callback(self._forwarded)

    def _placed(self, batch: list[_Proposal], term: int, first: int) -> None:
        for index, proposal in enumerate(batch, first):
            if not proposal.result.done():
                proposal.index = index
                proposal.sent = True
                self._group.waiting.proposal(index, term, proposal.result)

    def _fail(self, batch: list[_Proposal], error: ProposeError) -> None:
        for proposal in batch:
            proposal.sent = error.ambiguous
            if not proposal.result.done():
                proposal.result.set_exception(error)

    # --- on the leader -------------------------------------------------------------------------------------------

    def _append_own(self, batch: list[_Proposal]) -> None:
        try:
            self._placed(batch, *self._append([proposal.data for proposal in batch]))
        except QueueFull as error:
            if len(batch) == 1:
                self._fail(batch, error)
                return
            # All or nothing: perhaps some of them fit.
            for proposal in batch:
                self._append_own([proposal])
        except ProposeError as error:
            self._fail(batch, error)

    def _append(self, datas: list[bytes]) -> tuple[int, int]:
        core = self._group.core
        try:
            place = core.propose(datas)
        except NotLeader as error:
            raise _NotTaken(str(error)) from None
        except ProposalDropped as error:
            if core.status().transfer_target:
                raise _NotTaken(str(error)) from None
            raise QueueFull(str(error)) from None
        self._group.touch()
        return place

    def _take(self, peer: int, payload: bytes) -> bytes:
        """Proposals that another node forwards."""
        datas = _decode_proposals(payload)
        try:
            self._group.require_part()
            return _encode(self._append(datas))
        except QueueFull as error:
            raise RemoteError("queue_full", str(error), retriable=True) from None
        except ProposeError as error:
            raise RemoteError("not_taken", str(error), retriable=True) from None

    # --- on everybody else ---------------------------------------------------------------------------------------

    async def _forward(self, batch: list[_Proposal], leader: int) -> None:
        group = self._group
        if not leader:
            self._fail(batch, _NotTaken("the leader changed"))
            return
        deadline = max(proposal.deadline for proposal in batch)
        for proposal in batch:
            proposal.sent = True
        group.waiting.keep_results()
        try:
            payload = _encode([proposal.data for proposal in batch])
            timeout_s = max(0.0, deadline - self._loop.time())
            answer = await group.transport.request(leader, PROPOSE, payload, timeout_s=timeout_s, connect_s=CONNECT_S)
            self._placed(batch, *_decode_place(answer))
        except RemoteError as error:
            full = error.code == "queue_full"
            self._fail(batch, QueueFull(error.message) if full else _NotTaken(error.message))
        except PeerError as error:
            if error.sent:
                self._fail(batch, OutcomeUnknown(f"the answer of the leader was lost, {error}: try again"))
            else:
                self._fail(batch, _NotTaken(str(error)))
        except asyncio.CancelledError:
            self._fail(batch, OutcomeUnknown(f"node {leader} no longer leads and has not answered: try again"))
            raise
        finally:
            group.waiting.release_results()

    def _forwarded(self, task: asyncio.Task[None]) -> None:
        self._in_flight.pop(task, None)
        self._schedule_flush()

    def _leader_changed(self) -> None:
        """An old leader that was stopped would keep its forwards waiting; soon they are given up as unknown."""
        leader = self._group.core.leader_id
        for task, target in self._in_flight.items():
            if leader and target != leader:
                self._loop.call_later(OLD_LEADER_GRACE_S, task.cancel)

    def stop(self) -> None:
        """Nothing is forwarded any more; what waits is told by the group."""
        for task in list(self._in_flight):
            task.cancel()
        if self._group.out is not None:
            self._fail(list(self._queue), self._group.out)
        self._queue.clear()
