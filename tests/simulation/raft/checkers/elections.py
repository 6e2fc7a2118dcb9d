"""Invariants of elections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.raft.storage import Recovered
from chronik.raft.types import NO_NODE, UNKNOWN_DIRECTORY, HardState, Ready
from simulation.raft.checkers.checker import Checker
from simulation.raft.node import SimulatedNode

if TYPE_CHECKING:
    from simulation.raft.world import World


class OneLeaderPerTerm(Checker):
    """At most one node leads a term (election safety, §5.2)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._leaders: dict[int, tuple[int, bytes]] = {}

    def touched(self, node: SimulatedNode) -> None:
        assert node.core is not None
        if node.is_leader:
            me = (node.node_id, node.directory_id)
            leader = self._leaders.setdefault(node.core.term, me)
            self.require(leader == me, f"nodes {leader[0]} and {node.node_id} both lead term {node.core.term}")


class OneVotePerTerm(Checker):
    """A data folder stores at most one vote per term, and its term never falls (§5.1, §5.2)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.votes: dict[tuple[int, bytes, int], tuple[int, bytes]] = {}
        self._terms: dict[tuple[int, bytes], int] = {}

    def stored(self, node: SimulatedNode, ready: Ready) -> None:
        if ready.hard_state is not None and ready.must_sync:
            self._remember(node, ready.hard_state)

    def recovered(self, node: SimulatedNode, recovered: Recovered) -> None:
        self._remember(node, recovered.hard_state)

    def _remember(self, node: SimulatedNode, hard_state: HardState) -> None:
        folder = (node.node_id, node.directory_id)
        known = self._terms.get(folder, 0)
        self.require(hard_state.term >= known, f"node {node.node_id} fell from term {known} to {hard_state.term}")
        self._terms[folder] = hard_state.term
        if hard_state.vote == NO_NODE:
            return
        choice = (hard_state.vote, hard_state.vote_directory_id)
        vote = self.votes.setdefault((*folder, hard_state.term), choice)
        self.require(
            vote == choice, f"node {node.node_id} voted for {vote[0]} and {choice[0]} in term {hard_state.term}"
        )


class LeaderHasQuorumOfVotes(Checker):
    """A leader has stored votes of a majority of the voters it knows, each by the data folder that is that voter."""

    def __init__(self, world: World, votes: OneVotePerTerm) -> None:
        super().__init__(world)
        self._votes = votes.votes
        self._checked: set[tuple[int, int]] = set()

    def touched(self, node: SimulatedNode) -> None:
        core = node.core
        assert core is not None
        if not node.is_leader or (node.node_id, core.term) in self._checked:
            return
        self._checked.add((node.node_id, core.term))
        voters = core.configuration.voters
        choice = (node.node_id, node.directory_id)
        in_favour = [
            member.node_id
            for member in voters.values()
            if any(
                self._votes.get((member.node_id, directory, core.term)) == choice
                for directory in self._directories(member.node_id, member.directory_id)
            )
        ]
        self.require(
            2 * len(in_favour) > len(voters),
            f"node {node.node_id} leads term {core.term} of voters {sorted(voters)} by the votes of {in_favour}",
        )

    def _directories(self, node_id: int, directory_id: bytes) -> list[bytes]:
        if directory_id != UNKNOWN_DIRECTORY:
            return [directory_id]
        return [directory for owner, directory in self.world.durable if owner == node_id]


class LeaderCompleteness(Checker):
    """A leader has every entry that was committed in an earlier term (§5.4)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._checked: set[tuple[int, int]] = set()

    def touched(self, node: SimulatedNode) -> None:
        core = node.core
        assert core is not None
        if not node.is_leader or (node.node_id, core.term) in self._checked:
            return
        self._checked.add((node.node_id, core.term))
        index = self.world.ledger.committed_before(core.term)
        if index > core.log.base_index:
            term = self.world.ledger.committed_terms[index]
            self.require(
                core.log.term_at(index) == term,
                f"node {node.node_id} leads term {core.term} without the committed entry {index} of term {term}",
            )
