"""Deadlines of everything a coordinator looks after: one heap, one timer of the event loop, no task for each.

Deadlines are not cancelled: whoever is woken looks whether there is anything to do. The clock never jumps: it is the
time of day at the start of the process, plus what has passed since. A clock that is set back or forth therefore ends
no session early and keeps no dead member alive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from heapq import heappop, heappush

import structlog

log = structlog.get_logger()

WAKEUPS_PER_TURN_MAX = 64
"""So many deadlines are served before others get their turn on the loop."""


class SteadyClock:
    """Milliseconds of the day that do not jump."""

    def __init__(self) -> None:
        self._origin = time.time() - time.monotonic()

    def __call__(self) -> int:
        return int((self._origin + time.monotonic()) * 1000)


class Timers:
    """Calls back at given times, on the loop."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at_ms: int, callback: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ms, self._sequence, callback))
        self._arm()

    def close(self) -> None:
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        first = self._heap[0][0]
        if self._handle is not None:
            if self._armed_for <= first:
                return
            self._handle.cancel()
        self._armed_for = first
        delay_s = max(0, first - self._clock_ms()) / 1000
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._clock_ms()
        for _ in range(WAKEUPS_PER_TURN_MAX):
            if not self._heap or self._heap[0][0] > now:
                break
            callback = heappop(self._heap)[2]
            try:
                callback()
            except Exception:
                log.exception("a deadline of a coordinator could not be served")
        if self._heap:
            self._arm()
