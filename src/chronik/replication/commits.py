"""Who waits for the high watermark: appends that want to be acknowledged, and fetches that want more to read.

Appends wait in order of their offsets and are resolved or failed exactly once. Fetches are woken once and forgotten:
one that still has to wait registers again, so data that arrives wakes each of them at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import structlog

from chronik.protocol.errors import KafkaError

ABANDONED_LIMIT = 1024  # timed-out commits are swept from the queue when it has grown by this many

log = structlog.get_logger()

Refusal = Callable[[], KafkaError]


class CommitQueue:
    """Futures of appends, resolved when everything below their offset is committed."""

    __slots__ = ("_heap", "_sequence", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._sequence = 0
        self._sweep_at = ABANDONED_LIMIT

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, offset: int) -> asyncio.Future[None]:
        """Waits for a high watermark of at least `offset`."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [waiting for waiting in self._heap if not waiting[2].done()]
            heapify(self._heap)
            self._sweep_at = len(self._heap) + ABANDONED_LIMIT
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sequence += 1
        heappush(self._heap, (offset, self._sequence, future))
        return future

    def reached(self, high_watermark: int, refusal: Refusal | None) -> None:
        """Everything below the high watermark is committed: acknowledge, or refuse to, all that waited for it."""
        heap = self._heap
        while heap and heap[0][0] <= high_watermark:
            future = heappop(heap)[2]
            if future.done():
                continue
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(refusal())

    def fail(self, refusal: Refusal) -> None:
        """Nobody will ever know here: fail all that wait, in order."""
        while self._heap:
            future = heappop(self._heap)[2]
            if not future.done():
                future.set_exception(refusal())


class Waiter:
    """One fetch that waits at one partition."""

    __slots__ = ("_room", "callback")

    def __init__(self, room: WaitingRoom, callback: Callable[[], None]) -> None:
        self._room = room
        self.callback = callback

    def cancel(self) -> None:
        """Stops waiting; does nothing when it was woken already."""
        self._room.leave(self)


class WaitingRoom:
    """The fetches that wait at one partition."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def enter(self, callback: Callable[[], None]) -> Waiter:
        waiter = Waiter(self, callback)
        self._waiters[waiter] = None
        return waiter

    def leave(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def wake(self) -> None:
        """Wakes everyone who is waiting now, once."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            try:
                waiter.callback()
            except Exception:
                log.exception("a fetch that waited for data failed when it was woken")
