"""What a node's disk has promised to keep, tracked beside the real storage: synced entries, and synced votes.

Kept per data folder: a folder that was wiped is remembered as it was, because what it had promised was true.
"""

from __future__ import annotations

from chronik.raft.types import Entry, HardState, Ready, SnapshotMeta


class DurableLog:
    """The synced log and hard state of one data folder."""

    def __init__(self) -> None:
        self.floor = 0
        self.terms: list[int] = []
        self.hard_state = HardState()

    def store(self, ready: Ready) -> None:
        """All of `ready` was written and synced."""
        if ready.snapshot is not None:
            self.floor, self.terms = ready.snapshot.index, []
        if ready.entries:
            self._append(ready.entries)
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state

    def _append(self, entries: list[Entry]) -> None:
        del self.terms[max(0, entries[0].index - self.floor - 1) :]
        self.terms.extend(entry.term for entry in entries)

    def recover(self, snapshot: SnapshotMeta, entries: list[Entry], hard_state: HardState) -> None:
        """The folder was opened again, and what was found in it is durable now."""
        self.floor = snapshot.index
        self.terms = [entry.term for entry in entries]
        self.hard_state = hard_state

    @property
    def last_index(self) -> int:
        return self.floor + len(self.terms)

    def has(self, index: int, term: int) -> bool:
        """Whether the entry is stored; what a snapshot covers is."""
        position = index - self.floor
        return position <= 0 or (position <= len(self.terms) and self.terms[position - 1] == term)
