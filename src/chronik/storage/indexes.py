"""The two sparse indexes of a segment, in Kafka's formats: `.index` (offset → position), `.timeindex` (time → offset).

An index is a hint: it tells where to begin to walk, and one that is short or missing costs a longer walk, never a wrong
answer. So entries gather in memory and are written some hundred at a time, when the segment rolls, and when the log
closes; they are not synced with the data.

`.index`: 8 bytes per entry: offset of the last record of a batch relative to the base offset (i32), position of that
batch (i32). `.timeindex`: 12 bytes per entry: largest timestamp so far (i64), relative offset of its batch's last
record (i32). Both ascend.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

PENDING_ENTRIES_MAX = 256
"""Entries that gather in memory before they are written; after a crash, so many are found again by walking."""

TAIL_ENTRIES_MAX = 512
"""Entries of the offset index kept in memory for reads near the end of a log; older ones are searched in the file."""

MAX_RELATIVE_OFFSET = 0x7FFFFFFF

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qi")

ReadIndex = Callable[[int, int], "bytes | bytearray | None"]
"""Read (position, size) of an index file; None when that would wait for the disk and the caller must not."""


class OffsetIndex:
    """The `.index` of one segment: its newest entries in memory, all but the pending ones in the file."""

    __slots__ = ("_first", "_offsets", "_positions", "in_file")

    def __init__(self, in_file: int = 0) -> None:
        self.in_file = in_file
        self._first = in_file
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return self._first + len(self._offsets)

    @property
    def pending(self) -> int:
        return self._first + len(self._offsets) - self.in_file

    def add(self, relative_offset: int, position: int) -> None:
        self._offsets.append(relative_offset)
        self._positions.append(position)

    def floor_in_memory(self, relative_offset: int) -> int:
        """Position of the newest entry not above the offset; −1 when it must be looked up in the file."""
        at = bisect_right(self._offsets, relative_offset)
        if at:
            return self._positions[at - 1]
        return 0 if self._first == 0 else -1

    def floor_position_in_memory(self, position: int) -> int:
        """The largest indexed position not above `position`; −1 when it must be looked up in the file."""
        at = bisect_right(self._positions, position)
        if at:
            return self._positions[at - 1]
        return 0 if self._first == 0 else -1

    def floor_in_file(self, relative_offset: int, read: ReadIndex) -> int:
        """As `floor_in_memory`, over the entries in the file; −1 when `read` would wait."""
        return self._search_file(relative_offset, 0, read)

    def floor_position_in_file(self, position: int, read: ReadIndex) -> int:
        return self._search_file(position, 1, read)

    def _search_file(self, target: int, field: int, read: ReadIndex) -> int:
        low, high = 0, min(self._first, self.in_file)
        best = 0
        while low < high:
            middle = (low + high) // 2
            raw = read(middle * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
            if raw is None:
                return -1
            if len(raw) < OFFSET_ENTRY_BYTES:  # the file is shorter than it was: use what is there
                high = middle
                continue
            entry = _OFFSET_ENTRY.unpack(raw)
            if entry[field] <= target:
                best = entry[1]
                low = middle + 1
            else:
                high = middle
        return best

    def pending_bytes(self) -> bytes:
        """The entries that the file lacks, as it holds them."""
        start = self.in_file - self._first
        flat = array("I", bytes(4 * 2 * (len(self._offsets) - start)))
        flat[0::2] = self._offsets[start:]
        flat[1::2] = self._positions[start:]
        if sys.byteorder == "little":
            flat.byteswap()
        return flat.tobytes()

    def written(self, entries: int) -> None:
        """So many pending entries are in the file now; the oldest may leave the memory."""
        self.in_file += entries
        surplus = min(len(self._offsets) - TAIL_ENTRIES_MAX // 2, self.in_file - self._first)
        if surplus > 0:
            del self._offsets[:surplus]
            del self._positions[:surplus]
            self._first += surplus

    def truncate(self, relative_offset: int, position: int, read: ReadIndex) -> None:
        """Drop the entries of batches that begin at or after `position` or reach `relative_offset`."""
        while self._offsets and (self._offsets[-1] >= relative_offset or self._positions[-1] >= position):
            self._offsets.pop()
            self._positions.pop()
        if not self._offsets:
            low, high = 0, self._first
            while low < high:
                middle = (low + high) // 2
                raw = read(middle * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
                if raw is None or len(raw) < OFFSET_ENTRY_BYTES:
                    high = middle
                    continue
                offset, at = _OFFSET_ENTRY.unpack(raw)
                if offset < relative_offset and at < position:
                    low = middle + 1
                else:
                    high = middle
            self._first = low
        self.in_file = min(self.in_file, len(self))


class TimeIndex:
    """The `.timeindex` of one segment: what is pending in memory, the rest in the file."""

    __slots__ = ("_pending", "in_file", "last_offset", "last_timestamp")

    def __init__(self, in_file: int = 0, last_timestamp: int = -1, last_offset: int = -1) -> None:
        self.in_file = in_file
        self.last_timestamp = last_timestamp
        self.last_offset = last_offset
        """Relative to the base offset."""
        self._pending: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self.in_file + len(self._pending)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def add(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if the time has moved on; entries with equal times would say nothing."""
        if timestamp > self.last_timestamp:
            self._pending.append((timestamp, relative_offset))
            self.last_timestamp, self.last_offset = timestamp, relative_offset

    def floor(self, timestamp: int, read: ReadIndex) -> int:
        """Relative offset up to which every timestamp is below `timestamp`'s entry; 0 when nothing is known."""
        best = 0
        low, high = 0, self.in_file
        while low < high:
            middle = (low + high) // 2
            raw = read(middle * TIME_ENTRY_BYTES, TIME_ENTRY_BYTES)
            if raw is None or len(raw) < TIME_ENTRY_BYTES:
                high = middle
                continue
            time, offset = _TIME_ENTRY.unpack(raw)
            if time < timestamp:
                best = offset
                low = middle + 1
            else:
                high = middle
        for time, offset in self._pending:
            if time >= timestamp:
                break
            best = offset
        return best

    def pending_bytes(self) -> bytes:
        pack = _TIME_ENTRY.pack
        return b"".join([pack(time, offset) for time, offset in self._pending])

    def written(self, entries: int) -> None:
        del self._pending[:entries]
        self.in_file += entries

    def truncate(self, relative_offset: int, read: ReadIndex) -> None:
        """Drop the entries for records at or after the offset."""
        while self._pending and self._pending[-1][1] >= relative_offset:
            self._pending.pop()
        if self._pending:
            self.last_timestamp, self.last_offset = self._pending[-1]
            return
        low, high = 0, self.in_file
        last = (-1, -1)
        while low < high:
            middle = (low + high) // 2
            raw = read(middle * TIME_ENTRY_BYTES, TIME_ENTRY_BYTES)
            if raw is None or len(raw) < TIME_ENTRY_BYTES:
                high = middle
                continue
            time, offset = _TIME_ENTRY.unpack(raw)
            if offset < relative_offset:
                last = (time, offset)
                low = middle + 1
            else:
                high = middle
        self.in_file = low
        self.last_timestamp, self.last_offset = last


def valid_offset_entries(raw: bytes, log_size: int) -> int:
    """How many leading entries of an `.index` can be believed: ascending, and inside the log."""
    last_offset, last_position = -1, -1
    count = 0
    for offset, position in _OFFSET_ENTRY.iter_unpack(raw[: len(raw) - len(raw) % OFFSET_ENTRY_BYTES]):
        if offset <= last_offset or position <= last_position or position >= log_size:
            break
        last_offset, last_position = offset, position
        count += 1
    return count


def offset_entry(raw: bytes, number: int) -> tuple[int, int]:
    """Relative offset and position of one entry of an `.index`."""
    offset, position = _OFFSET_ENTRY.unpack_from(raw, number * OFFSET_ENTRY_BYTES)
    return offset, position


def time_entries(raw: bytes) -> list[tuple[int, int]]:
    """The leading entries (timestamp, relative offset) of a `.timeindex` that ascend."""
    entries: list[tuple[int, int]] = []
    last_time, last_offset = -1, -1
    for time, offset in _TIME_ENTRY.iter_unpack(raw[: len(raw) - len(raw) % TIME_ENTRY_BYTES]):
        if time <= last_time or offset < last_offset:
            break
        last_time, last_offset = time, offset
        entries.append((time, offset))
    return entries
