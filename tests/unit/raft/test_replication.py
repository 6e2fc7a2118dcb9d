"""Log replication, rule by rule: Raft §5.3, §5.4.2; batching, pipelining, flow control and what may be sent when."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chronik.raft.core import RaftCore
from chronik.raft.errors import NotLeader, ProposalDropped, SafetyViolation
from chronik.raft.settings import RaftSettings
from chronik.raft.state import Role
from chronik.raft.types import (
    Append,
    AppendResponse,
    CommitNotice,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    SnapshotMeta,
)
from harness.raft_group import Group, configuration, directory


def follower(entries: list[Entry], *, commit: int = 0, term: int = 9) -> RaftCore:
    return RaftCore(
        node_id=1,
        directory_id=directory(1),
        snapshot=SnapshotMeta(configuration=configuration((1, 2, 3))),
        entries=entries,
        hard_state=HardState(term=term, commit=commit),
        rng=random.Random(1),
    )


def log_of(*terms: int) -> list[Entry]:
    return [Entry(term, index, EntryKind.DATA, b"%d" % index) for index, term in enumerate(terms, 1)]


def terms(core: RaftCore) -> list[int]:
    return [entry.term for entry in core.log.entries]


def answer_to(core: RaftCore, message: Any) -> AppendResponse:
    core.step(message)
    ready = core.ready()
    core.advance(ready)
    (answer,) = ready.durable_messages
    assert isinstance(answer, AppendResponse)
    return answer


# --- the follower, §5.3 -----------------------------------------------------------------------------------------------


def test_a_follower_appends_entries_that_follow_an_entry_it_has() -> None:
    core = follower(log_of(1, 1))
    answer = answer_to(core, Append(2, 1, 9, 2, 1, 0, [Entry(9, 3)]))
    assert (answer.rejected, answer.index, terms(core)) == (False, 3, [1, 1, 9])


@pytest.mark.parametrize(
    ("own", "previous", "hint"),
    [
        ((), (2, 1), (0, 0)),
        ((1, 1), (5, 3), (2, 1)),
        ((1, 1, 2, 2, 2), (5, 3), (5, 2)),
        ((1, 1, 4, 4, 4), (5, 3), (2, 1)),
        ((4, 4, 4), (3, 3), (0, 0)),
    ],
)
def test_a_follower_refuses_entries_that_follow_one_it_lacks_and_says_where_it_may_agree(
    own: tuple[int, ...], previous: tuple[int, int], hint: tuple[int, int]
) -> None:
    core = follower(log_of(*own))
    answer = answer_to(core, Append(2, 1, 9, *previous, 0, [Entry(9, previous[0] + 1)]))
    assert (answer.rejected, answer.index) == (True, previous[0])
    assert (answer.hint_index, answer.hint_term) == hint
    assert terms(core) == list(own)


def test_an_entry_that_conflicts_is_replaced_with_all_that_follow_it() -> None:
    core = follower(log_of(1, 2, 2, 2))
    answer_to(core, Append(2, 1, 9, 1, 1, 0, [Entry(3, 2)]))
    assert terms(core) == [1, 3]


def test_a_late_append_does_not_cut_off_what_a_later_one_has_added() -> None:
    core = follower(log_of(1, 2, 2, 2))
    answer = answer_to(core, Append(2, 1, 9, 1, 1, 0, [Entry(2, 2)]))
    assert (answer.index, terms(core)) == (2, [1, 2, 2, 2])


def test_a_leader_that_contradicts_a_committed_entry_stops_the_node() -> None:
    core = follower(log_of(1, 2, 2), commit=3)
    core.step(Append(2, 1, 9, 3, 2, 3, []))
    with pytest.raises(SafetyViolation, match="entry 2"):
        core.log.truncate_from(2)


def test_an_append_before_the_commit_index_is_answered_with_the_commit_index() -> None:
    core = follower(log_of(1, 2, 2), commit=3)
    answer = answer_to(core, Append(2, 1, 9, 1, 1, 3, [Entry(5, 2)]))
    assert (answer.rejected, answer.index, terms(core)) == (False, 3, [1, 2, 2])


def test_a_follower_commits_no_further_than_it_is_known_to_agree() -> None:
    core = follower(log_of(1, 2, 2, 2))
    answer_to(core, Append(2, 1, 9, 1, 1, 4, [Entry(2, 2)]))
    assert core.commit == 2


def test_a_heartbeat_carries_the_commit_index() -> None:
    core = follower(log_of(1, 1))
    core.step(Heartbeat(2, 1, 9, directory(1), 2))
    assert core.commit == 2


def test_a_commit_notice_for_another_data_folder_is_not_believed() -> None:
    core = follower(log_of(1, 1))
    core.step(Heartbeat(2, 1, 9, directory(1, 1), 2))
    core.step(CommitNotice(2, 1, 9, directory(1, 1), 2))
    assert core.commit == 0
    core.step(CommitNotice(2, 1, 9, directory(1), 2))
    assert core.commit == 2


def test_the_commit_index_never_falls() -> None:
    core = follower(log_of(1, 1, 1), commit=3)
    core.step(Append(2, 1, 9, 3, 1, 1, []))
    core.step(Heartbeat(2, 1, 9, directory(1), 2))
    assert core.commit == 3


# --- the leader, §5.3, §5.4.2 -----------------------------------------------------------------------------------------


def test_only_a_leader_takes_proposals_and_a_follower_says_who_that_is() -> None:
    group = Group()
    group.elect(2)
    with pytest.raises(NotLeader, match="ask node 2") as refused:
        group[1].propose([b"x"])
    assert refused.value.leader_id == 2


def test_a_new_leader_appends_an_entry_of_its_own_term() -> None:
    group = Group()
    leader = group.elect(1)
    assert leader.log.entries[0] == Entry(1, 1, EntryKind.NOOP)


def test_a_proposal_is_committed_and_applied_everywhere_in_order() -> None:
    group = Group()
    group.elect(1)
    assert group.propose(1, b"a", b"b") == (1, 3)
    assert group.propose(1, b"c") == (1, 5)
    assert {tuple(node.data) for node in group.nodes.values()} == {(b"a", b"b", b"c")}


def test_an_entry_is_committed_when_a_majority_has_it_and_not_before() -> None:
    group = Group((1, 2, 3, 4, 5))
    leader = group.elect(1)
    commit = leader.commit
    for cut_off in (3, 4, 5):
        group.isolate(cut_off)
    group.propose(1, b"x")
    assert leader.commit == commit
    group.cut = {pair for pair in group.cut if 3 not in pair}
    group.beat(1)
    group.beat(1)
    assert leader.commit == commit + 1


def test_entries_of_older_terms_are_not_committed_by_counting() -> None:
    """The situation of figure 8: an old entry is on a majority, and may still be overwritten."""
    group = Group((1, 2, 3))
    group.nodes[1].disk.entries = log_of(2)
    for node_id in group.nodes:
        group.nodes[node_id].disk.hard_state = HardState(term=2)
        group.restart(node_id)
    leader = group[1]
    leader.campaign()
    group.work(1)
    group.deliver(lambda message: not isinstance(message, Append))
    assert (leader.role, leader.last_index, leader.log.stable) == (Role.LEADER, 2, 2)
    for peer in (2, 3):
        leader.step(AppendResponse(peer, 1, 3, directory(peer), 1))
    assert leader.commit == 0, "all have entry 1, but it is of term 2, and this is term 3"
    leader.step(AppendResponse(2, 1, 3, directory(2), 2))
    assert leader.commit == 2


def test_a_leader_counts_its_own_log_only_after_it_is_stored() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    commit = leader.commit
    group.nodes[1].disk_is_stuck = True
    group.propose(1, b"x")
    assert group[2].last_index == leader.last_index, "an append may leave before the leader has stored it"
    assert leader.commit == commit
    group.store(1)
    assert leader.commit == commit + 1


def test_a_leader_does_not_apply_what_it_has_not_stored() -> None:
    group = Group((1, 2, 3))
    leader = group.elect(1)
    group.nodes[1].disk_is_stuck = True
    group.propose(1, b"x")
    assert leader.commit == leader.last_index, "the two others are a majority"
    assert group.nodes[1].data == []
    group.nodes[1].disk_is_stuck = False
    group.store(1)
    assert group.nodes[1].data == [b"x"]


def test_an_append_is_acknowledged_only_after_it_is_stored() -> None:
    core = follower(log_of(1))
    core.step(Append(2, 1, 9, 1, 1, 0, [Entry(9, 2)]))
    ready = core.ready()
    assert ready.messages == []
    assert ready.must_sync
    assert [type(message) for message in ready.durable_messages] == [AppendResponse]


def test_a_burst_of_appends_is_acknowledged_once() -> None:
    core = follower(log_of(1))
    for index in range(2, 6):
        core.step(Append(2, 1, 9, index - 1, 1 if index == 2 else 9, 0, [Entry(9, index)]))
    ready = core.ready()
    assert [message.index for message in ready.durable_messages if isinstance(message, AppendResponse)] == [5]


def test_a_slow_disk_does_not_keep_a_follower_from_answering_heartbeats() -> None:
    core = follower(log_of(1))
    core.step(Append(2, 1, 9, 1, 1, 0, [Entry(9, 2)]))
    stuck = core.ready()
    core.step(Heartbeat(2, 1, 9, directory(1), 0, 4))
    ready = core.ready()
    assert ready.messages == [HeartbeatResponse(1, 2, 9, directory(1), 4)]
    core.advance(stuck)
    core.advance(ready)


def test_what_another_leader_replaced_meanwhile_does_not_count_as_stored() -> None:
    core = follower([], term=1)
    core.step(Append(2, 1, 1, 0, 0, 0, log_of(1, 1, 1)))
    first = core.ready()
    core.step(Append(3, 1, 2, 1, 1, 0, [Entry(2, 2)]))
    second = core.ready()
    core.advance(first)
    assert core.log.stable <= 1
    core.advance(second)
    assert core.log.stable == 2


# --- finding agreement ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "diverged",
    [(), (1,), (1, 1, 1, 1), (1, 1, 2, 2, 2, 2), (1, 1, 2, 2, 3, 3, 3, 3, 3), (2, 2, 2, 2, 2, 2, 2)],
)
def test_a_leader_brings_every_log_into_agreement_with_its_own(diverged: tuple[int, ...]) -> None:
    group = Group()
    histories = {1: (1, 1, 1, 4, 4, 5, 5, 6, 6, 6), 2: (1, 1, 1, 4, 4, 5, 5, 6, 6), 3: diverged}
    for node_id, history in histories.items():
        group.nodes[node_id].disk.entries = log_of(*history)
        group.nodes[node_id].disk.hard_state = HardState(term=7)
        group.restart(node_id)
    group.elect(1)
    for _ in range(4):
        group.beat(1)
    assert terms(group[3]) == terms(group[1])
    assert {group[i].commit for i in (1, 2, 3)} == {group[1].last_index}


def test_agreement_is_found_in_few_round_trips_when_whole_terms_differ() -> None:
    group = Group((1, 2))
    group.nodes[1].disk.entries = log_of(*([1] * 50 + [3] * 50 + [5] * 50))
    group.nodes[2].disk.entries = log_of(*([1] * 50 + [2] * 50 + [4] * 60))
    for node_id in (1, 2):
        group.nodes[node_id].disk.hard_state = HardState(term=5)
        group.restart(node_id)
    group.elect(1)
    rejections = [m for m in group.delivered if isinstance(m, AppendResponse) and m.rejected]
    assert terms(group[2]) == terms(group[1])
    assert len(rejections) <= 4


def test_a_lost_append_is_sent_again() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    leader.propose([b"lost"])
    group.work(1)
    group.drop()
    for _ in range(3):
        group.beat(1)
    assert group.nodes[2].data == [b"lost"]


def test_a_lost_connection_is_found_out_at_once_when_it_is_reported() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    leader.propose([b"lost"])
    group.work(1)
    group.drop()
    leader.report_unreachable(2)
    assert leader.status().peers[2].state == "probe"
    group.propose(1, b"next")
    assert group.nodes[2].data == [b"lost", b"next"]


def test_a_peer_that_keeps_up_is_not_probed_however_many_heartbeats_it_answers() -> None:
    group = Group((1, 2, 3))
    leader = group.elect(1)
    group.delivered.clear()
    for number in range(20):
        leader.read_index(number)
        group.propose(1, b"x")
    assert all(m.entries for m in group.delivered if isinstance(m, Append))


# --- batching, pipelining, limits -------------------------------------------------------------------------------------


def test_proposals_of_one_turn_share_one_append() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    for number in range(10):
        leader.propose([b"%d" % number])
    ready = leader.ready()
    (append,) = [m for m in ready.messages if isinstance(m, Append)]
    assert len(append.entries) == 10
    assert len(ready.entries) == 10


def test_appends_are_sent_ahead_of_the_answers_up_to_the_limit_of_messages() -> None:
    group = Group((1, 2), settings=RaftSettings(election_ticks=5, append_entries_max=2, inflight_messages_max=3))
    leader = group.elect(1)
    leader.propose([b"x"] * 20)
    sent = [m for m in leader.ready().messages if isinstance(m, Append)]
    assert [len(m.entries) for m in sent] == [2, 2, 2]
    leader.step(AppendResponse(2, 1, 1, directory(2), sent[0].entries[-1].index))
    assert [len(m.entries) for m in leader.ready().messages if isinstance(m, Append)] == [2]


def test_appends_are_sent_ahead_of_the_answers_up_to_the_limit_of_bytes() -> None:
    group = Group((1, 2), settings=RaftSettings(election_ticks=5, append_bytes_max=1100, inflight_bytes_max=2200))
    leader = group.elect(1)
    leader.propose([b"x" * 500] * 20)
    sent = [m for m in leader.ready().messages if isinstance(m, Append)]
    assert [len(m.entries) for m in sent] == [2, 2, 2]


def test_an_entry_larger_than_an_append_travels_alone() -> None:
    group = Group((1, 2), settings=RaftSettings(election_ticks=5, append_bytes_max=100))
    group.elect(1)
    group.propose(1, b"x" * 5000, b"y")
    assert group.nodes[2].data == [b"x" * 5000, b"y"]


def test_a_peer_whose_log_is_not_known_is_probed_with_one_append_at_a_time() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    leader.report_unreachable(2)
    leader.propose([b"a"])
    assert len([m for m in leader.ready().messages if isinstance(m, Append)]) == 1
    leader.propose([b"b"])
    assert [m for m in leader.ready().messages if isinstance(m, Append)] == []


def test_proposals_are_refused_when_too_much_is_uncommitted() -> None:
    group = Group((1, 2), settings=RaftSettings(election_ticks=5, uncommitted_bytes_max=1000))
    leader = group.elect(1)
    last = leader.last_index
    leader.propose([b"x" * 600])
    with pytest.raises(ProposalDropped, match="wait to be committed"):
        leader.propose([b"x" * 600])
    assert leader.last_index == last + 1
    group.work(1)
    group.deliver()
    leader.propose([b"x" * 600])


def test_a_proposal_that_can_never_fit_is_refused_with_the_limit() -> None:
    leader = Group((1,), settings=RaftSettings(uncommitted_bytes_max=1000))[1]
    with pytest.raises(ProposalDropped, match="exceeds the limit of 1000: split it"):
        leader.propose([b"x" * 2000])


def test_proposals_are_refused_when_the_log_in_memory_is_full_until_a_snapshot_is_taken() -> None:
    group = Group((1,), settings=RaftSettings(log_bytes_max=2000))
    for _ in range(3):
        group.propose(1, b"x" * 500)
    with pytest.raises(ProposalDropped, match="retry when a snapshot was taken"):
        group[1].propose([b"x" * 500])
    group.snapshot(1)
    group.propose(1, b"x" * 500)


def test_committed_entries_are_handed_out_in_bounded_slices() -> None:
    group = Group((1,), settings=RaftSettings(committed_entries_max=4, committed_bytes_max=300))
    core = group[1]
    core.propose([b"x"] * 10 + [b"y" * 300] * 3)
    sizes = []
    while core.has_ready():
        ready = core.ready()
        sizes.append(len(ready.committed))
        core.advance(ready)
    assert sizes == [0, 4, 4, 2, 1, 1, 1]


def test_a_commit_that_moved_alone_need_not_be_synced() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    leader.propose([b"x"])
    group.work(1)
    group.deliver(lambda message: isinstance(message, Append))
    (answer,) = group.pending
    leader.step(answer)
    ready = leader.ready()
    assert ready.hard_state is not None
    assert ready.hard_state.commit == leader.last_index
    assert not ready.must_sync


def test_what_was_committed_is_applied_again_after_a_restart_and_only_once() -> None:
    group = Group((1, 2, 3))
    group.elect(1)
    group.propose(1, b"a", b"b")
    group.restart(2)
    assert group.nodes[2].data == [b"a", b"b"]
    group.beat(1)
    group.propose(1, b"c")
    assert group.nodes[2].data == [b"a", b"b", b"c"]
