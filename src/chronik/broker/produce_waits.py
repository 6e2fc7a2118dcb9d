"""Produce requests that wait for their replicas, looked after with one timer for all of them.

Nearly every wait ends in time: a timer of its own for each would be set and cancelled and never fire. So all that wait
are looked at together, from time to time.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

LOOK_EVERY_S = 0.05
"""How late a request may learn that its time is over."""


class Waiting(Protocol):
    """A request that waits."""

    def look(self, now: float) -> None:
        """Whether to go on waiting, at this monotonic time; one that gives up leaves."""


class ProduceWaits:
    """All of a node. Used on the loop only."""

    __slots__ = ("_timer", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, waiting: Waiting) -> None:
        self._waiting[waiting] = None
        if self._timer is None:
            self._look_later()

    def leave(self, waiting: Waiting) -> None:
        """Does nothing for one that has left. The timer goes on: where one waits, the next is not far."""
        self._waiting.pop(waiting, None)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        self._look_later()
        now = monotonic()
        for waiting in list(self._waiting):
            waiting.look(now)
