"""Linearizable reads: a node waits until it has applied everything that was committed anywhere when it asked.

The leader confirms that it still leads (read-index), other nodes ask it where they have to be. Reads of one turn of the
loop share one exchange. Nothing is written, so a read that failed is simply made again until its deadline.
"""

from __future__ import annotations

import asyncio

import msgspec

from chronik.raft.driver_errors import LeaderUnreachable, NoLeader, ProposeError, ProposeTimeout, SteppedDown
from chronik.raft.driver_group import Group
from chronik.raft.errors import NotLeader, ReadDropped
from chronik.raft.transport_frames import PeerError, RemoteError
from chronik.raft.types import ReadState

READ_INDEX = "raft.read_index"
RETRY_PAUSE_S = 0.03
ATTEMPT_S = 1.0
CONNECT_S = 0.1

_encode = msgspec.msgpack.Encoder().encode
_decode_index = msgspec.msgpack.Decoder(int).decode


class Reads:
    """The reads of this node, and those that others ask it to confirm."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._loop = group.loop
        self._contexts: dict[int, asyncio.Future[int]] = {}
        self._next_context = 0
        self._gathering: asyncio.Future[int] | None = None
        self._exchanges: set[asyncio.Task[None]] = set()
        group.transport.serve(READ_INDEX, self._serve)

    async def barrier(self, timeout_s: float) -> int:
        """Returns the index, once this node has applied through it."""
        group = self._group
        deadline = self._loop.time() + timeout_s
        problem: ProposeError | None = None
        while True:
            group.require_part()
            if self._loop.time() >= deadline:
                raise problem or NoLeader(f"the read was not confirmed: {group.explain()}")
            if not group.core.leader_id:
                await group.change(deadline)
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    index = await asyncio.shield(self._gather())
                    await group.waiting.until_applied(index)
                    return index
            except TimeoutError:
                raise ProposeTimeout(f"the read was not confirmed in time: {group.explain()}: try again") from None
            except (SteppedDown, LeaderUnreachable) as error:
                problem = error
                await group.change(min(deadline, self._loop.time() + RETRY_PAUSE_S))

    # --- one exchange for all that ask in one turn -------------------------------------------------------------------

    def _gather(self) -> asyncio.Future[int]:
        if self._gathering is None:
            self._gathering = self._loop.create_future()
            self._loop.call_soon(self._launch)
        return self._gathering

    def _launch(self) -> None:
        shared, self._gathering = self._gathering, None
        if shared is not None:
            task = self._loop.create_task(self._exchange(shared))
            self._exchanges.add(task)
            task.add_done_callback(self._exchanges.discard)

    async def _exchange(self, shared: asyncio.Future[int]) -> None:
        group = self._group
        try:
            if group.leads:
                index = await self._confirm()
            else:
                answer = await group.transport.request(
                    group.core.leader_id, READ_INDEX, b"", timeout_s=ATTEMPT_S, connect_s=CONNECT_S
                )
                index = _decode_index(answer)
        except (PeerError, TimeoutError) as error:
            self._finish(shared, LeaderUnreachable(f"the leader did not confirm the read: {error}"))
        except ProposeError as error:
            self._finish(shared, error)
        except asyncio.CancelledError:
            self._finish(shared, SteppedDown("this node is stopping"))
            raise
        else:
            shared.set_result(index)

    def _finish(self, shared: asyncio.Future[int], error: ProposeError) -> None:
        shared.set_exception(error)
        shared.exception()  # nobody may be waiting any more

    # --- on the leader -----------------------------------------------------------------------------------------------

    async def _confirm(self) -> int:
        self._next_context += 1
        context = self._next_context
        confirmed: asyncio.Future[int] = self._loop.create_future()
        try:
            self._group.core.read_index(context)
        except (NotLeader, ReadDropped) as error:
            raise SteppedDown(str(error)) from None
        self._contexts[context] = confirmed
        self._group.touch()
        try:
            return await confirmed
        finally:
            self._contexts.pop(context, None)

    def confirmed(self, reads: list[ReadState]) -> None:
        """The core says that these may be served."""
        for read in reads:
            future = self._contexts.pop(read.context, None)
            if future is not None and not future.done():
                future.set_result(read.index)

    def stepped_down(self) -> None:
        """Reads that the core had taken as a leader are lost."""
        contexts, self._contexts = self._contexts, {}
        for future in contexts.values():
            if not future.done():
                future.set_exception(SteppedDown("this node stopped to lead before the read was confirmed"))

    async def _serve(self, peer: int, payload: bytes) -> bytes:
        try:
            self._group.require_part()
            return _encode(await self._confirm())
        except ProposeError as error:
            raise RemoteError("not_confirmed", str(error), retriable=True) from None

    def stop(self) -> None:
        self.stepped_down()
        for task in list(self._exchanges):
            task.cancel()
        if self._gathering is not None:
            self._finish(self._gathering, SteppedDown("this node is stopping"))
            self._gathering = None
