"""One segment of a log: a run of batches in `<base offset>.log`, with its indexes.

A segment knows its bytes and how to find a batch in them. It does not know of producers, epochs or durability; the
partition log does. Everything here runs on the loop, except what takes a `File` and says so.
"""

from __future__ import annotations

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchInfo
from chronik.storage.aborted_index import ABORTED_ENTRY, AbortedTransaction, decode_aborted, encode_aborted
from chronik.storage.batch_walk import FRAME, LENGTH_OVERHEAD, SMALLEST_LENGTH, walk
from chronik.storage.files import File, FileSystem, read_whole
from chronik.storage.indexes import (
    MAX_RELATIVE_OFFSET,
    OFFSET_ENTRY_BYTES,
    PENDING_ENTRIES_MAX,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    ReadIndex,
    TimeIndex,
)
from chronik.storage.open_files import FileSlot, OpenFiles
from chronik.storage.ranges import RangeSet

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
ABORTED_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"

CURSORS_MAX = 16
"""Positions where readers of a segment will go on, remembered so that they need no search."""

LOCATE_CHUNK_BYTES = 8 * 1024
ABORTED_BYTES_MAX = 64 * 1024 * 1024
WOULD_WAIT = -1

_FRAME_SIZE = FRAME.size


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Segment:
    """A run of batches; `size` and `next_offset` grow while it is the last one of its log."""

    __slots__ = (
        "_aborted",
        "_aborted_in_file",
        "_bytes_since_index",
        "base_offset",
        "created_ms",
        "cursors",
        "first_timestamp",
        "index",
        "index_slot",
        "log_slot",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "path",
        "size",
        "time_index",
        "trusted_from",
        "verified",
    )

    def __init__(self, directory: str, base_offset: int) -> None:
        self.path = f"{directory}/{segment_name(base_offset)}"
        """Path without suffix."""
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.first_timestamp: int | None = None
        """Timestamp of the first batch, from which the age of the segment counts."""
        self.log_slot = FileSlot(f"{self.path}{LOG_SUFFIX}")
        self.index_slot = FileSlot(f"{self.path}{INDEX_SUFFIX}")
        self.index = OffsetIndex()
        self.time_index = TimeIndex()
        self.trusted_from = 0
        """Bytes from here on were written or checked by this process; those before are checked when first read."""
        self.verified: RangeSet | None = None
        self.cursors: dict[int, int] = {}
        self._bytes_since_index = 0
        self._aborted: list[AbortedTransaction] | None = []
        self._aborted_in_file = 0
        self.created_ms = 0

    # --- writing -------------------------------------------------------------------------------------------------

    def record_appended(self, batches: list[BatchInfo], size: int, interval: int) -> bool:
        """Batches were written at the end of the file; `BatchInfo.position` counts from the start of that write.

        Returns whether the indexes grew.
        """
        start = self.size
        base = self.base_offset
        since = self._bytes_since_index
        indexed = False
        for batch in batches:
            last_offset = batch.base_offset + batch.last_offset_delta
            if batch.max_timestamp > self.max_timestamp:
                self.max_timestamp = batch.max_timestamp
                self.max_timestamp_offset = last_offset
            if since > interval:
                self.index.add(last_offset - base, start + batch.position)
                self.time_index.add(self.max_timestamp, self.max_timestamp_offset - base)
                since = 0
                indexed = True
            since += batch.size
        if self.first_timestamp is None:
            self.first_timestamp = batches[0].max_timestamp
        self._bytes_since_index = since
        self.size = start + size
        self.next_offset = last_offset + 1
        return indexed

    def skip_to_indexed(self, position: int, offset: int) -> None:
        """Recovery begins to walk at a batch that the index knows."""
        self.size = position
        self.next_offset = offset
        self._bytes_since_index = 0

    def skip_to(self, position: int) -> None:
        """Recovery steps over damage; the batch after it is indexed, so that readers can step over it too."""
        self.size = position
        self._bytes_since_index = MAX_RELATIVE_OFFSET

    @property
    def indexes_due(self) -> bool:
        return self.index.pending > PENDING_ENTRIES_MAX or self.time_index.pending > PENDING_ENTRIES_MAX

    def close_time_index(self) -> None:
        """The segment is complete: its last time entry is its largest time, which retention and searches read."""
        if self.max_timestamp >= 0:
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def write_indexes(self, fs: FileSystem) -> list[str]:
        """Write the pending index entries; the paths, for a caller that wants to sync them."""
        touched: list[str] = []
        for index, suffix, entry_bytes in (
            (self.index, INDEX_SUFFIX, OFFSET_ENTRY_BYTES),
            (self.time_index, TIME_INDEX_SUFFIX, TIME_ENTRY_BYTES),
        ):
            pending = index.pending
            path = f"{self.path}{suffix}"
            file = fs.open(path, create=True)
            size = index.in_file * entry_bytes
            if file.size() != size:
                file.truncate(size)
            if pending:
                file.write_at(size, index.pending_bytes())
                index.written(pending)
            touched.append(path)
        return touched

    # --- finding -------------------------------------------------------------------------------------------------

    def locate(self, offset: int, files: OpenFiles) -> int:
        """Position of the batch that holds `offset`, or of the next one; WOULD_WAIT when only the disk can tell."""
        if offset <= self.base_offset:
            return 0
        if offset >= self.next_offset:
            return self.size
        known = self.cursors.get(offset)
        if known is not None:
            return known
        start = self.index.floor_in_memory(offset - self.base_offset)
        if start < 0:
            index_file = files.get(self.index_slot)
            start = self.index.floor_in_file(offset - self.base_offset, index_file.read_nowait)
            if start < 0:
                return WOULD_WAIT
        return self._walk_to(offset, start, files.get(self.log_slot).read_nowait, self.size)

    def locate_waiting(self, offset: int, start: int, log: File, index: File | None, size: int) -> int:
        """As `locate`, on a thread. `start` is what the index in memory says, −1 when it must be read from the file.

        Falls back to a walk from the beginning when the index points to something that is no batch.
        """
        if offset <= self.base_offset:
            return 0
        if start < 0:
            start = 0 if index is None else self.index.floor_in_file(offset - self.base_offset, index.read_at)
        try:
            return self._walk_to(offset, start, log.read_at, size)
        except KafkaError:
            if start == 0:
                raise
            return self._walk_to(offset, 0, log.read_at, size)

    def _walk_to(self, offset: int, position: int, read: ReadIndex, size: int) -> int:
        floor = self.base_offset
        while position < size:
            chunk = read(position, min(LOCATE_CHUNK_BYTES, size - position))
            if chunk is None:
                return WOULD_WAIT
            at = 0
            while len(chunk) - at >= _FRAME_SIZE:
                base, length, last_delta = FRAME.unpack_from(chunk, at)
                if length < SMALLEST_LENGTH or base < floor:
                    raise self.damage(position + at, "what lies there is not a batch, or not in its place")
                floor = base + last_delta + 1
                if floor > offset:
                    return position + at
                at += LENGTH_OVERHEAD + length
            if at == 0:
                raise self.damage(position, f"{len(chunk)} bytes are left, too few for a batch")
            position += at
        return size

    def damage(self, position: int, reason: str) -> KafkaError:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{self.log_slot.path} is damaged at byte {position}: {reason}; the records after the damage can be read "
            "by asking for a later offset, a replica with a sound copy can replace this one",
        )

    def remember_cursor(self, offset: int, position: int) -> None:
        cursors = self.cursors
        if len(cursors) >= CURSORS_MAX:
            del cursors[next(iter(cursors))]
        cursors[offset] = position

    def is_checked(self, start: int, end: int) -> bool:
        return start >= self.trusted_from or (
            self.verified is not None and self.verified.covers(start, min(end, self.trusted_from))
        )

    def mark_checked(self, start: int, end: int) -> None:
        if start < self.trusted_from:
            if self.verified is None:
                self.verified = RangeSet()
            self.verified.add(start, end)

    # --- aborted transactions ------------------------------------------------------------------------------------

    def aborted(self, fs: FileSystem) -> list[AbortedTransaction]:
        """The aborted transactions whose marker lies in this segment, read on first use."""
        if self._aborted is None:
            raw = read_whole(fs, f"{self.path}{ABORTED_SUFFIX}", ABORTED_BYTES_MAX)
            self._aborted = decode_aborted(raw) if raw else []
            self._aborted_in_file = len(self._aborted)
        return self._aborted

    def aborted_is_in_file(self) -> None:
        """The segment was found on disk: read its aborted transactions when they are asked for."""
        self._aborted = None

    def set_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Replace them all; the file has them already."""
        self._aborted = entries
        self._aborted_in_file = len(entries)

    def add_aborted(self, entry: AbortedTransaction, fs: FileSystem) -> None:
        self.aborted(fs).append(entry)

    def write_aborted(self, fs: FileSystem) -> str | None:
        """Write what the `.txnindex` lacks; its path when something was written."""
        entries = self._aborted
        if entries is None or len(entries) == self._aborted_in_file:
            return None
        path = f"{self.path}{ABORTED_SUFFIX}"
        file = fs.open(path, create=True)
        size = self._aborted_in_file * ABORTED_ENTRY.size
        if file.size() != size:
            file.truncate(size)
        file.write_at(size, encode_aborted(entries[self._aborted_in_file :]))
        self._aborted_in_file = len(entries)
        return path

    def cut_aborted(self, offset: int, fs: FileSystem) -> str | None:
        """Drop transactions whose marker is at or after `offset`; the path of the file when it changed."""
        entries = self.aborted(fs)
        kept = [entry for entry in entries if entry.last_offset < offset]
        if len(kept) == len(entries):
            return None
        self._aborted = kept
        if self._aborted_in_file <= len(kept):
            return None
        self._aborted_in_file = len(kept)
        path = f"{self.path}{ABORTED_SUFFIX}"
        fs.open(path, create=True).truncate(len(kept) * ABORTED_ENTRY.size)
        return path

    # --- cutting -------------------------------------------------------------------------------------------------

    def cut(self, offset: int, position: int, fs: FileSystem) -> list[str]:
        """Forget everything from `position`, where `offset` would be; paths of what changed, for the caller to sync.

        The index files are cut at once: entries left over would point into whatever is written there next.
        """
        relative = offset - self.base_offset
        paths = [f"{self.path}{suffix}" for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)]
        index, time_index, log = [fs.open(path, create=True) for path in paths]
        self.index.truncate(relative, position, index.read_at)
        self.time_index.truncate(relative, time_index.read_at)
        index.truncate(self.index.in_file * OFFSET_ENTRY_BYTES)
        time_index.truncate(self.time_index.in_file * TIME_ENTRY_BYTES)
        log.truncate(position)
        self.size = position
        self.next_offset = offset
        self.cursors.clear()
        self.trusted_from = min(self.trusted_from, position)
        if self.verified is not None:
            self.verified.cut(position)
        self._bytes_since_index = 0
        self._restore_largest_time(log, index)
        aborted = self.cut_aborted(offset, fs)
        return paths if aborted is None else [*paths, aborted]

    def _restore_largest_time(self, log: File, index: File) -> None:
        """After a cut: the largest timestamp left, from the time index and the batches that it does not know yet."""
        self.max_timestamp = self.time_index.last_timestamp
        self.max_timestamp_offset = self.base_offset + self.time_index.last_offset
        if self.size == 0:
            self.first_timestamp = None
            return
        start = self.index.floor_position_in_memory(self.size)
        if start < 0:
            start = self.index.floor_position_in_file(self.size, index.read_at)
        for batch in walk(log, start, self.size, check_crc=False):
            if batch.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = batch.max_timestamp, batch.last_offset
