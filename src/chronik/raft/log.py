"""The replicated log as the core sees it: the entries since the last compaction, in memory, and four positions in it.

    base < ... applied <= applying <= commit ... stable <= handed <= last

`base` is the entry before the first one kept. `applied` has been applied, `applying` has been handed out for it;
`stable` is known to be stored on this node's disk, `handed` has been handed out to be stored. Nothing is read from or
written to a disk here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from chronik.raft.errors import SafetyViolation
from chronik.raft.types import Entry, SnapshotMeta

ENTRY_OVERHEAD_BYTES = 32
"""What an entry is counted for besides its data, on the wire and in memory."""

UNKNOWN_TERM = -1


def _term_of(entry: Entry) -> int:
    return entry.term


class RaftLog:
    """Entries after `base_index`, with the last snapshot that stands for everything before."""

    __slots__ = (
        "_base_bytes",
        "_bytes_through",
        "applied",
        "applying",
        "base_index",
        "base_term",
        "commit",
        "entries",
        "handed",
        "last_index",
        "snapshot",
        "stable",
    )

    def __init__(self, snapshot: SnapshotMeta, entries: Sequence[Entry], commit: int) -> None:
        """`entries` are what the disk held: they may start before the end of the snapshot, but not leave a gap."""
        self.snapshot = snapshot
        self.base_index = snapshot.index
        self.base_term = snapshot.term
        self.entries: list[Entry] = []
        self.last_index = snapshot.index
        self._base_bytes = 0
        self._bytes_through: list[int] = []
        if entries and entries[0].index <= snapshot.index:
            anchor = entries[0]
            self.base_index = self.last_index = anchor.index
            self.base_term = anchor.term
            entries = entries[1:]
        for expected, entry in enumerate(entries, self.base_index + 1):
            if entry.index != expected:
                raise ValueError(f"the stored log has entry {entry.index} where {expected} belongs: restore this node")
        self.append(entries)
        if self.last_index < snapshot.index or self.term_at(snapshot.index) != snapshot.term:
            self._reset_to(snapshot)
        self.commit = max(snapshot.index, min(commit, self.last_index))
        self.applied = self.applying = snapshot.index
        self.stable = self.handed = self.last_index

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base_term

    @property
    def first_index(self) -> int:
        """The first index whose entry is still kept."""
        return self.base_index + 1

    @property
    def bytes_kept(self) -> int:
        return self._total_bytes() - self._base_bytes

    @property
    def bytes_uncommitted(self) -> int:
        return self._total_bytes() - self._bytes_at(self.commit)

    def bytes_between(self, index: int, last: int) -> int:
        """The size of the entries after `index` and through `last`."""
        return self._bytes_at(last) - self._bytes_at(index)

    def term_at(self, index: int) -> int:
        """The term of the entry at `index`, or UNKNOWN_TERM where it is compacted away or not there yet."""
        position = index - self.base_index
        if 0 < position <= len(self.entries):
            return self.entries[position - 1].term
        return self.base_term if position == 0 else UNKNOWN_TERM

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends in (`last_index`, `last_term`) has all that this one may have committed (§5.4.1)."""
        own_term = self.last_term
        return last_term > own_term or (last_term == own_term and last_index >= self.last_index)

    def slice(self, first: int, last: int) -> list[Entry]:
        """The entries from `first` through `last`, both kept."""
        return self.entries[first - self.base_index - 1 : last - self.base_index]

    def slice_bounded(self, first: int, last: int, entries_max: int, bytes_max: int) -> list[Entry]:
        """As many entries from `first` on as the limits allow, at least one if there is one through `last`."""
        start = first - self.base_index - 1
        end = min(last - self.base_index, start + entries_max)
        if end <= start:
            return []
        limit = self._bytes_at(first - 1) + bytes_max
        if self._bytes_through[end - 1] > limit:
            end = max(start + 1, bisect_right(self._bytes_through, limit, start, end))
        return self.entries[start:end]

    def last_with_term_at_most(self, index: int, term: int) -> tuple[int, int]:
        """The last (index, term) at or before `index` whose term is at most `term`: the last place two logs can agree.

        Where only compacted entries would do, the base stands for them. An unknown term is given as 0.
        """
        if index > self.last_index:
            index = self.last_index
        if index < self.base_index:
            return index, 0
        position = bisect_right(self.entries, term, 0, index - self.base_index, key=_term_of)
        return self.base_index + position, self.entries[position - 1].term if position else self.base_term

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries that follow the last one."""
        total = self._total_bytes()
        through = self._bytes_through
        for entry in entries:
            total += len(entry.data) + ENTRY_OVERHEAD_BYTES
            through.append(total)
        self.entries.extend(entries)
        self.last_index += len(entries)

    def merge(self, entries: Sequence[Entry]) -> int:
        """Take over entries of the leader whose predecessor is known to agree; the first index that changed, or 0.

        Entries already here are left alone: a delayed message must never cut what a later one added (§5.3).
        """
        if not entries:
            return 0
        if entries[0].index == self.last_index + 1:
            self.append(entries)
            return entries[0].index
        for position, entry in enumerate(entries):
            if entry.index > self.last_index:
                self.append(entries[position:])
                return entry.index
            if self.term_at(entry.index) != entry.term:
                self.truncate_from(entry.index)
                self.append(entries[position:])
                return entry.index
        return 0

    def truncate_from(self, index: int) -> None:
        """Forget the entries from `index` on; they were never committed."""
        if index <= self.commit:
            raise SafetyViolation(
                f"a leader contradicts entry {index}, but everything through {self.commit} is committed here: "
                f"stop this node and restore it from the others"
            )
        keep = index - self.base_index - 1
        del self.entries[keep:]
        del self._bytes_through[keep:]
        self.last_index = index - 1
        self.stable = min(self.stable, self.last_index)
        self.handed = min(self.handed, self.last_index)

    def commit_to(self, index: int) -> bool:
        """Raise the commit index, never lower it, never past the last entry; whether it moved."""
        index = min(index, self.last_index)
        if index <= self.commit:
            return False
        self.commit = index
        return True

    def compact(self, snapshot: SnapshotMeta, retained_entries: int) -> None:
        """A snapshot of applied state was stored: let go of what it covers, except for the last `retained_entries`."""
        self.snapshot = snapshot
        new_base = max(self.base_index, snapshot.index - retained_entries)
        drop = new_base - self.base_index
        if drop:
            self.base_term = self.term_at(new_base)
            self._base_bytes = self._bytes_at(new_base)
            del self.entries[:drop]
            del self._bytes_through[:drop]
            self.base_index = new_base

    def restore(self, snapshot: SnapshotMeta) -> None:
        """Replace everything by a snapshot that reaches past the commit index."""
        self.snapshot = snapshot
        self._reset_to(snapshot)
        self.commit = self.applied = self.applying = self.stable = self.handed = snapshot.index

    def _reset_to(self, snapshot: SnapshotMeta) -> None:
        self.entries = []
        self._bytes_through = []
        self._base_bytes = 0
        self.base_index = self.last_index = snapshot.index
        self.base_term = snapshot.term

    def _total_bytes(self) -> int:
        return self._bytes_through[-1] if self._bytes_through else self._base_bytes

    def _bytes_at(self, index: int) -> int:
        position = index - self.base_index
        return self._bytes_through[position - 1] if position > 0 else self._base_bytes
