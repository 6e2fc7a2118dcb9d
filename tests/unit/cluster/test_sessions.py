"""Sessions and leases as tables of what happened when, and what the controller may then do."""

from __future__ import annotations

import pytest

from chronik.cluster.sessions import Sessions

SESSION, LEASE, TICK = 1.5, 1.2, 0.1


def table(*nodes: int, now: float = 100.0) -> Sessions:
    sessions = Sessions(SESSION, LEASE, TICK)
    sessions.begin(now, nodes)
    return sessions


def tick_until(sessions: Sessions, start: float, end: float) -> list[int]:
    """Looks every tick; who lapsed at the last look."""
    now = start
    lapsed: list[int] = []
    while now < end:
        now = min(now + TICK, end)
        lapsed = sessions.lapsed(now)
    return lapsed


def test_a_new_controller_gives_everybody_a_full_lease_to_be_heard_from() -> None:
    sessions = table(1, 2)
    assert tick_until(sessions, 100.0, 101.15) == []
    assert tick_until(sessions, 101.15, 101.25) == [1, 2]


def test_a_new_controller_takes_everybody_to_hold_a_full_lease() -> None:
    sessions = table(1, 2)
    assert not sessions.lease_over(1, 101.1)
    assert not sessions.released(5, 101.1)
    assert sessions.lease_over(1, 101.2)
    assert sessions.released(5, 101.2)


def test_a_new_controller_takes_one_that_was_just_removed_to_hold_a_lease_as_well() -> None:
    sessions = table(1)
    assert not sessions.lease_over(9, 101.1)
    assert sessions.lease_over(9, 101.2)


def test_a_heartbeat_extends_the_session_and_silence_ends_it() -> None:
    sessions = table(1, 2)
    sessions.heard(1, 10, 0, 101.0)
    assert tick_until(sessions, 100.0, 102.45) == [2]
    assert tick_until(sessions, 102.45, 102.6) == [1, 2]


@pytest.mark.parametrize("held_up", [5.0, 60.0])
def test_time_in_which_the_controller_did_not_look_is_not_a_brokers_silence(held_up: float) -> None:
    sessions = table(1)
    sessions.heard(1, 10, 0, 100.0)
    assert tick_until(sessions, 100.0, 100.5) == []
    assert sessions.lapsed(100.5 + held_up) == [], "the heartbeats of that time may still wait to be read"
    assert tick_until(sessions, 100.5 + held_up, 101.3 + held_up) == []
    assert tick_until(sessions, 101.3 + held_up, 101.6 + held_up) == [1]


def test_a_lease_is_over_before_the_session_in_which_it_was_granted() -> None:
    sessions = table(1)
    sessions.heard(1, 10, 0, 101.0)
    sessions.promise_lease(1, 101.0)
    assert not sessions.lease_over(1, 102.1)
    assert sessions.lease_over(1, 102.25)
    assert tick_until(sessions, 100.0, 102.45) == []
    with pytest.raises(ValueError, match="outlives"):
        Sessions(session_s=1.0, lease_s=1.1, tick_s=0.1)


def test_a_leader_is_known_to_have_stopped_when_it_has_applied_the_change_or_its_lease_is_over() -> None:
    sessions = table(1, 2)
    sessions.heard(1, 10, 40, 100.1)
    sessions.heard(2, 11, 40, 100.1)
    assert sessions.released(40, 100.1)
    assert not sessions.released(41, 100.1)
    sessions.heard(1, 10, 41, 100.2)
    assert not sessions.released(41, 100.2), "broker 2 may still act upon what it knows"
    assert sessions.released(41, 101.2)


def test_what_a_former_process_knew_says_nothing_about_the_new_one() -> None:
    sessions = table(1)
    sessions.heard(1, 10, 50, 100.1)
    sessions.restarted(1, 100.2, same_folder=False)
    assert not sessions.released(50, 100.3)
    sessions.heard(1, 10, 60, 100.4)
    sessions.heard(1, 20, 55, 100.5)
    assert sessions.released(55, 100.5) and not sessions.released(60, 100.5)
    sessions.heard(1, 10, 99, 100.6)
    assert not sessions.released(60, 100.6), "a delayed heartbeat of the older registration counts for nothing"


def test_a_restart_from_the_same_folder_ends_the_lease_of_the_dead_process_and_another_folder_does_not() -> None:
    for same_folder in (True, False):
        sessions = table(1)
        sessions.heard(1, 10, 0, 100.0)
        sessions.promise_lease(1, 100.0)
        sessions.restarted(1, 100.1, same_folder=same_folder)
        assert sessions.lease_over(1, 100.2) is same_folder


def test_the_lease_of_a_broker_that_was_removed_still_counts() -> None:
    sessions = table(1)
    sessions.heard(1, 10, 0, 100.0)
    sessions.promise_lease(1, 100.0)
    sessions.forget(1, 100.5)
    assert not sessions.lease_over(1, 100.5)
    sessions.forget(1, 101.3)
    assert sessions.lease_over(1, 101.3)
    assert sessions.lapsed(110.0) == []


def test_a_broker_that_was_not_known_begins_without_a_lease() -> None:
    sessions = table()
    sessions.heard(7, 3, 3, 100.0)
    assert sessions.lease_over(7, 100.0)
    assert sessions.heard_lately(7, 3, 100.1)
    assert not sessions.heard_lately(7, 4, 100.1)


def test_a_broker_knows_its_losses_once_it_has_applied_the_last_of_them() -> None:
    sessions = table(1)
    sessions.heard(1, 10, 20, 100.0)
    assert sessions.knows_its_losses(1)
    sessions.lost_leadership(1, 25)
    sessions.lost_leadership(1, 22)
    sessions.heard(1, 10, 24, 100.1)
    assert not sessions.knows_its_losses(1)
    sessions.heard(1, 10, 25, 100.2)
    assert sessions.knows_its_losses(1)


def test_under_a_new_controller_everybody_must_know_what_the_last_one_did() -> None:
    sessions = Sessions(SESSION, LEASE, TICK)
    sessions.begin(100.0, (1,), 30)
    sessions.heard(1, 10, 29, 100.1)
    assert not sessions.knows_its_losses(1)
    sessions.heard(1, 10, 30, 100.2)
    assert sessions.knows_its_losses(1)


def test_a_new_process_led_nothing_that_it_could_have_lost() -> None:
    sessions = table(1)
    sessions.lost_leadership(1, 25)
    sessions.restarted(1, 100.0, same_folder=True)
    sessions.heard(1, 24, 24, 100.1)
    assert sessions.knows_its_losses(1)


def test_who_does_not_learn_of_its_losses_for_a_whole_session_is_as_good_as_silent() -> None:
    sessions = table(1)
    sessions.heard(1, 10, 20, 100.0)
    sessions.lost_leadership(1, 21)
    now = 100.0
    while now < 104.0:
        now += 0.25
        sessions.heard(1, 10, 20, now)
        lapsed = sessions.lapsed(now)
        assert bool(lapsed) == (now >= 100.25 + 2 * SESSION), now
    sessions.heard(1, 10, 21, 104.1)
    assert sessions.lapsed(104.1) == []


def test_who_keeps_learning_is_heard_however_much_it_loses() -> None:
    sessions = table(1)
    for turn in range(40):
        now = 100.0 + turn * 0.25
        sessions.lost_leadership(1, 20 + turn)
        sessions.heard(1, 10, 20 + turn - 1, now)
        assert not sessions.knows_its_losses(1)
        assert sessions.lapsed(now) == []


def test_a_broker_has_outlived_others_once_it_is_heard_from_after_they_had_gone() -> None:
    sessions = table(1, 2, 3)
    assert not sessions.outlived(1, (2,)), "the controller has just begun, and has heard from nobody"
    sessions.heard(1, 10, 0, 100.2)
    assert sessions.outlived(1, (2, 3))
    sessions.gone(2, 100.5)
    assert not sessions.outlived(1, (2,)) and sessions.outlived(1, (3,))
    sessions.heard(1, 10, 0, 100.6)
    assert sessions.outlived(1, (2, 3))
    assert sessions.outlived(1, (9,)) and not sessions.outlived(9, (1,))
