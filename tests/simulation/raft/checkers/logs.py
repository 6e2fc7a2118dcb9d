"""Invariants of logs, commits and disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.raft.storage import Recovered
from chronik.raft.types import UNKNOWN_DIRECTORY, Entry, EntryKind, Member, Ready, decode_configuration
from simulation.raft.checkers.checker import Checker
from simulation.raft.node import SimulatedNode

if TYPE_CHECKING:
    from simulation.raft.world import World


class LogMatching(Checker):
    """Entries with the same index and term are the same, and so is everything before them (§5.3).

    That everything before is the same follows if each (index, term) has one content and one predecessor.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._known: dict[tuple[int, int], tuple[Entry, int]] = {}

    def ready(self, node: SimulatedNode, ready: Ready) -> None:
        assert node.core is not None
        log = node.core.log
        for entry in ready.entries:
            fact = (entry, log.term_at(entry.index - 1))
            known = self._known.setdefault((entry.index, entry.term), fact)
            if known == fact:
                continue
            what = "content" if known[0] != entry else "predecessor"
            self.require(False, f"entry {entry.index} of term {entry.term} has another {what} at node {node.node_id}")


class MonotonicCommit(Checker):
    """The commit index of a running node never falls, and what is committed is the same for all, for ever."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[int, tuple[int, int]] = {}

    def touched(self, node: SimulatedNode) -> None:
        core = node.core
        assert core is not None
        incarnation, seen = self._seen.get(node.node_id, (0, 0))
        if incarnation == node.incarnation:
            if core.commit == seen:
                return
            self.require(core.commit > seen, f"node {node.node_id} went back from commit {seen} to {core.commit}")
        else:
            seen = 0
        self._seen[node.node_id] = (node.incarnation, core.commit)
        log, terms = core.log, self.world.ledger.committed_terms
        for index in range(max(seen, log.base_index) + 1, core.commit + 1):
            term = log.term_at(index)
            known = terms.setdefault(index, term)
            self.require(
                term == known, f"node {node.node_id} commits entry {index} of term {term}, others that of term {known}"
            )


class CommittedIsDurable(Checker):
    """A leader commits only an entry of its own term that a majority of the voters has synced (§5.4.2)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._led: dict[int, tuple[int, int, int]] = {}

    def touched(self, node: SimulatedNode) -> None:
        core = node.core
        assert core is not None
        incarnation, term_led, seen = self._led.get(node.node_id, (0, 0, 0))
        if (incarnation, term_led) != (node.incarnation, core.term):
            # A leader that is removed commits its removal and leaves in one step: it is still looked at below.
            if not node.is_leader:
                return
            seen = core.commit if core.log.term_at(core.commit) != core.term else 0
        self._led[node.node_id] = (node.incarnation, core.term if node.is_leader else 0, core.commit)
        if core.commit == seen:
            return
        index, term = core.commit, core.log.term_at(core.commit)
        self.require(term == core.term, f"the leader of term {core.term} commits entry {index} of term {term}")
        voters = core.configuration.voters
        holders = [v.node_id for v in voters.values() if self._has(v.node_id, v.directory_id, index, term)]
        self.require(
            2 * len(holders) > len(voters),
            f"node {node.node_id} commits entry {index}, which of voters {sorted(voters)} only {holders} have stored",
        )
        self.world.ledger.leader_committed(core.term, index)

    def _has(self, node_id: int, directory_id: bytes, index: int, term: int) -> bool:
        return any(
            durable.has(index, term)
            for (owner, directory), durable in self.world.durable.items()
            if owner == node_id and directory_id in (UNKNOWN_DIRECTORY, directory)
        )


class StorageKeepsPromises(Checker):
    """Whatever was synced is there when a node comes back: entries, term and vote."""

    def recovered(self, node: SimulatedNode, recovered: Recovered) -> None:
        durable = self.world.durable.get((node.node_id, node.directory_id))
        if durable is None:
            return
        snapshot, entries = recovered.snapshot, recovered.entries
        for index in range(max(durable.floor, snapshot.index) + 1, durable.last_index + 1):
            position = index - snapshot.index - 1
            found = entries[position].term if position < len(entries) else None
            promised = durable.terms[index - durable.floor - 1]
            # A later write that was not synced may have come through, and cut what an unfinished leader had sent.
            if found != promised and (found is None or found < promised):
                lost = not entries or entries[-1].term <= promised
                self.require(not lost, f"node {node.node_id} lost the synced entry {index} of term {promised}")
        term = recovered.hard_state.term
        self.require(
            term >= durable.hard_state.term,
            f"node {node.node_id} forgot term {durable.hard_state.term}, it came back with {term}",
        )


class OneChangeAtATime(Checker):
    """A leader changes the membership only when the previous change is committed, in its own term, and by one voter."""

    def ready(self, node: SimulatedNode, ready: Ready) -> None:
        core = node.core
        assert core is not None
        if not node.is_leader:
            return
        for entry in ready.entries:
            if entry.kind is not EntryKind.CONFIGURATION or entry.term != core.term:
                continue
            steps = core._state.membership._steps
            previous_index, previous = max((s for s in steps if s[0] < entry.index), key=lambda step: step[0])
            self.require(
                previous_index <= core.commit,
                f"the leader {node.node_id} appends change {entry.index} while {previous_index} is not committed",
            )
            first_of_term = next((i for i in range(core.commit, 0, -1) if core.log.term_at(i) != core.term), 0)
            self.require(
                first_of_term < core.commit or core.commit <= core.log.base_index,
                f"the leader {node.node_id} appends change {entry.index} before committing in term {core.term}",
            )
            moved = _moved(previous.voters, decode_configuration(entry.data).voters)
            self.require(moved <= 1, f"change {entry.index} moves {moved} voters at once")


def _moved(before: dict[int, Member], after: dict[int, Member]) -> int:
    """How many voters came or went. A voter that got another data folder went, and another came."""
    moved = 0
    for node_id in before.keys() | after.keys():
        old, new = before.get(node_id), after.get(node_id)
        if old is None or new is None:
            moved += 1
        elif old.directory_id not in (UNKNOWN_DIRECTORY, new.directory_id):
            moved += 2
    return moved
