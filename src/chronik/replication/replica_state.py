"""The rules of replication, as plain values and functions: high watermark, in-sync replicas, divergence, truncation.

Theory of operation. A partition has one leader per leader epoch. Every rule below is kept by one function here, and the
rest of the package only carries its answers out.

Rule 1. A replica counts up to an offset only when it holds everything below it durably. In `fsync` mode that is what it
        has synced, in `os` mode what it has appended; logs report both as their synced offset, the leader's included.
Rule 2. What a follower reports counts only after the leader has compared their epochs (rule 6) in this leader epoch.
Rule 3. The high watermark is the least counted offset over the maximal ISR: the members that metadata has, and those
        that a change under way would add; a change under way to remove a member removes nothing yet. It also waits for
        followers that keep up but are not members yet, or they could never overtake it. It never goes backwards.
Rule 4. A follower joins when it counts up to the high watermark and to the start of the leader's epoch. It leaves when
        it has not caught up with the leader's end for longer than the lag limit; who would have to leave at once does
        not join. Time is monotonic.
Rule 5. An ISR change is one command at a time per partition, checked against leader epoch and partition epoch where it
        is applied, and naming the registrations of its members. Until its outcome is known it counts as under way.
Rule 6. Follower and leader compare the epoch of the follower's last record. Where the leader's log ends that epoch
        earlier, or does not have it, the follower cuts its log there, and asks again. Nothing else truncates: the high
        watermark that a follower knows may be older than what was acknowledged.
Rule 7. A replica whose log has a later epoch than the metadata it sees is looking at the past: it takes no role.

No IO and no clock live here: times are arguments, on whichever monotonic clock the caller uses, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

UNKNOWN_OFFSET = -1
NO_EPOCH = -1
JOIN_WAIT_S = 1.0  # how long the high watermark waits for one that keeps up to join; far below the lag limit


class EpochEnd(NamedTuple):
    """The end of an epoch in somebody's log: the largest epoch not above the one asked for, and where it ends."""

    epoch: int
    end_offset: int


class FollowerProgress:
    """What a leader knows about one follower in its own leader epoch."""

    __slots__ = ("caught_up_at", "counted", "end_offset", "log_start_offset", "mark_end", "mark_time", "node_id")

    def __init__(self, node_id: int, now: float) -> None:
        self.node_id = node_id
        self.end_offset = UNKNOWN_OFFSET
        self.counted = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.caught_up_at = now  # a new epoch gives every follower a full lag limit to appear
        self.mark_end = UNKNOWN_OFFSET
        self.mark_time = now

    def validated(self) -> bool:
        """Whether the leader has compared epochs with this follower (rule 2)."""
        return self.counted != UNKNOWN_OFFSET

    def report(self, end_offset: int, synced_offset: int, leader_end: int, now: float) -> None:
        """The follower, whose log is known to be a prefix of the leader's, says how far it is.

        Catching up is measured against a mark, the leader's end at some earlier time, and the mark moves only when it
        is reached: reports may come faster than a record travels and is synced, and must not look like a lag for it.
        """
        self.end_offset = end_offset
        self.counted = min(synced_offset, end_offset)
        if self.counted >= leader_end:
            self.caught_up_at = now
        elif self.counted >= self.mark_end != UNKNOWN_OFFSET:
            self.caught_up_at = max(self.caught_up_at, self.mark_time)
        else:
            if self.mark_end == UNKNOWN_OFFSET:
                self.mark_end, self.mark_time = leader_end, now
            return
        self.mark_end, self.mark_time = leader_end, now

    def leader_appended(self, old_end: int, new_end: int, now: float) -> None:
        """The leader's log grew: a follower that had everything until now starts to lag only now."""
        if self.counted >= old_end:
            self.caught_up_at = now
            self.mark_end, self.mark_time = new_end, now

    def lagging(self, leader_end: int, now: float, lag_limit_s: float) -> bool:
        """Rule 4: it has not caught up for longer than the limit."""
        return self.counted < leader_end and now - self.caught_up_at > lag_limit_s

    def keeps_up(self, leader_end: int, now: float) -> bool:
        """It was at the leader's end a moment ago, so it is about to join (rule 3)."""
        return self.validated() and not self.lagging(leader_end, now, JOIN_WAIT_S)


def next_high_watermark(
    current: int,
    leader_counted: int,
    leader_end: int,
    followers: Mapping[int, FollowerProgress],
    maximal_isr: Container[int],
    eligible: Callable[[int], bool],
    now: float,
) -> tuple[int, bool]:
    """Rule 3. The high watermark, and whether it waits for a follower that is about to join.

    `followers` holds every replica but the leader. `eligible` says whether metadata would let a follower join; it is
    asked only for those that the watermark would wait for.
    """
    mark = leader_counted
    for node_id, progress in followers.items():
        if progress.counted < mark and node_id in maximal_isr:
            mark = progress.counted
    if mark <= current:
        return current, False
    waiting = mark
    for node_id, progress in followers.items():
        if (
            progress.counted < waiting
            and node_id not in maximal_isr
            and progress.keeps_up(leader_end, now)
            and eligible(node_id)
        ):
            waiting = progress.counted
    return max(current, waiting), waiting < mark


def may_join(progress: FollowerProgress, high_watermark: int, epoch_start_offset: int) -> bool:
    """Rule 4, joining."""
    return progress.counted >= high_watermark and progress.counted >= epoch_start_offset


def lagging_members(
    isr: Iterable[int],
    followers: Mapping[int, FollowerProgress],
    leader_end: int,
    now: float,
    lag_limit_s: float,
) -> list[int]:
    """Rule 4, leaving: the members that have to go. The leader itself is in no mapping of followers, and stays."""
    return [
        node_id
        for node_id in isr
        if (progress := followers.get(node_id)) is not None and progress.lagging(leader_end, now, lag_limit_s)
    ]


def divergence(
    fetch_offset: int, last_epoch: int, leader_latest_epoch: int, leader_end: int, leader_epoch_end: EpochEnd
) -> EpochEnd | None:
    """Rule 6, the leader's half: where a follower's log stops being ours, or None when it is a prefix of ours.

    `leader_epoch_end` is the leader's end of the follower's last epoch; a leader that has written nothing in so late an
    epoch ends its own last one at its end. A leader without any record has no epochs to compare.
    """
    if last_epoch == NO_EPOCH or (leader_latest_epoch == NO_EPOCH and fetch_offset <= leader_end):
        return None
    ours = EpochEnd(leader_latest_epoch, leader_end) if last_epoch > leader_latest_epoch else leader_epoch_end
    if ours.epoch < last_epoch or ours.end_offset < fetch_offset:
        return ours
    return None


def truncation_offset(own_end: int, diverging: EpochEnd, own_epoch_end: EpochEnd) -> int:
    """Rule 6, the follower's half: where to cut. `own_epoch_end` is our end of the leader's diverging epoch.

    When we do not have that epoch either, we cut to where our next lower one ends and compare again from there.
    """
    if diverging.epoch == NO_EPOCH:
        return min(max(diverging.end_offset, 0), own_end)
    if own_epoch_end.epoch == NO_EPOCH:
        return min(diverging.end_offset, own_end)
    if own_epoch_end.epoch != diverging.epoch:
        return min(own_epoch_end.end_offset, own_end)
    return min(own_epoch_end.end_offset, diverging.end_offset, own_end)


def sees_the_past(log_latest_epoch: int, metadata_leader_epoch: int) -> bool:
    """Rule 7."""
    return log_latest_epoch > metadata_leader_epoch
