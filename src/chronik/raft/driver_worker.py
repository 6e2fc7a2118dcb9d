"""A thread for what blocks: work goes in from the event loop, results come back to it, in order, one at a time."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

Done = Callable[[T | None, BaseException | None], None]
_Job = tuple[Callable[[], object], Callable[[object, BaseException | None], None]]


class Worker(Protocol):
    """Runs work elsewhere, in the order given, and calls `done(result, error)` on the event loop."""

    def submit(self, work: Callable[[], T], done: Done[T]) -> None: ...

    async def run(self, work: Callable[[], T]) -> T: ...

    def stop(self) -> None:
        """Takes no more work; what was given is finished, but not waited for."""


class ThreadWorker:
    """A `Worker` on a thread of its own. A daemon: a disk that hangs must not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        self._queue.put((work, done))  # type: ignore[arg-type]

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, or what it raised."""
        finished: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if finished.done():
                return
            if error is not None:
                finished.set_exception(error)
            else:
                finished.set_result(result)  # type: ignore[arg-type]

        self.submit(work, done)
        return await finished

    def stop(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            work, done = job
            result: object = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            try:
                self._loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                return  # the loop is closed; nobody waits for this any more
