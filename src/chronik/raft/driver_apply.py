"""Committed entries to the state machine: each once, in order, in slices that leave room for everything else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import structlog

from chronik.raft.types import Entry, EntryKind, SnapshotMeta

log = structlog.get_logger()

CHUNK_FIRST = 16
CHUNK_MAX = 1024
CHUNK_AIM_S = 0.002


class StateMachine(Protocol):
    """What the log is for. Called on the event loop only. What takes long may be done in slices, by a generator that is
    gone on with in later turns of the loop; until it returns, nothing else is asked of the state machine."""

    def apply(self, entries: Sequence[tuple[int, bytes]]) -> Sequence[object] | Generator[None, None, Sequence[object]]:
        """Applies (index, data) in order; one result each. Raising is fatal for this node's part in the group."""

    def snapshot(self) -> Callable[[], bytes]:
        """Captures the state as of now, cheaply; the callable returned encodes it, on another thread."""

    def restore(self, data: bytes) -> Generator[None, None, None] | None:
        """Replaces the state by that of a snapshot."""


class _Restore:
    __slots__ = ("data", "meta")

    def __init__(self, meta: SnapshotMeta, data: bytes) -> None:
        self.meta = meta
        self.data = data


class Applier:
    """The queue before the state machine."""

    def __init__(
        self,
        state_machine: StateMachine,
        *,
        slice_s: float,
        on_applied: Callable[[Sequence[Entry], Sequence[object]], None],
        on_restored: Callable[[SnapshotMeta], None],
        on_slice_done: Callable[[], None],
        on_failed: Callable[[str, Exception], None],
    ) -> None:
        self._state_machine = state_machine
        self._slice_s = slice_s
        self._on_applied = on_applied
        self._on_restored = on_restored
        self._on_slice_done = on_slice_done
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Sequence[Entry] | _Restore] = deque()
        self._slices: Generator[None, None, None] | None = None
        self._position = 0
        self._chunk = CHUNK_FIRST
        self._busy_s = 0.0
        self._scheduled = False
        self._stopped = False
        self.index = 0
        self.term = 0
        self.bytes_since_snapshot = 0

    @property
    def is_idle(self) -> bool:
        return not self._queue and self._slices is None

    @property
    def is_between_slices(self) -> bool:
        """Whether the state machine is in the middle of something: its state is not that of any entry."""
        return self._slices is not None

    def start_at(self, meta: SnapshotMeta) -> None:
        """The state machine holds what this snapshot says."""
        self.index, self.term = meta.index, meta.term

    def add(self, entries: Sequence[Entry]) -> None:
        """Entries that follow what was added before."""
        self._queue.append(entries)

    def restore(self, meta: SnapshotMeta, data: bytes) -> None:
        """A snapshot takes the place of everything before."""
        self._queue.append(_Restore(meta, data))

    def stop(self) -> None:
        self._stopped = True
        self._queue.clear()

    def run(self) -> None:
        """Applies for one slice; goes on by itself in later turns of the loop while there is more."""
        if self._scheduled or self._stopped or self.is_idle:
            return
        deadline = self._loop.time() + self._slice_s
        while not self.is_idle and not self._stopped:
            try:
                self._step()
            except Exception as error:
                self._stopped = True
                self._queue.clear()
                self._on_failed(f"applying after entry {self.index} failed: {type(error).__name__}: {error}", error)
                return
            if not self.is_idle and self._loop.time() >= deadline:
                self._scheduled = True
                self._loop.call_soon(self._run_again)
                break
        self._on_slice_done()

    def _run_again(self) -> None:
        self._scheduled = False
        self.run()

    def _step(self) -> None:
        if self._slices is None:
            head = self._queue[0]
            if isinstance(head, _Restore):
                self._queue.popleft()
                self._slices = self._restore(head)
            else:
                chunk = head[self._position : self._position + self._chunk]
                self._position += len(chunk)
                if self._position >= len(head):
                    self._queue.popleft()
                    self._position = 0
                self._slices = self._apply(chunk)
        started = self._loop.time()
        try:
            next(self._slices)
        except StopIteration:
            self._slices = None
        self._busy_s += self._loop.time() - started

    def _restore(self, head: _Restore) -> Generator[None, None, None]:
        slices = self._state_machine.restore(head.data)
        if slices is not None:
            yield from slices
        self.start_at(head.meta)
        self.bytes_since_snapshot = 0
        self._on_restored(head.meta)

    def _apply(self, chunk: Sequence[Entry]) -> Generator[None, None, None]:
        first = chunk[0].index
        if first != self.index + 1:
            raise ValueError(f"entry {first} was handed over after entry {self.index}")
        started = self._loop.time()
        self._busy_s = 0.0
        data = [(entry.index, entry.data) for entry in chunk if entry.kind is EntryKind.DATA]
        results = self._state_machine.apply(data) if data else []
        if isinstance(results, Generator):
            results = yield from results
        self._adapt(len(chunk), self._busy_s or self._loop.time() - started)
        if len(results) != len(data):
            raise ValueError(f"the state machine gave {len(results)} results for {len(data)} entries")
        if len(data) != len(chunk):
            given = iter(results)
            results = [next(given) if entry.kind is EntryKind.DATA else None for entry in chunk]
        last = chunk[-1]
        self.index, self.term = last.index, last.term
        self.bytes_since_snapshot += sum(len(entry.data) for entry in chunk)
        self._on_applied(chunk, results)

    def _adapt(self, size: int, took_s: float) -> None:
        if took_s > 2 * CHUNK_AIM_S:
            self._chunk = max(1, self._chunk // 2)
        elif took_s < CHUNK_AIM_S / 2 and size == self._chunk:
            self._chunk = min(CHUNK_MAX, self._chunk * 2)
