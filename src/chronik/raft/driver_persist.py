"""From `Ready` to disk: one write and one sync at a time, in order; what gathers meanwhile goes in the next one.

A commit index that moved by itself is not worth a sync or a turn of the disk thread: it is kept aside and written with
whatever is written next. What is not here: files (`storage.py`), and what happens before and after (`driver.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from chronik.raft.driver_worker import Worker
from chronik.raft.storage import RaftStorage, StorageFull
from chronik.raft.types import Entry, HardState, Ready, SnapshotMeta

log = structlog.get_logger()


def _runs(batch: list[Ready]) -> list[list[Entry]]:
    """The entries of a batch as few lists as possible; a list that goes back in the log starts a new one."""
    runs: list[list[Entry]] = []
    for ready in batch:
        if not ready.entries:
            continue
        if runs and ready.entries[0].index == runs[-1][-1].index + 1:
            runs[-1] += ready.entries
        else:
            runs.append(list(ready.entries))
    return runs


class Persistence:
    """The queue before the disk. `on_stored` gets each `Ready` in order, as soon as all of it is durable."""

    def __init__(
        self,
        storage: RaftStorage,
        log_worker: Worker,
        snapshot_worker: Worker,
        *,
        on_stored: Callable[[list[Ready]], None],
        on_installed: Callable[[SnapshotMeta, bytes], None],
        on_failed: Callable[[str, BaseException], None],
        full_retry_s: float,
    ) -> None:
        self._storage = storage
        self._log_worker = log_worker
        self._snapshot_worker = snapshot_worker
        self._on_stored = on_stored
        self._on_installed = on_installed
        self._on_failed = on_failed
        self._full_retry_s = full_retry_s
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Ready] = deque()
        self._in_flight: list[Ready] = []
        self._busy_since: float | None = None
        self._unsaved: HardState | None = None
        self._stopped = False
        self.syncs = 0
        self.is_full = False

    @property
    def is_idle(self) -> bool:
        return not self._in_flight and not self._queue

    def busy_for_s(self) -> float:
        """How long the disk has been at work on what it was last given."""
        return self._loop.time() - self._busy_since if self._busy_since is not None else 0.0

    def stop(self) -> None:
        self._stopped = True

    def add(self, ready: Ready) -> None:
        self._queue.append(ready)

    def run(self) -> None:
        """Begins the next write, unless one is under way."""
        while self._queue and not self._in_flight and not self._stopped:
            batch = self._next_batch()
            if batch[0].snapshot is not None:
                self._install(batch[0].snapshot, batch)
            elif any(ready.must_sync for ready in batch):
                self._write(batch, None)
            else:
                self._keep_aside(batch)
                self._on_stored(batch)

    def _next_batch(self) -> list[Ready]:
        batch = [self._queue.popleft()]
        if batch[0].snapshot is None:
            while self._queue and self._queue[0].snapshot is None:
                batch.append(self._queue.popleft())
        return batch

    def _keep_aside(self, batch: list[Ready]) -> None:
        for ready in batch:
            self._unsaved = ready.hard_state or self._unsaved

    # --- a snapshot of the leader takes the place of the log -------------------------------------------------------

    def _install(self, meta: SnapshotMeta, batch: list[Ready]) -> None:
        self._in_flight = batch
        self._busy_since = self._loop.time()

        def installed(data: bytes | None, error: BaseException | None) -> None:
            if self._stopped:
                return
            if error is not None:
                self._on_failed(f"the snapshot through entry {meta.index} could not be installed: {error}", error)
                return
            assert data is not None
            self._write(batch, meta, data)

        self._snapshot_worker.submit(lambda: self._storage.snapshots.install(meta), installed)

    # --- writing ---------------------------------------------------------------------------------------------------

    def _write(self, batch: list[Ready], snapshot: SnapshotMeta | None, data: bytes = b"") -> None:
        self._in_flight = batch
        if self._busy_since is None:
            self._busy_since = self._loop.time()
        self._keep_aside(batch)
        hard_state = self._unsaved
        runs = _runs(batch) or [[]]
        storage = self._storage

        def work() -> None:
            if snapshot is not None:
                storage.reset(snapshot, runs[0], hard_state if len(runs) == 1 else None)
            else:
                storage.save(runs[0], hard_state if len(runs) == 1 else None, sync=len(runs) == 1)
            for run in runs[1:]:
                last = run is runs[-1]
                storage.save(run, hard_state if last else None, sync=last)

        def done(_: None, error: BaseException | None) -> None:
            if self._stopped:
                return
            if isinstance(error, StorageFull):
                self._retry(work, done, error)
                return
            if error is not None:
                self._on_failed(str(error), error)
                return
            if self.is_full:
                log.info("there is space for the consensus log again")
            self.is_full = False
            self.syncs += 1
            if self._unsaved is hard_state:
                self._unsaved = None
            self._in_flight = []
            self._busy_since = None
            if snapshot is not None:
                self._on_installed(snapshot, data)
            self._on_stored(batch)

        self._log_worker.submit(work, done)

    def _retry(
        self, work: Callable[[], None], done: Callable[[None, BaseException | None], None], error: StorageFull
    ) -> None:
        if not self.is_full:
            log.error("the consensus log cannot be written; this node waits for space", reason=str(error))
        self.is_full = True
        self._loop.call_later(self._full_retry_s, self._log_worker.submit, work, done)

    def save_commit(self) -> None:
        """Writes a commit index that was kept aside, without a sync and without anybody waiting for it."""
        hard_state = self._unsaved
        if hard_state is None or self._in_flight or self._stopped:
            return
        self._unsaved = None

        def done(_: None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, StorageFull) and not self._stopped:
                self._on_failed(str(error), error)

        self._log_worker.submit(lambda: self._storage.save([], hard_state, sync=False), done)

    async def flush(self) -> None:
        """For a graceful stop: the last commit index, synced."""
        hard_state, self._unsaved = self._unsaved, None
        if hard_state is not None and self._storage.failure is None:
            await self._log_worker.run(lambda: self._storage.save([], hard_state, sync=True))
