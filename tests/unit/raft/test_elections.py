"""Elections, rule by rule: Raft §5.1, §5.2, §5.4.1; pre-vote, leases, quorum checks as in the thesis (§9.6, §6.2)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chronik.raft.core import RaftCore
from chronik.raft.errors import SafetyViolation
from chronik.raft.settings import RaftSettings
from chronik.raft.state import Role
from chronik.raft.types import (
    Append,
    AppendResponse,
    ChangeKind,
    ConfigurationChange,
    Entry,
    HardState,
    Heartbeat,
    SnapshotMeta,
    VoteRequest,
    VoteResponse,
)
from harness.raft_group import Group, configuration, directory, member


def lone(node_id: int = 1, *, voters: tuple[int, ...] = (1, 2, 3), **options: Any) -> RaftCore:
    """A core of a group whose other nodes are played by the test."""
    options.setdefault("settings", RaftSettings(election_ticks=5, heartbeat_ticks=1))
    return RaftCore(
        node_id=node_id,
        directory_id=directory(node_id),
        snapshot=SnapshotMeta(configuration=configuration(voters)),
        rng=random.Random(node_id),
        **options,
    )


def ask(source: int, target: int, term: int, *, last: tuple[int, int] = (0, 0), **options: Any) -> VoteRequest:
    """A request for a vote, from a log that ends in `last`: (index, term)."""
    return VoteRequest(source, target, term, directory(source), directory(target), *last, **options)


def answers(core: RaftCore) -> list[Any]:
    """All messages that come out once everything is stored."""
    messages: list[Any] = []
    while core.has_ready():
        ready = core.ready()
        messages += ready.messages + ready.durable_messages
        core.advance(ready)
    return messages


# --- terms, §5.1 ------------------------------------------------------------------------------------------------------


def test_a_node_starts_as_a_follower_in_the_term_it_had_stored() -> None:
    core = lone(hard_state=HardState(term=7, vote=2))
    assert (core.role, core.term, core.leader_id) == (Role.FOLLOWER, 7, 0)


def test_a_higher_term_makes_a_follower_of_a_candidate_and_of_a_leader() -> None:
    group = Group(settings=RaftSettings(election_ticks=5, heartbeat_ticks=1, check_quorum=False))
    leader = group.elect(1)
    leader.step(AppendResponse(2, 1, leader.term + 1, directory(2), 0, rejected=True))
    assert (leader.role, leader.leader_id) == (Role.FOLLOWER, 0)
    leader.campaign()
    leader.step(VoteResponse(2, 1, leader.term + 5, directory(2), granted=False, pre=True))
    assert leader.role is Role.FOLLOWER


def test_a_message_of_an_older_term_changes_nothing_and_is_told_the_term() -> None:
    core = lone(hard_state=HardState(term=5))
    core.step(Append(2, 1, 4, 0, 0, 0, [Entry(4, 1)]))
    assert core.last_index == 0
    (answer,) = answers(core)
    assert (answer.term, answer.rejected, answer.target) == (5, True, 2)


def test_an_answer_of_an_older_term_is_ignored() -> None:
    group = Group()
    leader = group.elect(1)
    commit = leader.commit
    leader.propose([b"x"])
    leader.step(AppendResponse(2, 1, leader.term - 1, directory(2), leader.last_index))
    leader.step(AppendResponse(3, 1, leader.term - 1, directory(3), leader.last_index))
    assert leader.commit == commit


def test_a_message_for_another_node_is_ignored() -> None:
    core = lone()
    core.step(Heartbeat(2, 3, 9, directory(3), 0))
    assert core.term == 0


# --- elections, §5.2 --------------------------------------------------------------------------------------------------


def test_a_follower_that_hears_nothing_campaigns_after_more_than_one_and_at_most_two_election_timeouts() -> None:
    waits = set()
    for seed in range(50):
        core = RaftCore(
            node_id=1,
            directory_id=directory(1),
            snapshot=SnapshotMeta(configuration=configuration((1, 2, 3))),
            rng=random.Random(seed),
            settings=RaftSettings(election_ticks=5, heartbeat_ticks=1),
        )
        ticks = 0
        while core.role is Role.FOLLOWER:
            core.tick()
            ticks += 1
        waits.add(ticks)
    assert waits == {6, 7, 8, 9, 10}


def test_a_heartbeat_puts_off_the_election() -> None:
    core = lone()
    for _ in range(40):
        core.tick()
        core.step(Heartbeat(2, 1, 1, directory(1), 0))
    assert (core.role, core.term, core.leader_id) == (Role.FOLLOWER, 1, 2)


def test_a_candidate_enters_the_next_term_votes_for_itself_and_asks_every_other_voter() -> None:
    core = lone(settings=RaftSettings(election_ticks=5, heartbeat_ticks=1, pre_vote=False))
    core.campaign()
    ready = core.ready()
    assert core.role is Role.CANDIDATE
    assert ready.hard_state == HardState(1, 1, 0, directory(1))
    assert ready.must_sync
    assert ready.messages == []
    assert ready.durable_messages == [ask(1, 2, 1), ask(1, 3, 1)]


def test_a_majority_of_votes_makes_a_leader_which_announces_itself() -> None:
    group = Group()
    leader = group.elect(2)
    assert (leader.term, leader.leader_id) == (1, 2)
    assert {group[i].leader_id for i in (1, 2, 3)} == {2}


def test_a_candidate_without_a_majority_does_not_lead() -> None:
    group = Group((1, 2, 3, 4, 5))
    group.cut = {(other, 1) for other in (3, 4, 5)}
    group[1].campaign()
    group.work(1)
    group.deliver()
    assert group.leaders() == []


def test_a_candidate_that_hears_the_leader_of_its_term_follows_it() -> None:
    core = lone(settings=RaftSettings(election_ticks=5, heartbeat_ticks=1, pre_vote=False))
    core.campaign()
    core.step(Append(3, 1, 1, 0, 0, 0, []))
    assert (core.role, core.leader_id, core.term) == (Role.FOLLOWER, 3, 1)


def test_a_candidate_that_is_refused_by_a_majority_waits_again() -> None:
    core = lone(settings=RaftSettings(election_ticks=5, heartbeat_ticks=1, pre_vote=False))
    core.campaign()
    answers(core)
    for voter in (2, 3):
        core.step(VoteResponse(voter, 1, 1, directory(voter), granted=False))
    assert core.role is Role.FOLLOWER


def test_a_split_vote_ends_in_another_term() -> None:
    core = lone(settings=RaftSettings(election_ticks=5, heartbeat_ticks=1, pre_vote=False))
    core.campaign()
    for _ in range(11):
        core.tick()
    assert (core.role, core.term) == (Role.CANDIDATE, 2)


def test_a_node_votes_once_per_term_first_come_first_served() -> None:
    core = lone()
    core.step(ask(2, 1, 1))
    core.step(ask(3, 1, 1))
    first, second = answers(core)
    assert (first.target, first.granted) == (2, True)
    assert (second.target, second.granted) == (3, False)


def test_a_repeated_request_gets_the_same_vote_again() -> None:
    core = lone(hard_state=HardState(1, 2, 0, directory(2)))
    core.step(ask(2, 1, 1))
    (answer,) = answers(core)
    assert answer.granted


def test_a_vote_survives_a_restart() -> None:
    core = lone(hard_state=HardState(1, 2, 0, directory(2)))
    core.step(ask(3, 1, 1))
    (answer,) = answers(core)
    assert not answer.granted


def test_a_vote_is_promised_only_after_it_is_stored() -> None:
    core = lone()
    core.step(ask(2, 1, 1))
    ready = core.ready()
    assert ready.messages == []
    assert ready.hard_state == HardState(1, 2, 0, directory(2))
    assert [type(message) for message in ready.durable_messages] == [VoteResponse]


def test_a_candidate_counts_its_own_vote_only_after_it_is_stored() -> None:
    core = lone(voters=(1,))
    assert core.role is Role.CANDIDATE
    ready = core.ready()
    assert core.role is Role.CANDIDATE
    core.advance(ready)
    assert core.role is Role.LEADER


def test_an_only_voter_leads_at_once_without_a_tick() -> None:
    group = Group((1,))
    assert group.leaders() == [1]
    assert group[1].commit == group[1].last_index


def test_two_leaders_in_one_term_stop_the_node_that_sees_it() -> None:
    group = Group()
    leader = group.elect(1)
    with pytest.raises(SafetyViolation, match="both lead term 1"):
        leader.step(Heartbeat(2, 1, 1, directory(1), 0))


# --- who may win, §5.4.1 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "granted"),
    [((3, 1), False), ((1, 2), False), ((2, 2), True), ((3, 2), True), ((1, 3), True)],
)
def test_a_vote_goes_only_to_a_log_that_is_at_least_as_up_to_date(last: tuple[int, int], granted: bool) -> None:
    core = lone(entries=[Entry(1, 1), Entry(2, 2)], hard_state=HardState(2))
    core.step(ask(2, 1, 9, last=last))
    (answer,) = answers(core)
    assert answer.granted is granted


# --- pre-vote, thesis §9.6 --------------------------------------------------------------------------------------------


def test_a_pre_vote_moves_no_term_and_binds_nobody() -> None:
    core = lone()
    core.step(ask(2, 1, 1, pre=True))
    core.step(ask(3, 1, 1, pre=True))
    ready = core.ready()
    assert core.term == 0
    assert ready.hard_state is None
    assert [(m.target, m.granted, m.term) for m in ready.messages if isinstance(m, VoteResponse)] == [
        (2, True, 1),
        (3, True, 1),
    ]


def test_a_node_that_cannot_win_does_not_raise_its_term() -> None:
    group = Group()
    group.elect(1)
    group.isolate(3)
    for _ in range(60):
        group.tick(3)
    assert (group[3].role, group[3].term) == (Role.PRE_CANDIDATE, 1)
    group.heal()
    group.drop()
    group.beat(1)
    assert (group[3].role, group[3].leader_id, group[1].role, group[1].term) == (Role.FOLLOWER, 1, Role.LEADER, 1)


def test_an_outdated_grant_of_a_pre_vote_does_not_count() -> None:
    core = lone(hard_state=HardState(term=4))
    core.campaign()
    core.step(VoteResponse(2, 1, 4, directory(2), granted=True, pre=True))
    assert core.role is Role.PRE_CANDIDATE
    core.step(VoteResponse(2, 1, 5, directory(2), granted=True, pre=True))
    assert core.role is Role.CANDIDATE


# --- leases and quorum checks, thesis §4.2.3, §6.2 --------------------------------------------------------------------


def test_a_node_that_hears_a_leader_ignores_candidates() -> None:
    group = Group()
    group.elect(1)
    group[2].step(ask(3, 2, 9, last=(99, 9)))
    group[2].step(ask(3, 2, 9, last=(99, 9), pre=True))
    group[1].step(ask(3, 1, 9, last=(99, 9)))
    assert not group[2].has_ready()
    assert (group[2].term, group[1].term, group[1].role) == (1, 1, Role.LEADER)


def test_a_node_that_has_not_heard_the_leader_for_an_election_timeout_listens_to_candidates() -> None:
    group = Group()
    group.elect(1)
    for _ in range(5):
        group[2].tick()
    group[2].step(ask(3, 2, 9, last=(99, 9)))
    assert group[2].term == 9


def test_a_leader_that_hears_no_quorum_for_an_election_timeout_steps_down() -> None:
    group = Group()
    leader = group.elect(1)
    group.isolate(1)
    group.tick(1, 5)
    assert leader.role is Role.LEADER, "the answers to its election were within the first timeout"
    group.tick(1, 5)
    assert (leader.role, leader.leader_id, leader.term) == (Role.FOLLOWER, 0, 1)


def test_a_leader_that_hears_a_quorum_stays() -> None:
    group = Group((1, 2, 3, 4, 5))
    leader = group.elect(1)
    group.isolate(4)
    group.isolate(5)
    for _ in range(100):
        group.beat(1)
    assert (leader.role, leader.term) == (Role.LEADER, 1)


def test_observers_do_not_help_a_leader_to_stay() -> None:
    group = Group((1, 2, 3), joiners=(4, 5))
    leader = group.elect(1)
    for joiner in (4, 5):
        leader.propose_change(ConfigurationChange(ChangeKind.ADD_OBSERVER, member(joiner)))
        group.work(1)
        group.deliver()
    group.isolate(2)
    group.isolate(3)
    for _ in range(10):
        group.beat(1)
    assert {4, 5} <= leader.configuration.observers.keys()
    assert leader.role is Role.FOLLOWER


def test_a_node_with_a_higher_term_can_come_back() -> None:
    group = Group()
    group.elect(1)
    group.nodes[3].disk.hard_state = HardState(term=6)
    group.restart(3)
    group.beat(1)
    for _ in range(20):
        for node_id in (1, 2, 3):
            group.tick(node_id)
        group.deliver()
    (leader,) = group.leaders()
    assert {group[i].term for i in (1, 2, 3)} == {group[leader].term}
    assert group[leader].term > 6


def test_an_idle_group_keeps_its_leader_and_its_term_and_exchanges_nothing_but_heartbeats() -> None:
    group = Group()
    leader = group.elect(1)
    group.delivered.clear()
    for _ in range(300):
        for node_id in (1, 2, 3):
            group.tick(node_id)
        group.deliver()
    assert (leader.role, leader.term) == (Role.LEADER, 1)
    assert {type(message).__name__ for message in group.delivered} == {"Heartbeat", "HeartbeatResponse"}
