"""The classic group protocol: its rules, its states, and what each state answers, as tables. Pure data.

Rule 1. A group is in one of five states; TRANSITIONS says which may follow which.
            Empty                no members; it may have offsets
            PreparingRebalance   waits for members to join, up to the largest rebalance timeout of them
            CompletingRebalance  all who joined know the new generation; waits for the leader's assignment
            Stable               every member has, or may fetch, its assignment
            Dead                 gone; whoever still holds it must look the group up again
Rule 2. A generation begins when joining is complete. Whoever speaks of another generation is refused
        (ILLEGAL_GENERATION), and so is a member the group does not know (UNKNOWN_MEMBER_ID).
Rule 3. Joining is complete when every known member has asked to join, and nobody who was only given a member id is
        still expected; or at the deadline, when those who did not ask are removed. Static members stay.
Rule 4. The first rebalance of an empty group waits `group.initial.rebalance.delay.ms`, again after each newcomer, but
        never longer than the rebalance timeout.
Rule 5. The leader's assignment is answered to nobody before it is in the log. If it cannot be written there, everybody
        is told and the group rebalances.
Rule 6. A member is removed when its session times out. While it waits for an answer to a join or a sync it is alive,
        except a newcomer, whose first join has a deadline of its own.
Rule 7. A static member (one with an instance id) that comes back gets a new member id; the old one is fenced
        (FENCED_INSTANCE_ID). In a stable group this needs no rebalance while the chosen protocol stays the same.
Rule 8. Whoever waits for an answer gets one: also when it is removed, fenced, or the group moves to another node.
Rule 9. Whoever does not fetch its assignment within the rebalance timeout is removed, static or not.

Time comes in as `now_ms`; answers, writes and the next deadline come out (`effects`). Who carries them out is `shard`.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from chronik.protocol.errors import ErrorCode


class State(Enum):
    """The state of a classic group, by the name that tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD}),
    State.COMPLETING_REBALANCE: frozenset({State.PREPARING_REBALANCE, State.STABLE, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.DEAD: frozenset(),
}
"""From a state to those that may follow."""

_NONE = ErrorCode.NONE

HEARTBEAT: dict[State, ErrorCode] = {
    State.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    State.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.COMPLETING_REBALANCE: _NONE,
    State.STABLE: _NONE,
    State.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""The answer to the heartbeat of a member in the right generation."""

SYNC: dict[State, ErrorCode] = {
    State.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    State.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.COMPLETING_REBALANCE: _NONE,
    State.STABLE: _NONE,
    State.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""Why a member in the right generation cannot sync now."""

COMMIT: dict[State, ErrorCode] = {
    State.EMPTY: _NONE,
    State.PREPARING_REBALANCE: _NONE,
    State.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.STABLE: _NONE,
    State.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""Why a member in the right generation cannot commit offsets now. Transactions may, in any state that is alive."""


class ClassicSettings(msgspec.Struct, frozen=True):
    """The broker's settings for classic groups."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 30 * 60 * 1000
    max_size: int = (1 << 31) - 1
    new_member_join_timeout_ms: int = 5 * 60 * 1000
    pending_members_max: int = 10_000
    """Member ids handed out and not used yet, per group; the oldest is forgotten."""
