"""The rules of replication, one by one, and as properties over random logs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.metadata.model import PartitionInfo
from chronik.replication.leadership import Leadership
from chronik.replication.replica_state import (
    JOIN_WAIT_S,
    EpochEnd,
    FollowerProgress,
    divergence,
    lagging_members,
    may_join,
    next_high_watermark,
    sees_the_past,
    truncation_offset,
)

LAG_S = 30.0


def follower(node_id: int, counted: int, caught_up_at: float = 0.0) -> FollowerProgress:
    progress = FollowerProgress(node_id, caught_up_at)
    progress.end_offset = progress.counted = counted
    return progress


def mark(
    current: int,
    leader: int,
    counted: dict[int, int],
    isr: tuple[int, ...],
    *,
    end: int | None = None,
    now: float = 0.0,
) -> tuple[int, bool]:
    followers = {node_id: follower(node_id, offset) for node_id, offset in counted.items()}
    end = leader if end is None else end
    return next_high_watermark(current, leader, end, followers, isr, lambda node_id: True, now)


# Rules 1 to 3: the high watermark.


def test_the_high_watermark_is_the_least_that_all_members_count() -> None:
    assert mark(0, 10, {2: 7, 3: 9}, (1, 2, 3)) == (7, False)
    assert mark(0, 5, {2: 7, 3: 9}, (1, 2, 3)) == (5, False)
    assert mark(0, 10, {}, (1,)) == (10, False)


def test_a_member_that_has_not_been_compared_holds_it() -> None:
    assert mark(4, 10, {2: -1, 3: 9}, (1, 2, 3)) == (4, False)


def test_it_never_goes_backwards() -> None:
    assert mark(8, 10, {2: 3}, (1, 2)) == (8, False)


def test_a_replica_that_is_no_member_does_not_hold_it_unless_it_is_about_to_join() -> None:
    long_ago = -JOIN_WAIT_S - 1
    slow = {2: follower(2, 3, caught_up_at=long_ago)}
    assert next_high_watermark(0, 10, 10, slow, (1,), lambda _: True, 0.0) == (10, False)
    fresh = {2: follower(2, 3, caught_up_at=-0.1)}
    assert next_high_watermark(0, 10, 10, fresh, (1,), lambda _: True, 0.0) == (3, True)
    assert next_high_watermark(0, 10, 10, fresh, (1,), lambda _: False, 0.0) == (10, False)
    unknown = {2: FollowerProgress(2, 0.0)}
    assert next_high_watermark(0, 10, 10, unknown, (1,), lambda _: True, 0.0) == (10, False)


@given(
    current=st.integers(0, 20),
    leader=st.integers(0, 20),
    counted=st.dictionaries(st.integers(2, 5), st.integers(-1, 20), max_size=4),
    members=st.sets(st.integers(2, 5)),
)
def test_it_is_never_beyond_what_every_member_has(
    current: int, leader: int, counted: dict[int, int], members: set[int]
) -> None:
    isr = (1, *sorted(members & counted.keys()))
    found, _ = mark(current, leader, counted, isr)
    assert found >= current
    least = min([leader, *(counted[node_id] for node_id in isr[1:])])
    assert found <= max(current, least)


# Rule 4: joining and leaving.


def test_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch() -> None:
    assert may_join(follower(2, 10), 10, 10)
    assert not may_join(follower(2, 9), 10, 5)
    assert not may_join(follower(2, 10), 5, 11), "what an earlier leader acknowledged may lie below the epoch's start"


def test_what_is_appended_but_not_synced_does_not_count() -> None:
    progress = FollowerProgress(2, 0.0)
    progress.report(10, 4, 10, 1.0)
    assert (progress.end_offset, progress.counted) == (10, 4)
    assert not may_join(progress, 5, 0)


def test_a_follower_leaves_when_it_has_lagged_for_too_long() -> None:
    progress = FollowerProgress(2, 0.0)
    progress.report(5, 5, 10, 1.0)
    assert not progress.lagging(10, LAG_S, LAG_S)
    assert progress.lagging(10, LAG_S + 0.1, LAG_S)
    assert lagging_members((1, 2), {2: progress}, 10, LAG_S + 0.1, LAG_S) == [2]


def test_a_follower_that_has_everything_never_lags() -> None:
    progress = FollowerProgress(2, 0.0)
    progress.report(10, 10, 10, 1.0)
    assert not progress.lagging(10, 10_000.0, LAG_S)


def test_after_a_long_rest_a_follower_lags_only_from_the_next_append_on() -> None:
    progress = FollowerProgress(2, 0.0)
    progress.report(10, 10, 10, 1.0)
    progress.leader_appended(10, 11, 5000.0)
    assert not progress.lagging(11, 5000.0 + LAG_S, LAG_S)
    assert progress.lagging(11, 5001.0 + LAG_S, LAG_S)


def test_under_constant_load_a_follower_that_keeps_a_constant_distance_does_not_lag() -> None:
    progress = FollowerProgress(2, 0.0)
    progress.report(0, 0, 0, 0.0)
    for step in range(1, 10_000):
        now, end = step / 100, step * 10
        progress.leader_appended(end - 10, end, now)
        progress.report(max(0, end - 30), max(0, end - 30), end, now)
        assert not progress.lagging(end, now, 1.0)


def test_a_follower_that_falls_behind_more_and_more_lags_in_the_end() -> None:
    progress = FollowerProgress(2, 0.0)
    progress.report(0, 0, 0, 0.0)
    lagged = False
    for step in range(1, 1000):
        now, end = step / 100, step * 10
        progress.leader_appended(end - 10, end, now)
        progress.report(step, step, end, now)
        lagged = lagged or progress.lagging(end, now, 1.0)
    assert lagged


def test_who_would_have_to_leave_at_once_does_not_join() -> None:
    """It has what is committed, but has not been at the leader's end for longer than the limit: were it let in, the
    next look would put it out, and so on for as long as it is that slow."""
    leadership = Leadership(1, PartitionInfo(1, 3, 7, (1, 2), (1,)), 0, 0.0)
    slow = leadership.followers[2]
    slow.report(0, 0, 50, 0.0)
    slow.report(40, 40, 100, LAG_S + 1.0)
    assert may_join(slow, 40, 0)
    assert leadership.wanted_isr(40, 100, {2}, LAG_S + 1.0, LAG_S) == (1,)
    slow.report(60, 60, 120, LAG_S + 2.0)
    slow.report(120, 120, 130, LAG_S + 3.0)
    assert leadership.wanted_isr(40, 130, {2}, LAG_S + 3.0, LAG_S) == (1, 2)


# Rule 6: divergence and truncation, over logs as elections make them.

Log = list[int]  # the epoch of the record at each offset; equal epochs at an offset mean equal records up to there


def end_for(log: Log, epoch: int) -> EpochEnd:
    """Storage's answer, as Kafka defines it."""
    if epoch < 0 or not log or epoch > log[-1]:
        return EpochEnd(-1, -1)
    if epoch == log[-1]:
        return EpochEnd(epoch, len(log))
    below = [known for known in log if known <= epoch]
    if not below:
        return EpochEnd(epoch, 0)
    return EpochEnd(below[-1], len(below))


def reconcile(leader: Log, replica: Log) -> tuple[Log, int]:
    """What a follower does until its log is a prefix of the leader's; the log, and how often it was cut."""
    replica = list(replica)
    for rounds in range(50):
        last = replica[-1] if replica else -1
        diverging = divergence(len(replica), last, leader[-1] if leader else -1, len(leader), end_for(leader, last))
        if diverging is None:
            return replica, rounds
        target = truncation_offset(len(replica), diverging, end_for(replica, diverging.epoch))
        assert target < len(replica), "every cut makes progress"
        del replica[target:]
    raise AssertionError("no end of cutting")


def common_prefix(one: Log, other: Log) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@st.composite
def histories(draw: st.DrawFn) -> list[Log]:
    """Logs of three replicas after elections: a leader appends in its epoch, others copy a part of its log."""
    logs: list[Log] = [[], [], []]
    for epoch in range(draw(st.integers(1, 6))):
        leader = draw(st.integers(0, 2))
        logs[leader] = logs[leader] + [epoch] * draw(st.integers(0, 4))
        for replica in range(3):
            if replica != leader and draw(st.booleans()):
                shared, _ = reconcile(logs[leader], logs[replica])
                upto = draw(st.integers(len(shared), max(len(shared), len(logs[leader]))))
                logs[replica] = logs[leader][:upto]
    return logs


@settings(max_examples=80)
@given(histories())
def test_a_follower_is_cut_exactly_to_what_it_has_in_common_with_the_leader(logs: list[Log]) -> None:
    for leader in logs:
        for replica in logs:
            after, _ = reconcile(leader, replica)
            assert after == replica[: common_prefix(leader, replica)]


@pytest.mark.parametrize(
    ("leader", "replica", "expected"),
    [
        ([0, 0, 0], [0, 0, 0], 3),
        ([0, 0, 2], [0, 0, 1, 1], 2),
        ([0, 0], [0, 0, 0], 2),
        ([0, 0, 3, 3], [0, 1, 1, 2], 1),
        ([], [0, 0], 0),
        ([0, 0], [], 0),
    ],
)
def test_cuts_by_example(leader: Log, replica: Log, expected: int) -> None:
    assert len(reconcile(leader, replica)[0]) == expected


def test_a_leader_without_records_has_no_epochs_to_compare() -> None:
    assert divergence(500, 5, -1, 500, EpochEnd(-1, -1)) is None
    assert divergence(501, 5, -1, 500, EpochEnd(-1, -1)) == EpochEnd(-1, 500)


# Rule 7.


def test_metadata_older_than_the_log_is_the_past() -> None:
    assert sees_the_past(5, 4)
    assert not sees_the_past(5, 5)
    assert not sees_the_past(-1, 0)
