"""The list of all checkers, in the order in which they look at an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.raft.checkers.checker import Checker
from simulation.raft.checkers.clients import AcknowledgedIsNeverLost, LinearizableReads
from simulation.raft.checkers.elections import (
    LeaderCompleteness,
    LeaderHasQuorumOfVotes,
    OneLeaderPerTerm,
    OneVotePerTerm,
)
from simulation.raft.checkers.logs import (
    CommittedIsDurable,
    LogMatching,
    MonotonicCommit,
    OneChangeAtATime,
    StorageKeepsPromises,
)
from simulation.raft.checkers.machines import ExactlyOnceApply, SnapshotsAreWhole, StateMachineSafety

if TYPE_CHECKING:
    from simulation.raft.world import World


def all_checkers(world: World) -> list[Checker]:
    """Fresh checkers for one run. Liveness is checked by the world itself, when the faults are over."""
    votes = OneVotePerTerm(world)
    return [
        OneLeaderPerTerm(world),
        votes,
        LeaderHasQuorumOfVotes(world, votes),
        LogMatching(world),
        MonotonicCommit(world),
        CommittedIsDurable(world),
        LeaderCompleteness(world),
        StorageKeepsPromises(world),
        OneChangeAtATime(world),
        StateMachineSafety(world),
        ExactlyOnceApply(world),
        SnapshotsAreWhole(world),
        AcknowledgedIsNeverLost(world),
        LinearizableReads(world),
    ]
