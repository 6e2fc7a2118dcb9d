"""Group commit: many logs, few threads, one sync in flight per log while the next batch gathers.

A log asks for a sync when it has unsynced bytes; at the end of the loop turn the waiting logs are handed to threads.
With many of them waiting, one sync of the whole file system replaces theirs (see docs/decisions/0024).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Protocol

import structlog

from chronik.storage.files import File, FileSystem

SYNC_THREADS = 4
"""Syncs in flight at once, over all logs of a node."""

LOGS_PER_JOB_MAX = 8
"""Logs that one thread syncs before their acknowledgements go out."""

SYNC_EVERYTHING_FROM = 24
"""So many logs waiting are synced together, with one sync of the file system."""

Post = Callable[[Callable[[], None]], object]
"""Run something on the loop: at the end of this turn, or from another thread."""

logger = structlog.get_logger()


class SyncWork:
    """What one log wants synced, and what that means for it."""

    __slots__ = ("directories", "end_offset", "files", "generation", "log")

    def __init__(
        self, log: SyncedLog, files: list[File | str], directories: list[str], end_offset: int, generation: int
    ) -> None:
        self.log = log
        self.files = files
        """Open files, and paths of files that are not kept open; one that is gone needs no sync."""
        self.directories = directories
        self.end_offset = end_offset
        self.generation = generation

    def run(self, fs: FileSystem) -> OSError | None:
        """On a thread: sync the files, then the directories that name them."""
        try:
            for file in self.files:
                if isinstance(file, str):
                    _sync_path(fs, file)
                else:
                    file.sync()
            for directory in self.directories:
                fs.sync_directory(directory)
        except OSError as error:
            return error
        return None


def _sync_path(fs: FileSystem, path: str) -> None:
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


class SyncedLog(Protocol):
    """What group commit needs of a log."""

    def begin_sync(self) -> SyncWork | None: ...

    def finish_sync(self, work: SyncWork, error: OSError | None) -> None: ...


class GroupCommit:
    """Hands the syncs of all logs to threads. Used on the loop only."""

    def __init__(self, fs: FileSystem, executor: Executor, *, defer: Post, post: Post) -> None:
        self._fs = fs
        self._executor = executor
        self._defer = defer
        self._post = post
        self._waiting: list[SyncedLog] = []
        self._running = 0
        self._start_deferred = False
        self._can_sync_everything = True
        self._idle_callbacks: list[Callable[[], None]] = []

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def request(self, log: SyncedLog) -> None:
        """Sync this log soon. A log asks again only after `finish_sync`."""
        self._waiting.append(log)
        if not self._start_deferred:
            self._start_deferred = True
            self._defer(self._start)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once nothing waits and nothing runs."""
        if self.idle:
            callback()
        else:
            self._idle_callbacks.append(callback)

    def _start(self) -> None:
        self._start_deferred = False
        free = SYNC_THREADS - self._running
        if free <= 0 or not self._waiting:
            return
        if len(self._waiting) >= SYNC_EVERYTHING_FROM and self._can_sync_everything:
            works = self._take(len(self._waiting))
            if works:
                self._submit(works, together=True)
            return
        per_job = min(LOGS_PER_JOB_MAX, -(-len(self._waiting) // free))
        for _ in range(free):
            works = self._take(per_job)
            if works:
                self._submit(works, together=False)
            if not self._waiting:
                break

    def _take(self, count: int) -> list[SyncWork]:
        logs, self._waiting = self._waiting[:count], self._waiting[count:]
        works = (log.begin_sync() for log in logs)
        return [work for work in works if work is not None]

    def _submit(self, works: list[SyncWork], *, together: bool) -> None:
        self._running += 1
        future: Future[list[OSError | None]] = self._executor.submit(self._run, works, together)
        future.add_done_callback(lambda done: self._post(lambda: self._finished(works, done)))

    def _run(self, works: list[SyncWork], together: bool) -> list[OSError | None]:
        if together:
            try:
                if self._fs.sync_everything():
                    return [None] * len(works)
                self._can_sync_everything = False
            except OSError as error:
                # It does not say whose bytes failed: ask each file, its own descriptor knows.
                logger.warning("syncing the file system failed, syncing each log instead", error=str(error))
        return [work.run(self._fs) for work in works]

    def _finished(self, works: list[SyncWork], done: Future[list[OSError | None]]) -> None:
        self._running -= 1
        failure = done.exception()
        if failure is None:
            outcomes = done.result()
        else:
            outcomes = [OSError(f"the sync thread failed: {failure!r}")] * len(works)
        for work, error in zip(works, outcomes, strict=True):
            work.log.finish_sync(work, error)
        self._start()
        if self._idle_callbacks and self.idle:
            callbacks, self._idle_callbacks = self._idle_callbacks, []
            for callback in callbacks:
                callback()
