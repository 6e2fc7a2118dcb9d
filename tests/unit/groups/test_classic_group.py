"""The classic group protocol, rule by rule (see chronik.groups.classic_state)."""

from __future__ import annotations

import itertools

import pytest

from chronik.groups.classic_state import TRANSITIONS, State
from chronik.groups.effects import Persist
from chronik.protocol.errors import ErrorCode
from unit.groups.group_driver import DELAY_MS, REBALANCE_MS, SESSION_MS, Driver


def test_the_first_member_waits_for_others_and_then_leads_alone() -> None:
    driver = Driver()
    ticket = driver.join()
    driver.pass_time(DELAY_MS - 1)
    assert ticket not in driver.answers
    driver.pass_time(1)
    joined = driver.joined(ticket)
    assert joined.error_code == 0
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id == "client-1"
    assert [member.member_id for member in joined.members] == ["client-1"]
    assert driver.group.state is State.COMPLETING_REBALANCE


def test_the_first_rebalance_waits_again_after_each_newcomer_up_to_the_rebalance_timeout() -> None:
    driver = Driver()
    first = driver.join(rebalance_ms=7000)
    driver.pass_time(2000)
    second = driver.join(rebalance_ms=7000)
    driver.pass_time(DELAY_MS - 2000)
    assert first not in driver.answers
    driver.pass_time(1000)
    third = driver.join(rebalance_ms=7000)
    driver.pass_time(3000)
    assert {first, second, third} <= driver.answers.keys(), "7 s after the first join it must be over"
    assert len({driver.joined(ticket).generation_id for ticket in (first, second, third)}) == 1


def test_without_a_delay_a_single_member_is_answered_at_once() -> None:
    driver = Driver(initial_rebalance_delay_ms=0)
    assert driver.joined(driver.join()).error_code == 0


def test_only_the_leader_hears_who_the_members_are() -> None:
    driver = Driver()
    tickets = [driver.join(), driver.join()]
    driver.pass_time(2 * DELAY_MS)
    sizes = sorted(len(driver.joined(ticket).members) for ticket in tickets)
    assert sizes == [0, 2]


def test_a_new_client_is_given_a_member_id_to_join_with() -> None:
    driver = Driver()
    refused = driver.joined(driver.join(version=4))
    assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
    ticket = driver.join(refused.member_id, version=4)
    driver.pass_time(DELAY_MS)
    assert driver.joined(ticket).member_id == refused.member_id


def test_a_member_id_that_is_not_used_within_the_session_timeout_is_forgotten() -> None:
    driver = Driver()
    refused = driver.joined(driver.join(version=4))
    driver.pass_time(SESSION_MS)
    assert driver.joined(driver.join(refused.member_id, version=4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_joining_waits_for_a_client_that_was_given_a_member_id() -> None:
    driver = Driver()
    members = driver.stable_group(1)
    driver.join(version=4)
    rejoin = driver.join(members[0].member_id)
    assert rejoin not in driver.answers
    driver.pass_time(SESSION_MS)
    assert driver.joined(rejoin).generation_id == 2


def test_the_assignment_is_answered_only_when_it_is_in_the_log() -> None:
    driver = Driver(writes_at_once=False)
    ticket = driver.join()
    driver.pass_time(DELAY_MS)
    joined = driver.joined(ticket)
    sync = driver.sync(joined, {joined.member_id: b"all"})
    assert sync not in driver.answers
    assert driver.group.state is State.COMPLETING_REBALANCE
    driver.write()
    assert driver.synced(sync).assignment == b"all"
    assert driver.group.state is State.STABLE
    assert driver.written[-1].value.members[0].assignment == b"all"


def test_an_assignment_that_cannot_be_written_is_an_error_for_everybody_and_a_new_rebalance() -> None:
    driver = Driver(writes_at_once=False)
    tickets = [driver.join(), driver.join()]
    driver.pass_time(2 * DELAY_MS)
    answers = [driver.joined(ticket) for ticket in tickets]
    syncs = [driver.sync(answer, {answer.member_id: b"x"}) for answer in answers]
    driver.write(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert {driver.synced(sync).error_code for sync in syncs} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert driver.group.state is State.PREPARING_REBALANCE


def test_an_assignment_written_after_the_group_has_moved_on_changes_nothing() -> None:
    driver = Driver(writes_at_once=False)
    ticket = driver.join()
    driver.pass_time(DELAY_MS)
    joined = driver.joined(ticket)
    sync = driver.sync(joined, {joined.member_id: b"old"})
    driver.join(client="newcomer")
    assert driver.synced(sync).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    driver.write()
    assert driver.group.state is State.PREPARING_REBALANCE


def test_a_newcomer_makes_everybody_rejoin() -> None:
    driver = Driver()
    members = driver.stable_group(2)
    newcomer = driver.join(client="late")
    assert [driver.heartbeat(member.member_id) for member in members] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    rejoins = [driver.join(member.member_id) for member in members]
    assert {driver.joined(ticket).generation_id for ticket in (newcomer, *rejoins)} == {2}


def test_who_does_not_rejoin_in_time_is_removed() -> None:
    driver = Driver()
    first, second = driver.stable_group(2, rebalance_ms=5000)
    newcomer = driver.join(client="late", rebalance_ms=5000)
    rejoin = driver.join(first.member_id, rebalance_ms=5000)
    driver.pass_time(5000)
    assert driver.joined(newcomer).generation_id == driver.joined(rejoin).generation_id == 2
    assert driver.heartbeat(second.member_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_when_its_session_times_out() -> None:
    driver = Driver()
    first, second = driver.stable_group(2)
    for _ in range(4):
        driver.pass_time(3000)
        driver.heartbeat(first.member_id)
    assert second.member_id not in driver.group.members
    assert driver.heartbeat(first.member_id) == ErrorCode.REBALANCE_IN_PROGRESS


def test_the_group_is_empty_and_says_so_in_the_log_when_the_last_member_is_gone() -> None:
    driver = Driver()
    (only,) = driver.stable_group(1)
    assert driver.leave(only.member_id) == 0
    assert driver.group.state is State.EMPTY
    assert driver.written[-1].value.members == []
    assert driver.written[-1].value.generation == 2


def test_a_dead_leader_is_replaced_by_a_member_that_is_there() -> None:
    driver = Driver()
    leader, other = driver.stable_group(2)
    driver.leave(leader.member_id)
    ticket = driver.join(other.member_id)
    assert driver.joined(ticket).leader == other.member_id
    assert [member.member_id for member in driver.joined(ticket).members] == [other.member_id]


def test_a_leader_that_does_not_sync_is_removed_after_the_rebalance_timeout() -> None:
    driver = Driver()
    tickets = [driver.join(rebalance_ms=6000, session_ms=30_000) for _ in range(2)]
    driver.pass_time(DELAY_MS)
    driver.pass_time(DELAY_MS)
    answers = [driver.joined(ticket) for ticket in tickets]
    follower = next(answer for answer in answers if answer.member_id != answer.leader)
    sync = driver.sync(follower)
    driver.pass_time(6000)
    assert driver.synced(sync).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert list(driver.group.members) == [follower.member_id]


@pytest.mark.parametrize("generation", [0, 2])
def test_another_generation_is_refused(generation: int) -> None:
    driver = Driver()
    (member,) = driver.stable_group(1)
    assert driver.heartbeat(member.member_id, generation) == ErrorCode.ILLEGAL_GENERATION
    assert driver.synced(driver.sync(member, generation=generation)).error_code == ErrorCode.ILLEGAL_GENERATION
    assert driver.group.commit_problem(member.member_id, None, generation, driver.now) is ErrorCode.ILLEGAL_GENERATION


def test_a_member_nobody_knows_is_refused() -> None:
    driver = Driver()
    driver.stable_group(1)
    assert driver.heartbeat("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.join("nobody")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.group.commit_problem("nobody", None, 1, driver.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_protocol_most_members_prefer_among_those_all_know_is_chosen() -> None:
    driver = Driver()
    offers = (("a", b""), ("b", b"")), (("b", b""), ("a", b"")), (("c", b""), ("b", b""), ("a", b""))
    tickets = [driver.join(protocols=offer) for offer in offers]
    driver.pass_time(REBALANCE_MS)
    assert {driver.joined(ticket).protocol_name for ticket in tickets} == {"b"}


def test_a_member_without_a_common_protocol_is_refused() -> None:
    driver = Driver()
    driver.stable_group(1)
    for wrong in ({"protocols": (("other", b""),)}, {"protocol_type": "connect"}, {"protocols": ()}):
        ticket = driver.join(**wrong)  # type: ignore[arg-type]
        assert driver.joined(ticket).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_ms", [999, 30 * 60 * 1000 + 1])
def test_session_timeouts_out_of_bounds_are_refused(session_ms: int) -> None:
    driver = Driver()
    assert driver.joined(driver.join(session_ms=session_ms)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_full_group_takes_no_more_members() -> None:
    driver = Driver(max_size=2)
    members = driver.stable_group(2)
    assert driver.joined(driver.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.joined(driver.join(members[1].member_id)).error_code == 0


def test_a_member_whose_join_answer_was_lost_hears_the_same_again() -> None:
    driver = Driver()
    tickets = [driver.join(), driver.join()]
    driver.pass_time(2 * DELAY_MS)
    first = driver.joined(tickets[0])
    again = driver.joined(driver.join(first.member_id))
    assert (again.generation_id, again.leader, len(again.members)) == (1, first.leader, len(first.members))


def test_the_leader_of_a_stable_group_can_ask_for_a_new_assignment_and_others_cannot() -> None:
    driver = Driver()
    leader, other = driver.stable_group(2)
    assert driver.joined(driver.join(other.member_id)).generation_id == 1
    assert driver.group.state is State.STABLE
    driver.join(leader.member_id)
    assert driver.group.state is State.PREPARING_REBALANCE


def test_a_changed_subscription_is_a_rebalance() -> None:
    driver = Driver()
    _, other = driver.stable_group(2)
    driver.join(other.member_id, protocols=(("range", b"new topics"),))
    assert driver.group.state is State.PREPARING_REBALANCE


# --- static members ------------------------------------------------------------------------------------------------


def test_a_static_member_that_comes_back_gets_its_assignment_without_a_rebalance() -> None:
    driver = Driver()
    leader, other = driver.stable_group(2, instances=["one", "two"])
    back = driver.joined(driver.join(instance="two"))
    assert back.error_code == 0
    assert back.generation_id == 1
    assert back.member_id != other.member_id
    assert driver.group.state is State.STABLE
    assert driver.synced(driver.sync(back)).assignment == other.member_id.encode()
    assert driver.heartbeat(leader.member_id, instance="one") == 0
    assert any(member.member_id == back.member_id for member in driver.written[-1].value.members)


def test_the_previous_holder_of_an_instance_id_is_fenced() -> None:
    driver = Driver()
    _, other = driver.stable_group(2, instances=["one", "two"])
    driver.join(instance="two")
    assert driver.heartbeat(other.member_id, instance="two") == ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave(other.member_id, "two") == ErrorCode.FENCED_INSTANCE_ID
    assert driver.group.commit_problem(other.member_id, "two", 1, driver.now) is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_that_comes_back_is_told_to_skip_the_assignment() -> None:
    driver = Driver()
    driver.stable_group(2, instances=["one", "two"])
    new = driver.joined(driver.join(instance="one", version=9))
    assert new.skip_assignment and new.leader == new.member_id and len(new.members) == 2
    old = driver.joined(driver.join(instance="one", version=5))
    assert not old.skip_assignment and old.leader != old.member_id and not old.members


def test_a_static_member_that_cannot_be_replaced_in_the_log_is_not_replaced() -> None:
    driver = Driver()
    _, other = driver.stable_group(2, instances=["one", "two"])
    driver._writes_at_once = False
    ticket = driver.join(instance="two")
    driver.write(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert driver.joined(ticket).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat(other.member_id, instance="two") == 0


def test_a_static_member_that_waits_to_join_is_fenced_by_the_next_with_its_instance_id() -> None:
    driver = Driver()
    first = driver.join(instance="one")
    second = driver.join(instance="one")
    assert driver.joined(first).error_code == ErrorCode.FENCED_INSTANCE_ID
    driver.pass_time(DELAY_MS)
    assert driver.joined(second).error_code == 0


def test_absent_static_members_survive_a_rebalance_until_their_session_ends() -> None:
    driver = Driver()
    members = driver.stable_group(2, instances=["one", "two"], rebalance_ms=4000, session_ms=8000)
    newcomer = driver.join(client="late", rebalance_ms=4000, session_ms=8000)
    driver.pass_time(4000)
    assert driver.joined(newcomer).error_code == 0
    assert {member.member_id for member in members} <= driver.group.members.keys()
    driver.pass_time(4000)
    assert not {member.member_id for member in members} & driver.group.members.keys()


def test_static_members_leave_by_instance_id_alone() -> None:
    driver = Driver()
    driver.stable_group(2, instances=["one", "two"])
    assert driver.leave(instance="two") == 0
    assert driver.leave(instance="two") == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(driver.group.static_ids) == ["one"]


# --- offsets, the log, and the end -----------------------------------------------------------------------------------


def test_simple_consumers_commit_to_empty_groups_only() -> None:
    driver = Driver()
    assert driver.group.commit_problem("", None, -1, driver.now) is None
    driver.stable_group(1)
    assert driver.group.commit_problem("", None, -1, driver.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.group.commit_problem("", None, -1, driver.now, transactional=True) is None


def test_nobody_commits_between_join_and_sync_except_transactions() -> None:
    driver = Driver()
    ticket = driver.join()
    driver.pass_time(DELAY_MS)
    member = driver.joined(ticket).member_id
    assert driver.group.commit_problem(member, None, 1, driver.now) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.group.commit_problem(member, None, 1, driver.now, transactional=True) is None


def test_a_commit_keeps_a_member_alive() -> None:
    driver = Driver()
    (member,) = driver.stable_group(1)
    for _ in range(4):
        driver.pass_time(SESSION_MS - 1000)
        assert driver.group.commit_problem(member.member_id, None, 1, driver.now) is None
    assert driver.group.state is State.STABLE


def test_a_group_that_was_written_and_read_is_the_same_group() -> None:
    driver = Driver()
    members = driver.stable_group(3, instances=["one", None, "three"])
    other = Driver()
    other.group.restore(driver.written[-1].value)
    other.group.resume(other.now)
    assert other.group.record(0) == driver.group.record(0)
    assert [other.heartbeat(member.member_id) for member in members[1:2]] == [0]
    other.pass_time(SESSION_MS)
    assert not other.group.members


def test_a_group_that_moves_away_tells_everybody_who_waits() -> None:
    driver = Driver(writes_at_once=False)
    tickets = [driver.join(), driver.join()]
    driver.pass_time(2 * DELAY_MS)
    answers = [driver.joined(ticket) for ticket in tickets]
    sync = driver.sync(next(answer for answer in answers if answer.member_id != answer.leader))
    driver.group.dissolve(ErrorCode.NOT_COORDINATOR)
    driver.settle()
    assert driver.synced(sync).error_code == ErrorCode.NOT_COORDINATOR
    other = Driver()
    join = other.join()
    other.group.dissolve(ErrorCode.NOT_COORDINATOR)
    other.settle()
    assert other.joined(join).error_code == ErrorCode.NOT_COORDINATOR


def test_a_member_removed_while_it_waits_is_answered() -> None:
    driver = Driver()
    first, second = driver.stable_group(2)
    rejoin = driver.join(first.member_id)
    driver.leave(first.member_id)
    assert driver.joined(rejoin).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert second.member_id in driver.group.members


def test_only_the_transitions_of_the_table_are_made() -> None:
    driver = Driver()
    for before, after in itertools.product(State, State):
        driver.group.state = before
        if after in TRANSITIONS[before]:
            driver.group._enter(after, 0)
            assert driver.group.state is after
        else:
            with pytest.raises(AssertionError):
                driver.group._enter(after, 0)


def test_what_waits_to_be_written_names_its_purpose() -> None:
    driver = Driver(writes_at_once=False)
    (ticket,) = [driver.join()]
    driver.pass_time(DELAY_MS)
    driver.leave(driver.joined(ticket).member_id)
    assert [type(item) for item in driver.unwritten] == [Persist]
    assert driver.unwritten[0].purpose == "emptied"
