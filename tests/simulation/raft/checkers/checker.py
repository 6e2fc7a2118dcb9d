"""What a checker is: something that is shown events, and raises `Violation` when one of them must not have happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.raft.world import World


class Violation(AssertionError):
    """An invariant does not hold. `checker` is its name."""

    def __init__(self, text: str, checker: str) -> None:
        super().__init__(text)
        self.checker = checker


class Checker:
    """Subclasses are named for the invariant, and define the hooks they need, of those that `World.show` is called for:

    recovered(node, recovered)          a data folder was opened
    started(node)                       a core was made from it
    ready(node, ready)                  work was handed out
    stored(node, ready)                 it is on disk
    restored(node, meta)                the state machine was replaced by a snapshot
    applied(node, entry)                the state machine has applied an entry
    snapshot_taken(node, meta, machine) of the state machine
    acknowledged(node, index, data)     a client was told that its proposal is done
    read_taken(node, context), read_served(node, read)
    touched(node)                       something happened to the node; look at it
    finished()                          the run is over
    """

    def __init__(self, world: World) -> None:
        self.world = world

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            raise self.world.violated(self, text)
