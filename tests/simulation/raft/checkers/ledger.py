"""What is known to be true of a whole run: which entries were committed, by which leader, and what they were.

Not an invariant itself; the checkers compare the nodes with it, and keep it.
"""

from __future__ import annotations

from chronik.raft.types import Configuration, Entry, EntryKind, decode_configuration


class Ledger:
    """Grows as entries are committed and applied for the first time anywhere."""

    def __init__(self) -> None:
        self.committed_terms: dict[int, int] = {}
        self.committed_by_leader_of: dict[int, int] = {}
        self.highest_committed = 0
        self.entries: dict[int, Entry] = {}
        self.machines: dict[int, tuple[int, int]] = {}
        self.configurations: list[tuple[int, Configuration]] = []
        self.acknowledged: dict[int, bytes] = {}

    def leader_committed(self, term: int, index: int) -> None:
        """The leader of `term` has declared everything through `index` committed."""
        self.committed_by_leader_of[term] = max(index, self.committed_by_leader_of.get(term, 0))
        self.highest_committed = max(index, self.highest_committed)

    def committed_before(self, term: int) -> int:
        """The highest index that leaders of earlier terms than `term` have committed."""
        return max((index for other, index in self.committed_by_leader_of.items() if other < term), default=0)

    def applied_first(self, entry: Entry) -> None:
        self.entries[entry.index] = entry
        if entry.kind is EntryKind.CONFIGURATION:
            self.configurations.append((entry.index, decode_configuration(entry.data)))

    def configuration_at(self, index: int) -> Configuration | None:
        """The configuration at `index`, or None as long as none is in the log."""
        found = None
        for step, configuration in self.configurations:
            if step <= index:
                found = configuration
        return found
