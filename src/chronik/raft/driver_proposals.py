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


class _Forward:
    __slots__ = ("data", "deadline", "result", "sent")

    def __init__(self, data: bytes, deadline: float, result: asyncio.Future[object]) -> None:
        self.data = data
        self.deadline = deadline
        self.result = result
        self.sent = False


class Proposals:
    """The proposals of this node."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._loop = group.loop
        self._queue: deque[_Forward] = deque()
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
            try:
                if group.leads:
                    return await self._propose_here(data, deadline)
                if group.core.leader_id:
                    return await self._forward(data, deadline)
            except _NotTaken as error:
                problem = LeaderUnreachable(f"nothing was proposed: {error}; {group.explain()}")
                await group.change(min(deadline, self._loop.time() + RETRY_PAUSE_S))
            else:
                problem = None
                await group.change(deadline)

    # --- on the leader -------------------------------------------------------------------------------------------

    async def _propose_here(self, data: bytes, deadline: float) -> object:
        term, index = self._append([data])
        result: asyncio.Future[object] = self._loop.create_future()
        self._group.waiting.proposal(index, term, result)
        timer = self._loop.call_at(deadline, self._expire, result, True)
        try:
            return await result
        finally:
            timer.cancel()
            self._group.waiting.forget(index, result)

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

    def _expire(self, result: asyncio.Future[object], sent: bool) -> None:
        if result.done():
            return
        if sent:
            result.set_exception(
                ProposeTimeout(f"not applied here in time, it may still be: {self._group.explain()}: try again")
            )
        else:
            result.set_exception(LeaderUnreachable(f"the leader was not reached in time: {self._group.explain()}"))

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

    async def _forward(self, data: bytes, deadline: float) -> object:
        result: asyncio.Future[object] = self._loop.create_future()
        forward = _Forward(data, deadline, result)
        self._queue.append(forward)
        self._schedule_flush()
        timer = self._loop.call_at(deadline, lambda: self._expire(result, forward.sent))
        try:
            return await result
        finally:
            timer.cancel()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._queue:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        settings = self._group.settings
        while self._queue and len(self._in_flight) < settings.forwards_in_flight_max:
            batch: list[_Forward] = []
            size = 0
            while self._queue and len(batch) < settings.forward_batch_max and size < settings.forward_batch_bytes_max:
                forward = self._queue.popleft()
                if not forward.result.done():
                    batch.append(forward)
                    size += len(forward.data)
            if batch:
                leader = self._group.core.leader_id
                task = self._loop.create_task(self._send(batch, leader))
                self._in_flight[task] = leader
                task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._in_flight.pop(task, None)
        self._schedule_flush()

    def _leader_changed(self) -> None:
        """An old leader that was stopped would keep its forwards waiting; soon they are given up as unknown."""
        leader = self._group.core.leader_id
        for task, target in self._in_flight.items():
            if leader and target != leader:
                self._loop.call_later(OLD_LEADER_GRACE_S, task.cancel)

    async def _send(self, batch: list[_Forward], leader: int) -> None:
        group = self._group
        if not leader or leader == group.core.node_id:
            self._fail(batch, _NotTaken("the leader changed"))
            return
        deadline = max(forward.deadline for forward in batch)
        for forward in batch:
            forward.sent = True
        group.waiting.keep_results()
        try:
            payload = _encode([forward.data for forward in batch])
            timeout_s = max(0.0, deadline - self._loop.time())
            answer = await group.transport.request(leader, PROPOSE, payload, timeout_s=timeout_s, connect_s=CONNECT_S)
            term, first = _decode_place(answer)
            for index, forward in enumerate(batch, first):
                if not forward.result.done():
                    group.waiting.proposal(index, term, forward.result)
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

    def _fail(self, batch: list[_Forward], error: ProposeError) -> None:
        for forward in batch:
            forward.sent = not isinstance(error, _NotTaken)
            if not forward.result.done():
                forward.result.set_exception(error)

    def stop(self) -> None:
        """Nothing is forwarded any more; what waits is told by the group."""
        for task in list(self._in_flight):
            task.cancel()
        if self._group.out is not None:
            for forward in self._queue:
                if not forward.result.done():
                    forward.result.set_exception(self._group.out)
        self._queue.clear()
