"""What a node of the group keeps on disk: the log and hard state (`wal.py`), snapshots (`snapshots.py`), who it is.

    directory.id     the id made with this folder; a node whose folder was emptied gets another: not the same voter
    cluster.id       the cluster this folder belongs to, once it is known
    wal-*.log        the write-ahead log
    snapshot-*.snap  the last two snapshots

All calls block. `save`, `reset` and `trim` belong to one thread (the log's), `snapshots` to one other; they touch
different files, so that writing a large snapshot never delays an append. What is not here: threads, and when to do what
(`driver.py`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from chronik.raft.files import FileSystem, OsFileSystem, write_durably
from chronik.raft.snapshots import SnapshotStore, SnapshotTooNew
from chronik.raft.types import DIRECTORY_ID_BYTES, Entry, HardState, SnapshotMeta
from chronik.raft.wal import (
    SEGMENT_BYTES,
    LogPoint,
    WalCorrupt,
    WalRecord,
    WalState,
    WalTooNew,
    WriteAheadLog,
    WriteLost,
)

log = structlog.get_logger()

FORMAT = 1
SAVE_FRAME_BYTES = 16 * 1024 * 1024
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class StorageError(Exception):
    """Consensus storage cannot do what was asked; the message says why and what to do."""


class StorageFull(StorageError):
    """The disk is full. Nothing was written; the same call can be made again when there is space."""


class StorageFailed(StorageError):
    """A write or sync failed. What is durable is unknown, so this node must not take part until it is restarted."""


class StorageCorrupt(StorageError):
    """What is on disk contradicts itself; this node must not take part with it."""


class StorageTooNew(StorageError):
    """A newer version wrote what is on disk. Nothing was changed; the newer version can go on with it."""


class Recovered(msgspec.Struct):
    """What was found on disk: `entries` follow `snapshot`."""

    hard_state: HardState
    snapshot: SnapshotMeta
    snapshot_data: bytes | None
    entries: list[Entry]


class _Identity(msgspec.Struct, frozen=True):
    format: int
    directory_id: str


def _random_id() -> bytes:
    return os.urandom(DIRECTORY_ID_BYTES)


class RaftStorage:
    """The consensus folder of one node."""

    def __init__(
        self,
        folder: Path,
        fs: FileSystem | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        make_id: Callable[[], bytes] = _random_id,
    ) -> None:
        self.folder = folder
        self._fs = fs or OsFileSystem()
        self._make_id = make_id
        self._wal = WriteAheadLog(self._fs, folder, segment_bytes=segment_bytes)
        self.snapshots = SnapshotStore(self._fs, folder)
        self.directory_id = b""
        self.cluster_id: str | None = None
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more, if so."""
        return self._failure

    @property
    def log_bytes(self) -> int:
        return self._wal.size_bytes

    # --- opening -------------------------------------------------------------------------------------------------

    def open(self) -> Recovered:
        """Reads the folder, creating it when it is not there, and checks that log and snapshot fit together."""
        try:
            return self._open()
        except WalCorrupt as error:
            raise StorageCorrupt(str(error)) from error
        except (WalTooNew, SnapshotTooNew) as error:
            raise StorageTooNew(str(error)) from error
        except OSError as error:
            raise StorageFailed(f"the consensus log in {self.folder} cannot be opened: {error}") from error

    def _open(self) -> Recovered:
        self._fs.make_folder(self.folder)
        self._open_identity()
        newest = self.snapshots.open()
        meta, data = newest if newest is not None else (SnapshotMeta(), None)
        state = self._wal.open()
        entries = self._entries_after(meta, state)
        self._wal.trim(0)
        last = entries[-1] if entries else Entry(meta.term, meta.index)
        hard_state = self._fitting(state.hard_state, meta, last)
        return Recovered(hard_state, meta, data, entries)

    def _open_identity(self) -> None:
        path = self.folder / "directory.id"
        if self._fs.exists(path):
            try:
                identity = msgspec.json.decode(self._fs.read(path), type=_Identity)
                self.directory_id = bytes.fromhex(identity.directory_id)
            except (msgspec.DecodeError, ValueError) as error:
                raise StorageCorrupt(f"{path} cannot be read ({error}). Restore it from a copy") from error
            if identity.format > FORMAT:
                raise StorageTooNew(
                    f"{self.folder} has format {identity.format}, made by a newer Chronik; this one reads up to "
                    f"{FORMAT}. Nothing was changed; start this node with the newer version again"
                )
        elif any(name.startswith("wal-") for name in self._fs.names(self.folder)):
            raise StorageCorrupt(
                f"{path} is missing but the log beside it is not. Restore the file from a copy, or empty "
                f"{self.folder} and add the node to the cluster again"
            )
        else:
            self.directory_id = self._make_id()
            identity = _Identity(FORMAT, self.directory_id.hex())
            write_durably(self._fs, path, [msgspec.json.encode(identity) + b"\n"])
        cluster_path = self.folder / "cluster.id"
        if self._fs.exists(cluster_path):
            self.cluster_id = self._fs.read(cluster_path).decode().strip()

    def _entries_after(self, meta: SnapshotMeta, state: WalState) -> list[Entry]:
        if state.floor > meta.index:
            raise StorageCorrupt(
                f"the log in {self.folder} begins after entry {state.floor}, but the newest intact snapshot ends at "
                f"entry {meta.index}. Restore the missing snapshot from a copy (a damaged one ends in .corrupt), or "
                f"empty the folder and add the node to the cluster again"
            )
        at = meta.index - state.floor
        known_term = state.entries[at - 1].term if 0 < at <= len(state.entries) else meta.term
        if known_term == meta.term and state.end.index >= meta.index:
            return state.entries[at:]
        # The snapshot came from a leader, and the crash came before the log was reset to it.
        self._wal.append(WalRecord(reset=LogPoint(meta.index, meta.term)), sync=True)
        return []

    def _fitting(self, hard_state: HardState, meta: SnapshotMeta, last: Entry) -> HardState:
        if hard_state.commit > last.index:
            raise StorageCorrupt(
                f"the log in {self.folder} ends at entry {last.index}, but this node had seen entry "
                f"{hard_state.commit} committed. Its end was lost: empty the folder and add the node to the "
                f"cluster again"
            )
        if last.term > hard_state.term:
            hard_state = HardState(last.term, commit=hard_state.commit)
        return msgspec.structs.replace(hard_state, commit=max(hard_state.commit, meta.index))

    def set_cluster_id(self, cluster_id: str) -> None:
        """Remembers, for ever, which cluster this folder belongs to."""
        if self.cluster_id not in (None, cluster_id):
            raise StorageError(
                f"{self.folder} belongs to cluster {self.cluster_id}, not to {cluster_id}. Use another data folder"
            )
        if self.cluster_id is None:
            self._guarded(lambda: write_durably(self._fs, self.folder / "cluster.id", [cluster_id.encode() + b"\n"]))
            self.cluster_id = cluster_id

    # --- the log's thread ----------------------------------------------------------------------------------------

    def save(self, entries: Sequence[Entry], hard_state: HardState | None, *, sync: bool) -> None:
        """Appends entries (replacing what is stored at or after their indexes) and the hard state, in one sync."""
        self._guarded(lambda: self._save(list(entries), hard_state, None, sync))

    def reset(self, meta: SnapshotMeta, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        """Forgets the log in favour of the snapshot `meta`, which is already in its place, then saves, synced."""
        point = LogPoint(meta.index, meta.term)
        self._guarded(lambda: self._save(list(entries), hard_state, point, True))

    def _save(self, entries: list[Entry], hard_state: HardState | None, reset: LogPoint | None, sync: bool) -> None:
        start = size = 0
        for position, entry in enumerate(entries):
            size += len(entry.data)
            if size > SAVE_FRAME_BYTES and position > start:
                self._wal.append(WalRecord(entries[start:position], None, reset), sync=False)
                reset = None
                start, size = position, len(entry.data)
        self._wal.append(WalRecord(entries[start:], hard_state, reset), sync=sync)

    def sync(self) -> None:
        """Makes durable what was saved without a sync."""
        self._guarded(self._wal.sync)

    def trim(self, index: int) -> None:
        """Removes the files of the log that hold nothing after `index`."""
        removed = 0

        def run() -> None:
            nonlocal removed
            removed = self._wal.trim(index)

        self._guarded(run)
        if removed:
            log.info("trimmed the consensus log", through_index=index, files=removed, bytes_left=self._wal.size_bytes)

    def _guarded(self, write: Callable[[], None]) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure)
        try:
            write()
        except OSError as error:
            if error.errno in _FULL_DISK:
                raise StorageFull(f"no space left for the consensus log in {self.folder}: free some") from error
            self._fail(error)
        except WriteLost as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = (
            f"writing the consensus log in {self.folder} failed: {error}. This node takes no further part; check the "
            f"disk, then restart it"
        )
        raise StorageFailed(self._failure) from error

    def close(self) -> None:
        """Closes the log; nothing is synced that was not already."""
        self._wal.close()
