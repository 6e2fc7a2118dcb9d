"""Invariants that clients see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.raft.types import ReadState
from simulation.raft.checkers.checker import Checker
from simulation.raft.node import SimulatedNode

if TYPE_CHECKING:
    from simulation.raft.world import World


class AcknowledgedIsNeverLost(Checker):
    """A proposal that was acknowledged is in the history at its index, once, and in every member in the end."""

    def acknowledged(self, node: SimulatedNode, index: int, data: bytes) -> None:
        ledger = self.world.ledger
        self.require(
            index in ledger.entries and ledger.entries[index].data == data,
            f"node {node.node_id} acknowledges {data!r} at {index}, where there is something else",
        )
        ledger.acknowledged[index] = data

    def finished(self) -> None:
        ledger, world = self.world.ledger, self.world
        where: dict[bytes, int] = {}
        for index, entry in ledger.entries.items():
            if entry.data and entry.data.startswith(b"p"):
                first = where.setdefault(entry.data, index)
                self.require(first == index, f"{entry.data!r} was applied at {first} and at {index}")
        leader = world.chaos.leader()
        assert leader is not None
        for index, data in ledger.acknowledged.items():
            self.require(index <= leader.machine.index, f"acknowledged {data!r} at {index} is gone")
            self.require(ledger.entries[index].data == data, f"acknowledged {data!r} at {index} was replaced")


class LinearizableReads(Checker):
    """A read sees everything that was committed before it was asked for (thesis §6.4)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._floor: dict[int, int] = {}

    def read_taken(self, node: SimulatedNode, context: int) -> None:
        self._floor[context] = self.world.ledger.highest_committed

    def read_served(self, node: SimulatedNode, read: ReadState) -> None:
        floor = self._floor[read.context]
        self.world.counts["reads"] += 1
        self.require(
            read.index >= floor,
            f"node {node.node_id} serves a read at {read.index}, but {floor} was committed before it was asked for",
        )
