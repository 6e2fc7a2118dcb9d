"""The write-ahead log of consensus: entries and hard state, in checksummed frames, in segments of a named size.

The file is only ever appended to. An entry replaces everything before it in the log that has its index or a higher
one, the last hard state wins, a reset (an installed snapshot) forgets all entries before it. Each segment opens with
the hard state and the end of the log at that point, so the segments before it can be removed without losing either.

    frame    magic u32, length u32, crc u32, sequence u64, synced u64, payload (msgpack `WalRecord`)

`synced` says up to which sequence everything was durable when the frame was written. It tells a torn tail from damage:
an unreadable frame that nothing later claims to have been synced was never acknowledged and is cut off; one that was
synced is damage, and opening the log fails rather than forget what this node has promised. A frame that a newer
version wrote is neither: the last byte of the magic is the version of the frame, and a frame of a later version, or an
intact one whose content this version does not know, stops the opening before anything is cut.

What is not here: snapshots, and the decision how far to trim (`storage.py`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from chronik.raft.files import AppendFile, FileSystem
from chronik.raft.types import Entry, HardState

log = structlog.get_logger()

SEGMENT_BYTES = 16 * 1024 * 1024
FRAME_BYTES_MAX = 64 * 1024 * 1024
FRAME_VERSION = ord("1")
FRAME_MAGIC = 0x43524C00 | FRAME_VERSION
_HEADER = struct.Struct("<IIIQQ")
_MAGIC_BYTES = struct.pack("<I", FRAME_MAGIC)
_FAMILY = _MAGIC_BYTES[1:]
_CHECKED = struct.Struct("<IQQ")
_PREFIX = "wal-"
_SUFFIX = ".log"


class WalCorrupt(Exception):
    """The log is damaged in a place that had been made durable. The message says where and what can be done."""


class WalTooNew(Exception):
    """A newer version wrote a part of the log that this one cannot read. Nothing was changed."""


class WriteLost(Exception):
    """A sync failed, or a failed write could not be taken back: what is on the disk is unknown from here on."""


class LogPoint(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A place in the log."""

    index: int = 0
    term: int = 0


class WalRecord(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The payload of a frame. `reset` comes before `entries`; `start` is only in the first frame of a segment."""

    entries: list[Entry] = []
    hard_state: HardState | None = None
    reset: LogPoint | None = None
    start: LogPoint | None = None


class WalState(msgspec.Struct):
    """What the log holds: `entries` are contiguous and follow the index `floor`, before which nothing is known."""

    hard_state: HardState
    entries: list[Entry]
    floor: int = 0

    @property
    def end(self) -> LogPoint:
        return LogPoint(self.entries[-1].index, self.entries[-1].term) if self.entries else LogPoint(self.floor)

    def replay(self, record: WalRecord, first: bool) -> None:
        """Takes in the next record. `first` allows the segment start to say where the known log begins."""
        if first and record.start is not None:
            self.floor = record.start.index
            self.entries = []
        if record.reset is not None:
            self.floor = record.reset.index
            self.entries = []
        if record.entries:
            at = record.entries[0].index
            if at <= self.floor:
                self.floor, self.entries = at - 1, []
            elif at <= self.floor + len(self.entries):
                del self.entries[at - self.floor - 1 :]
            elif at != self.floor + len(self.entries) + 1:
                raise WalCorrupt(f"entry {at} follows entry {self.floor + len(self.entries)}: entries are missing")
            self.entries.extend(record.entries)
        if record.hard_state is not None:
            self.hard_state = record.hard_state


class _Segment(msgspec.Struct):
    """A file of the log. `last_index` is the highest index of any entry in it, also of entries replaced later."""

    path: Path
    first_sequence: int
    size: int = 0
    last_index: int = 0


class _Frame(msgspec.Struct):
    """An intact frame. `record` is None when its content is not known to this version."""

    position: int
    end: int
    sequence: int
    synced: int
    record: WalRecord | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WalRecord).decode


def _parse_frame(data: bytes, position: int) -> _Frame | None:
    """The frame at `position`, or None when there is no whole and intact one."""
    if position + _HEADER.size > len(data):
        return None
    magic, length, crc, sequence, synced = _HEADER.unpack_from(data, position)
    start = position + _HEADER.size
    if magic != FRAME_MAGIC or start + length > len(data):
        return None
    payload = memoryview(data)[start : start + length]
    if zlib.crc32(payload, zlib.crc32(_CHECKED.pack(length, sequence, synced))) != crc:
        return None
    record: WalRecord | None
    try:
        record = _decode(payload)
    except msgspec.DecodeError:
        record = None
    return _Frame(position, start + length, sequence, synced, record)


def _newer_version(data: bytes, position: int) -> int | None:
    """The version of the frame that begins at `position`, if it is one that only a newer Chronik reads.

    A write that was torn leaves zeros, or nothing, where the version should be.
    """
    start = data[position : position + len(_MAGIC_BYTES)]
    return start[0] if start[1:] == _FAMILY and start[0] > FRAME_VERSION else None


def _frames_after_damage(data: bytes, position: int) -> Iterator[_Frame]:
    """Every intact frame found anywhere after `position`."""
    while (position := data.find(_MAGIC_BYTES, position)) >= 0:
        frame = _parse_frame(data, position)
        if frame is not None:
            yield frame
        position += 1


def _refuse_newer(path: Path, data: bytes, position: int) -> None:
    version = _newer_version(data, position)
    if version is not None:
        raise WalTooNew(_too_new(path, position, f"a frame of version {chr(version)!r}, not {chr(FRAME_VERSION)!r}"))


def _too_new(path: Path, position: int, what: str) -> str:
    return (
        f"{path} has {what}, at byte {position}: a newer Chronik wrote it. Nothing was changed; start this node with "
        f"the newer version again"
    )


class WriteAheadLog:
    """The log on disk. All calls block. After `WriteLost` nothing may be written any more."""

    def __init__(self, fs: FileSystem, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._fs = fs
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._stale: list[_Segment] = []
        self._torn_at_start: list[str] = []
        self._file: AppendFile | None = None
        self._next_sequence = 1
        self._synced_sequence = 0
        self._hard_state = HardState()
        self._end = LogPoint()

    @property
    def hard_state(self) -> HardState:
        return self._hard_state

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def open(self) -> WalState:
        """Reads everything, cuts a torn tail, and makes what was found durable before anyone can rely on it."""
        names = [name for name in self._fs.names(self._folder) if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
        segments = [_Segment(self._folder / name, int(name[len(_PREFIX) : -len(_SUFFIX)])) for name in sorted(names)]
        state = WalState(HardState(), [])
        for position, segment in enumerate(segments):
            self._read_segment(segment, state, segments[position + 1 :])
        # Only now, when all of it was found readable, is anything changed.
        for name in self._torn_at_start:
            log.warning("removed a segment of the consensus log whose first write was torn", file=name)
            self._fs.remove(self._folder / name)
            self._fs.sync_folder(self._folder)
        self._torn_at_start.clear()
        if self._segments:
            # A process that was killed leaves bytes that only the page cache holds; nothing may rest on those.
            last = self._segments[-1]
            self._file = self._fs.open_append(last.path)
            self._file.truncate(last.size)
            self._file.sync()
            self._fs.sync_folder(self._folder)
        self._synced_sequence = self._next_sequence - 1
        self._hard_state = state.hard_state
        self._end = state.end
        return state

    def _read_segment(self, segment: _Segment, state: WalState, later: list[_Segment]) -> None:
        data = self._fs.read(segment.path)
        frame = _parse_frame(data, 0)
        joins = bool(self._segments) and segment.first_sequence == self._next_sequence
        if frame is None:
            self._require_torn(segment, data, 0, later)
            self._torn_at_start.append(segment.path.name)
            return
        if not joins:
            # Segments before a gap were trimmed, and their removal reached the disk in part. Start over from here;
            # the caller checks that the snapshot reaches this far.
            self._stale.extend(self._segments)
            self._segments.clear()
            self._next_sequence = segment.first_sequence
        first = not joins
        while frame is not None and frame.sequence == self._next_sequence:
            record = frame.record
            if record is None:
                raise WalTooNew(_too_new(segment.path, frame.position, "a record that this version does not know"))
            state.replay(record, first)
            first = False
            if record.entries:
                segment.last_index = max(segment.last_index, record.entries[-1].index)
            segment.size = frame.end
            self._next_sequence += 1
            frame = _parse_frame(data, segment.size)
        if segment.size < len(data):
            self._require_torn(segment, data, segment.size, later)
            log.warning(
                "cut the torn tail of the consensus log",
                file=segment.path.name,
                position=segment.size,
                bytes_cut=len(data) - segment.size,
            )
        self._segments.append(segment)

    def _require_torn(self, segment: _Segment, data: bytes, position: int, later: list[_Segment]) -> None:
        """Raises unless the unreadable frame at `position`, the next in sequence, can be a write never synced."""
        sequence = self._next_sequence if position or self._segments else segment.first_sequence
        damaged = any(frame.synced >= sequence for frame in _frames_after_damage(data, position))
        for other in later:
            following = self._fs.read(other.path)
            damaged = damaged or any(frame.synced >= sequence for frame in _frames_after_damage(following, 0))
        if damaged:
            raise WalCorrupt(
                f"{segment.path} is damaged at byte {position}: that part had been made durable, and what follows it "
                f"is intact. This node cannot know what it promised. Restore the file from a copy made before the "
                f"damage, or empty the data folder and add the node to the cluster again"
            )
        _refuse_newer(segment.path, data, position)

    def append(self, record: WalRecord, *, sync: bool) -> None:
        """Writes one frame; with `sync` it and all before it are durable when this returns.

        A write that fails is taken back before its OSError is raised, so that a full disk can be tried again.
        """
        hard_state = record.hard_state or self._hard_state
        segment = self._segments[-1] if self._segments else None
        # A segment whose first write was taken back is empty still, and its next write is the one that opens it.
        if segment is None or self._file is None or not 0 < segment.size < self._segment_bytes:
            segment = self._roll()
            record = WalRecord(record.entries, hard_state, record.reset, self._end)
        assert self._file is not None
        payload = _encode(record)
        if len(payload) > FRAME_BYTES_MAX:
            raise ValueError(f"a record of {len(payload)} bytes is over the limit of {FRAME_BYTES_MAX} bytes per frame")
        checked = _CHECKED.pack(len(payload), self._next_sequence, self._synced_sequence)
        crc = zlib.crc32(payload, zlib.crc32(checked))
        header = _HEADER.pack(FRAME_MAGIC, len(payload), crc, self._next_sequence, self._synced_sequence)
        try:
            self._file.append([header, payload])
        except OSError:
            self._take_back(segment)
            raise
        segment.size += len(header) + len(payload)
        self._next_sequence += 1
        self._hard_state = hard_state
        if record.reset is not None:
            self._end = record.reset
        if record.entries:
            self._end = LogPoint(record.entries[-1].index, record.entries[-1].term)
            segment.last_index = max(segment.last_index, self._end.index)
        if sync:
            self.sync()

    def _take_back(self, segment: _Segment) -> None:
        assert self._file is not None
        try:
            self._file.truncate(segment.size)
        except OSError as error:
            raise WriteLost(f"cannot take back a failed write to {segment.path}: {error}") from error

    def sync(self) -> None:
        """Makes everything appended so far durable."""
        if self._file is None or self._synced_sequence == self._next_sequence - 1:
            return
        try:
            self._file.sync()
            if self._segments[-1].first_sequence > self._synced_sequence:
                self._fs.sync_folder(self._folder)
        except OSError as error:
            # The kernel may have dropped the dirty pages; a second sync would succeed and mean nothing.
            raise WriteLost(f"cannot sync {self._segments[-1].path}: {error}") from error
        self._synced_sequence = self._next_sequence - 1

    def _roll(self) -> _Segment:
        """Starts a new segment; the old one is made durable first, so that only the last can ever be torn."""
        if self._segments and not self._segments[-1].size:
            return self._segments[-1]  # its first write failed and was taken back
        self.sync()
        path = self._folder / f"{_PREFIX}{self._next_sequence:020d}{_SUFFIX}"
        file = self._fs.open_append(path)
        if self._file is not None:
            self._file.close()
        self._file = file
        self._segments.append(_Segment(path, self._next_sequence))
        return self._segments[-1]

    def trim(self, index: int) -> int:
        """Removes the oldest segments that hold nothing after `index`, never the one in use; returns how many."""
        self.sync()
        for stale in self._stale:
            self._fs.remove(stale.path)
        removed = len(self._stale)
        self._stale.clear()
        while len(self._segments) > 1 and self._segments[0].last_index <= index:
            self._fs.remove(self._segments[0].path)
            del self._segments[0]
            removed += 1
        if removed:
            self._fs.sync_folder(self._folder)
        return removed

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
