"""Writing down how far each log is: recovery points, high watermarks, log starts, epochs, producer snapshots.

A recovery point promises that everything below it needs no scan: records, epochs, aborted transactions and producer
state are on the disk. So the small files of a log are synced first, and the recovery points after them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from chronik.storage.checkpoints import (
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    RECOVERY_POINTS,
    PartitionKey,
    format_epochs,
    write_offsets,
)
from chronik.storage.files import FileSystem
from chronik.storage.group_commit import SYNC_EVERYTHING_FROM
from chronik.storage.log_state import LogServices, LogState
from chronik.storage.partition_log import PartitionLog
from chronik.storage.producer_snapshot import encode_snapshot
from chronik.storage.segment import SNAPSHOT_SUFFIX, segment_name

SYNC_WAIT_S = 0.05
SYNC_WAITS_MAX = 40
"""A checkpoint waits this often for the syncs of the logs it covers; those that are slower are in the next one."""

logger = structlog.get_logger()


@dataclass(slots=True)
class Capture:
    """The state of one log at one moment, to be written on a thread."""

    log: PartitionLog
    offset: int
    generation: int
    epochs: bytes | None = None
    snapshot: bytes | None = None
    obsolete_snapshots: list[int] = field(default_factory=list)
    to_sync: list[str] = field(default_factory=list)

    def write(self, fs: FileSystem) -> tuple[list[str], list[str]]:
        """On a thread: write the small files of the log; (paths to sync, those of them to rename after that)."""
        directory = self.log.directory
        paths = list(self.to_sync)
        to_rename: list[str] = []
        if self.epochs is not None:
            # A checksum guards a snapshot, nothing guards this: it gets its name when its contents are on the disk.
            to_rename.append(_write_new(fs, f"{directory}/{LEADER_EPOCHS}.tmp", self.epochs))
        if self.snapshot is not None:
            paths.append(_write_new(fs, f"{directory}/{segment_name(self.offset)}{SNAPSHOT_SUFFIX}", self.snapshot))
        for offset in self.obsolete_snapshots:
            fs.remove(f"{directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}")
        return paths + to_rename, to_rename


def _write_new(fs: FileSystem, path: str, data: bytes) -> str:
    file = fs.open(path, create=True)
    file.truncate(0)
    file.write_at(0, data)
    file.close()
    return path


def sync_paths(fs: FileSystem, paths: list[str]) -> None:
    """On a thread: make files and their names durable, many of them with one sync of the file system.

    What was deleted meanwhile needs no sync.
    """
    if len(paths) >= SYNC_EVERYTHING_FROM and fs.sync_everything():
        return
    for path in dict.fromkeys(paths):
        with suppress(FileNotFoundError):
            file = fs.open(path)
            file.sync()
            file.close()
    for directory in {path.rpartition("/")[0] for path in paths}:
        with suppress(FileNotFoundError):
            fs.sync_directory(directory)


class Checkpointer:
    """Writes the checkpoints of all logs of a node."""

    def __init__(self, services: LogServices, logs: Mapping[PartitionKey, PartitionLog], executor: Executor) -> None:
        self._services = services
        self._logs = logs
        self._executor = executor
        self._lock = threading.Lock()
        self._lowered: dict[PartitionKey, int] = {}
        """Recovery points that a truncation lowered while a checkpoint was being written."""
        self._in_flight: dict[PartitionKey, int] = {}
        """Recovery points that are being written; they may be on the disk already."""
        self._dropped: set[PartitionKey] = set()
        """Partitions that began anew while a checkpoint was being written."""
        self.recorded: set[PartitionKey] = set()
        """Partitions that the checkpoints on disk say something about."""
        services.lower_recovery_point = self._lower_recovery_point
        services.begin_log = self._begin_log

    async def run(self) -> None:
        """Write one round of checkpoints, if anything changed. OSError is logged; the next round tries again."""
        changed, self._services.changed = self._services.changed, set()
        if not changed and self.recorded <= self._logs.keys():
            return
        captures = [self.capture(log) for log in changed if isinstance(log, PartitionLog) and self._is_current(log)]
        captures = await self._wait_for_syncs(captures)
        try:
            await self.write(captures)
        except OSError as error:
            logger.error("checkpoints could not be written, a restart would take longer", error=str(error))
            self._services.changed |= changed

    def _is_current(self, log: PartitionLog) -> bool:
        """Whether a log is not deleted."""
        return self._logs.get((log.topic, log.partition)) is log

    def capture(self, log: PartitionLog) -> Capture:
        """On the loop: what the small files of a log must say for a recovery point at its end."""
        synced_mode = log.config.synced
        capture = Capture(log, log.end_offset if synced_mode else log.flushed_offset, log.generation)
        if not log.segments or log.failure is not None:
            capture.offset = log.checkpointed_offset
            return capture
        if log.epochs_changed and log.epochs is not None:
            capture.epochs = format_epochs(log.epochs.entries())
            log.epochs_changed = False
        try:
            aborted = log.segments[-1].write_aborted(self._services.fs)
            if aborted is not None:
                capture.to_sync.append(aborted)
        except OSError as error:
            logger.warning("aborted transactions could not be written yet", log=repr(log), error=str(error))
            capture.offset = log.checkpointed_offset
            return capture
        states = log.producer_states
        newest = log.snapshot_offsets[-1] if log.snapshot_offsets else -1
        if synced_mode and states is not None and states.changed_at >= newest and capture.offset > newest:
            capture.snapshot = encode_snapshot(states)
            # Snapshots at the base of a segment stay with it; of the others, the last one stays until this is safe.
            bases = set(log.bases)
            capture.obsolete_snapshots = [offset for offset in log.snapshot_offsets[:-1] if offset not in bases]
        return capture

    def capture_for_close(self, log: PartitionLog) -> Capture | None:
        """As `capture`, for the last time: nothing is left to be found by walking. None when nothing changed."""
        capture = self.capture(log)
        unsynced = log.end_offset > log.flushed_offset
        capture.offset = log.end_offset
        for segment in log.segments:
            if segment.index.pending or segment.time_index.pending:
                capture.to_sync += segment.write_indexes(self._services.fs)
        if unsynced:
            capture.to_sync += [
                segment.log_slot.path for segment in log.segments if segment.next_offset > log.flushed_offset
            ]
        states = log.producer_states
        if states is not None and states.entries and capture.offset not in log.snapshot_offsets:
            capture.snapshot = encode_snapshot(states)
        if capture.epochs is None and capture.snapshot is None and not capture.to_sync:
            return None if log.checkpointed_offset == log.end_offset else capture
        return capture

    async def _wait_for_syncs(self, captures: list[Capture]) -> list[Capture]:
        for _ in range(SYNC_WAITS_MAX):
            if all(capture.offset <= capture.log.flushed_offset for capture in captures):
                return captures
            await asyncio.sleep(SYNC_WAIT_S)
        ready: list[Capture] = []
        for capture in captures:
            if capture.offset <= capture.log.flushed_offset:
                ready.append(capture)
            else:
                capture.log.epochs_changed = capture.log.epochs_changed or capture.epochs is not None
                self._services.changed.add(capture.log)
        return ready

    async def write(self, captures: list[Capture]) -> None:
        """Write captured states and, after them, the checkpoints of all logs."""
        captures = [capture for capture in captures if self._is_current(capture.log) and self._still_true(capture)]
        points = self._recovery_points()
        with self._lock:
            self._dropped.clear()
            for capture in captures:
                key = (capture.log.topic, capture.log.partition)
                self._lowered.pop(key, None)
                points[key] = self._in_flight[key] = capture.offset
        tables = self._tables()
        try:
            await asyncio.wrap_future(self._executor.submit(self._write_all, captures, points, tables))
        finally:
            self._in_flight.clear()
        self.recorded = set(points).union(*(offsets for _, offsets in tables))
        for capture in captures:
            self._install(capture)

    def _still_true(self, capture: Capture) -> bool:
        """Whether a log was not truncated since it was captured, while its syncs were waited for.

        What was written after the cut may reach beyond the captured offset, but it has other epochs: the next
        checkpoint takes the log as it is then.
        """
        log = capture.log
        if capture.generation == log.generation:
            return True
        log.epochs_changed = log.epochs_changed or capture.epochs is not None
        self._services.changed.add(log)
        return False

    def _install(self, capture: Capture) -> None:
        log = capture.log
        if not self._is_current(log):
            self._undo(capture)
            return
        if capture.generation != log.generation:
            # Truncated meanwhile: the snapshot is of records that are gone, and the recovery point was lowered.
            if capture.snapshot is not None and capture.offset > log.end_offset:
                self._services.fs.remove(f"{log.directory}/{segment_name(capture.offset)}{SNAPSHOT_SUFFIX}")
            self._services.changed.add(log)
            return
        log.checkpointed_offset = capture.offset
        if capture.snapshot is not None:
            gone = set(capture.obsolete_snapshots)
            # A roll may have written a newer one meanwhile.
            log.snapshot_offsets = sorted({*log.snapshot_offsets, capture.offset} - gone)

    def _undo(self, capture: Capture) -> None:
        """A log was deleted while its small files were written: if the name is in use again, they are in its folder."""
        successor = self._logs.get((capture.log.topic, capture.log.partition))
        if successor is None or not successor.segments:
            return
        if capture.snapshot is not None and capture.offset not in successor.snapshot_offsets:
            self._services.fs.remove(f"{successor.directory}/{segment_name(capture.offset)}{SNAPSHOT_SUFFIX}")
        successor.epochs_changed = successor.epochs is not None
        self._services.changed.add(successor)

    def _recovery_points(self) -> dict[PartitionKey, int]:
        return {key: log.checkpointed_offset for key, log in self._logs.items() if log.segments}

    def _tables(self) -> list[tuple[str, dict[PartitionKey, int]]]:
        """The other checkpoints: name and offsets. A log that has nothing to say is left out."""
        logs = self._logs.items()
        return [
            (HIGH_WATERMARKS, {key: log.high_watermark for key, log in logs if log.high_watermark}),
            (LOG_STARTS, {key: log.log_start_offset for key, log in logs if log.log_start_offset}),
            (CLEANER_POINTS, {key: log.cleaned_to for key, log in logs if log.cleaned_to}),
        ]

    def _write_all(
        self,
        captures: Iterable[Capture],
        points: dict[PartitionKey, int],
        tables: list[tuple[str, dict[PartitionKey, int]]],
    ) -> None:
        """On a thread."""
        fs, root = self._services.fs, self._services.root
        paths: list[str] = []
        renames: list[str] = []
        for capture in captures:
            with suppress(FileNotFoundError):  # deleted meanwhile
                written, to_rename = capture.write(fs)
                paths += written
                renames += to_rename
        sync_paths(fs, paths)
        for path in renames:
            with suppress(FileNotFoundError):
                fs.rename(path, path.removesuffix(".tmp"))
        sync_paths(fs, [path.removesuffix(".tmp") for path in renames])
        with self._lock:
            for key, offset in self._lowered.items():
                if key in points:
                    points[key] = min(points[key], offset)
            for name, offsets in [(RECOVERY_POINTS, points), *tables]:
                kept = {key: offset for key, offset in offsets.items() if key not in self._dropped}
                write_offsets(fs, f"{root}/{name}", kept)

    def _lower_recovery_point(self, log: LogState, offset: int) -> None:
        """On the loop, and waited for if it matters: bytes from `offset` on are about to be rewritten."""
        key = (log.topic, log.partition)
        if offset >= max(log.checkpointed_offset, self._in_flight.get(key, 0)):
            return
        with self._lock:
            self._lowered[key] = offset
            log.checkpointed_offset = offset
            write_offsets(self._services.fs, f"{self._services.root}/{RECOVERY_POINTS}", self._recovery_points())

    def _begin_log(self, log: LogState) -> None:
        """On the loop: a partition gets its first file. What checkpoints say of another log of its name must go first.

        Usually it is gone already: a deletion asks for a checkpoint.
        """
        key = (log.topic, log.partition)
        if key not in self.recorded and key not in self._in_flight:
            return
        fs, root = self._services.fs, self._services.root
        with self._lock:
            self._dropped.add(key)
            for name, offsets in [(RECOVERY_POINTS, self._recovery_points()), *self._tables()]:
                offsets.pop(key, None)
                write_offsets(fs, f"{root}/{name}", offsets)
        log.checkpointed_offset = 0
        self.recorded.discard(key)
