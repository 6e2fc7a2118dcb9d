"""An event loop for one simulated process: the clock is the simulation's, nothing waits, and nothing is random.

Each process has its own, so that one can be stopped while the others go on, and dropped when it crashes. It implements
what replication uses of asyncio: callbacks, timers, futures and tasks.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

MAX_CALLBACKS_PER_RUN = 20_000  # more than any real turn needs: beyond it, something spins


class Spinning(Exception):
    """The process does not come to rest though no time passes."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs a process's callbacks at the simulation's time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = 0
        self.dead = False
        self.failures: list[BaseException] = []

    # what the simulation uses

    def next_time(self) -> float | None:
        """When this process has something to do next; None for never."""
        if self._ready:
            return self._clock()
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def run(self) -> None:
        """Runs everything that is due, until the process rests."""
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for _ in range(MAX_CALLBACKS_PER_RUN):
                now = self._clock()
                while self._timers and self._timers[0][0] <= now:
                    self._ready.append(heapq.heappop(self._timers)[2])
                if not self._ready or self.dead:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(previous)
        raise Spinning("a process ran without end at one moment")

    def inside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls something as if from within the process."""
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return function(*args)
        finally:
            asyncio._set_running_loop(previous)

    # what asyncio uses

    def time(self) -> float:
        return self._clock()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return None

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],  # type: ignore[override]
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.dead and isinstance(error, BaseException):
            self.failures.append(error)
