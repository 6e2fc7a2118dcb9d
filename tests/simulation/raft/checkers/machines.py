"""Invariants of the replicated state machines and their snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.raft.types import Entry, SnapshotMeta
from simulation.raft.checkers.checker import Checker
from simulation.raft.machine import Machine
from simulation.raft.node import SimulatedNode

if TYPE_CHECKING:
    from simulation.raft.world import World


class StateMachineSafety(Checker):
    """All nodes apply the same entry at the same index, are in the same state after it, and only after its commit."""

    def applied(self, node: SimulatedNode, entry: Entry) -> None:
        ledger, core = self.world.ledger, node.core
        assert core is not None
        known = ledger.entries.get(entry.index)
        if known is None:
            ledger.applied_first(entry)
        else:
            self.require(known == entry, f"node {node.node_id} applies another entry {entry.index} than the others")
        self._compare(node, node.machine)
        self.require(
            entry.index <= ledger.highest_committed,
            f"node {node.node_id} applies entry {entry.index}, but no leader has committed more than "
            f"{ledger.highest_committed}",
        )

    def restored(self, node: SimulatedNode, meta: SnapshotMeta) -> None:
        self._compare(node, node.machine)

    def started(self, node: SimulatedNode) -> None:
        if node.machine.index:
            self._compare(node, node.machine)

    def _compare(self, node: SimulatedNode, machine: Machine) -> None:
        state = (machine.digest, machine.count)
        known = self.world.ledger.machines.setdefault(machine.index, state)
        self.require(
            known == state,
            f"node {node.node_id} at index {machine.index} is in state {state}, others were in {known}",
        )


class ExactlyOnceApply(Checker):
    """A running node applies entry after entry, each once, from its snapshot on; it skips only by a snapshot."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._position: dict[int, int] = {}

    def started(self, node: SimulatedNode) -> None:
        self._position[node.node_id] = node.machine.index

    def restored(self, node: SimulatedNode, meta: SnapshotMeta) -> None:
        position = self._position[node.node_id]
        self.require(meta.index > position, f"node {node.node_id} went back from {position} to snapshot {meta.index}")
        self.require(node.machine.index == meta.index, f"snapshot {meta.index} holds state {node.machine.index}")
        self._position[node.node_id] = meta.index

    def applied(self, node: SimulatedNode, entry: Entry) -> None:
        position = self._position[node.node_id]
        self.require(
            entry.index == position + 1, f"node {node.node_id} has applied {position} and now applies {entry.index}"
        )
        self._position[node.node_id] = entry.index


class SnapshotsAreWhole(Checker):
    """A snapshot has the term, the state and the configuration of its index."""

    def snapshot_taken(self, node: SimulatedNode, meta: SnapshotMeta, machine: Machine) -> None:
        ledger = self.world.ledger
        self.require(machine.index == meta.index, f"snapshot {meta.index} is taken of state {machine.index}")
        term = ledger.committed_terms[meta.index]
        self.require(meta.term == term, f"snapshot {meta.index} is given term {meta.term}, the entry has {term}")
        configuration = ledger.configuration_at(meta.index)
        self.require(
            configuration is None or configuration == meta.configuration,
            f"snapshot {meta.index} of node {node.node_id} does not have the configuration of that index",
        )
