"""Membership, rule by rule: Raft §6 in the one-at-a-time form of the thesis (§4), with voters known by their folder."""

from __future__ import annotations

import pytest

from chronik.raft.configuration import ConfigurationHistory, apply_change, quorum_value, with_learned_directories
from chronik.raft.errors import ChangeRefused, NotLeader, ProposalDropped
from chronik.raft.settings import RaftSettings
from chronik.raft.state import Role
from chronik.raft.types import (
    UNKNOWN_DIRECTORY,
    Append,
    AppendResponse,
    ChangeKind,
    Configuration,
    ConfigurationChange,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Member,
    SnapshotMeta,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    encode_configuration,
)
from harness.raft_group import Group, configuration, directory, member


def change(kind: ChangeKind, node_id: int, generation: int = 0) -> ConfigurationChange:
    return ConfigurationChange(kind, member(node_id, generation))


def make(group: Group, leader: int, kind: ChangeKind, node_id: int, generation: int = 0) -> None:
    """Make a change, and let everybody hear of it."""
    group[leader].propose_change(change(kind, node_id, generation))
    group.work(leader)
    group.deliver()


# --- changes, one at a time -------------------------------------------------------------------------------------------


def test_a_change_holds_as_soon_as_it_is_appended() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    leader = group.elect(1)
    leader.propose_change(change(ChangeKind.ADD_VOTER, 4))
    assert sorted(leader.configuration.voters) == [1, 2, 3, 4]
    assert sorted(leader.committed_configuration.voters) == [1, 2, 3]


def test_a_change_is_undone_when_its_entry_is_cut_off() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    group.elect(1)
    group.isolate(1)
    group[1].propose_change(change(ChangeKind.ADD_VOTER, 4))
    group.work(1)
    group.drop()
    group.elect(2)
    group.heal()
    group.beat(2)
    group.beat(2)
    assert sorted(group[1].configuration.voters) == [1, 2, 3]


def test_a_change_waits_until_the_previous_one_is_committed() -> None:
    group = Group((1, 2, 3), joiners=(4, 5))
    leader = group.elect(1)
    leader.propose_change(change(ChangeKind.ADD_OBSERVER, 4))
    with pytest.raises(ChangeRefused, match="not committed yet") as refused:
        leader.propose_change(change(ChangeKind.ADD_OBSERVER, 5))
    assert refused.value.retriable
    group.work(1)
    group.deliver()
    leader.propose_change(change(ChangeKind.ADD_OBSERVER, 5))


def test_a_change_waits_until_the_leader_has_committed_in_its_own_term() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    leader = group[1]
    leader.campaign()
    group.work(1)
    group.deliver(lambda message: not isinstance(message, Append))
    assert leader.role is Role.LEADER
    with pytest.raises(ChangeRefused, match="committed nothing yet"):
        leader.propose_change(change(ChangeKind.ADD_OBSERVER, 4))


def test_only_a_leader_changes_the_membership() -> None:
    group = Group()
    group.elect(1)
    with pytest.raises(NotLeader):
        group[2].propose_change(change(ChangeKind.REMOVE_VOTER, 3))


def test_a_node_joins_as_an_observer_catches_up_and_becomes_a_voter() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    leader = group.elect(1)
    group.propose(1, b"a", b"b")
    make(group, 1, ChangeKind.ADD_OBSERVER, 4)
    assert group.nodes[4].data == [b"a", b"b"]
    assert not leader.status().peers[4].counts
    make(group, 1, ChangeKind.ADD_VOTER, 4)
    assert leader.status().peers[4].counts
    assert group[4].configuration == leader.configuration
    assert sorted(leader.configuration.voters) == [1, 2, 3, 4]
    assert leader.configuration.observers == {}


def test_an_observer_does_not_count_toward_the_commit_and_does_not_campaign() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    leader = group.elect(1)
    make(group, 1, ChangeKind.ADD_OBSERVER, 4)
    group.isolate(2)
    group.isolate(3)
    commit = leader.commit
    group.propose(1, b"x")
    assert group[4].last_index == leader.last_index
    assert leader.commit == commit
    group.crash(1)
    group.tick(4, 100)
    assert (group[4].role, group[4].leader_id) == (Role.FOLLOWER, 0)


def test_joiners_get_the_whole_membership_with_addresses() -> None:
    group = Group((1,), joiners=(2,))
    make(group, 1, ChangeKind.ADD_OBSERVER, 2)
    assert group[2].configuration.voters[1] == Member(1, directory(1), "host-1", 9192)


def test_an_address_changes_without_changing_who_counts() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    moved = Member(2, UNKNOWN_DIRECTORY, "new-host", 9999)
    leader.propose_change(ConfigurationChange(ChangeKind.UPDATE_ADDRESS, moved))
    group.work(1)
    group.deliver()
    assert group[2].configuration.voters[2] == Member(2, directory(2), "new-host", 9999)
    assert leader.commit == leader.last_index


def test_a_removed_follower_is_told_and_campaigns_no_more() -> None:
    group = Group((1, 2, 3))
    group.elect(1)
    make(group, 1, ChangeKind.REMOVE_VOTER, 3)
    assert sorted(group[3].committed_configuration.voters) == [1, 2]
    group.tick(3, 100)
    assert group[3].role is Role.FOLLOWER
    assert 3 not in group[1].status().peers


def test_a_dead_voter_can_be_removed() -> None:
    group = Group((1, 2, 3))
    leader = group.elect(1)
    group.crash(3)
    make(group, 1, ChangeKind.REMOVE_VOTER, 3)
    assert (leader.commit, sorted(leader.configuration.voters)) == (leader.last_index, [1, 2])


def test_a_leader_that_removes_itself_leads_until_the_change_is_committed_and_hands_over() -> None:
    group = Group((1, 2, 3))
    leader = group.elect(1)
    index = leader.propose_change(change(ChangeKind.REMOVE_VOTER, 1))[1]
    group.work(1)
    group.deliver(lambda message: isinstance(message, Append))
    assert leader.role is Role.LEADER
    acks = [message for message in group.pending if isinstance(message, AppendResponse)]
    group.drop()
    group.step(acks[0])
    assert leader.commit < index, "the leader is no voter any more: two of {2, 3} are needed, and itself is none"
    group.step(acks[1])
    assert (leader.role, leader.commit) == (Role.FOLLOWER, index)
    assert any(isinstance(message, TimeoutNow) for message in group.pending)
    group.deliver()
    (successor,) = group.leaders()
    assert successor in (2, 3)
    group.tick(1, 100)
    assert group[1].role is Role.FOLLOWER


def test_voters_of_the_committed_configuration_keep_campaigning() -> None:
    """A change that removes node 3 reached only node 3; if it did not campaign, nobody could win."""
    group = Group((1, 2, 3), settings=RaftSettings(election_ticks=5, heartbeat_ticks=1))
    leader = group.elect(3)
    leader.propose_change(change(ChangeKind.REMOVE_VOTER, 3))
    group.work(3)
    group.drop()
    group.restart(3)
    group.crash(2)
    assert sorted(group[3].configuration.voters) == [1, 2]
    group.start(2)
    group.tick(1, 5)
    group.tick(3, 10)
    group.deliver()
    (successor,) = group.leaders()
    assert successor in (1, 2), "node 3 led once more, committed its own removal, and handed over"
    assert group[3].term >= 2
    assert sorted(group[successor].committed_configuration.voters) == [1, 2]


def test_a_removed_leader_that_is_elected_again_does_not_count_itself() -> None:
    group = Group((1, 2, 3))
    leader = group.elect(3)
    leader.propose_change(change(ChangeKind.REMOVE_VOTER, 3))
    group.work(3)
    group.drop()
    group.restart(3)
    group.isolate(2)
    group.tick(3, 30)
    group.deliver()
    assert group.leaders() == [], "it has the vote of node 1, which is not a majority of {1, 2}"


def test_a_change_to_the_only_voter_left_is_committed_by_it_alone() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    group.crash(2)
    make(group, 1, ChangeKind.REMOVE_VOTER, 2)
    assert (leader.commit, sorted(leader.committed_configuration.voters)) == (leader.last_index, [1])


# --- wishes that are refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (change(ChangeKind.ADD_VOTER, 2), "node 2 is a voter already"),
        (change(ChangeKind.ADD_VOTER, 2, 1), "remove that voter first"),
        (change(ChangeKind.ADD_OBSERVER, 2, 1), "remove that voter first"),
        (change(ChangeKind.ADD_OBSERVER, 4), "node 4 is an observer already"),
        (change(ChangeKind.REMOVE_VOTER, 4), "node 4 is not a voter"),
        (change(ChangeKind.REMOVE_VOTER, 2, 1), "it was replaced meanwhile"),
        (change(ChangeKind.DEMOTE_VOTER, 9), "node 9 is not a voter"),
        (change(ChangeKind.REMOVE_OBSERVER, 2), "node 2 is not an observer"),
        (change(ChangeKind.UPDATE_ADDRESS, 9), "add it first"),
        (change(ChangeKind.UPDATE_ADDRESS, 4), "already"),
        (ConfigurationChange(ChangeKind.ADD_VOTER, Member(5)), "only be added with its directory id"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_with_the_reason(wish: ConfigurationChange, reason: str) -> None:
    with pytest.raises(ChangeRefused, match=reason) as refused:
        apply_change(configuration((1, 2, 3), (4,)), wish)
    assert not refused.value.retriable


def test_the_last_voter_cannot_be_removed() -> None:
    for kind in (ChangeKind.REMOVE_VOTER, ChangeKind.DEMOTE_VOTER):
        with pytest.raises(ChangeRefused, match="the last voter"):
            apply_change(configuration((1,), (2,)), change(kind, 1))


def test_changes_are_refused_while_leadership_is_handed_over() -> None:
    group = Group()
    leader = group.elect(1)
    leader.transfer(2)
    with pytest.raises(ProposalDropped, match="handed to node 2"):
        leader.propose_change(change(ChangeKind.REMOVE_VOTER, 3))


# --- voters are known by their data folder ----------------------------------------------------------------------------


def test_a_request_names_the_folder_it_expects_and_another_folder_never_votes() -> None:
    group = Group()
    group.wipe(2)
    for pre in (True, False):
        group[2].step(VoteRequest(1, 2, 5, directory(1), directory(2), 99, 4, pre=pre))
        group.work(2)
        (answer,) = group.pending
        assert isinstance(answer, VoteResponse)
        assert (answer.granted, answer.directory_id) == (False, directory(2, 1))
        group.drop()


def test_a_vote_of_another_folder_is_not_counted_even_if_it_is_given() -> None:
    group = Group(settings=RaftSettings(election_ticks=5, heartbeat_ticks=1, pre_vote=False))
    group[1].campaign()
    group.work(1)
    group.drop()
    group[1].step(VoteResponse(2, 1, 1, directory(2, 1), granted=True))
    assert group[1].role is Role.CANDIDATE
    group[1].step(VoteResponse(2, 1, 1, directory(2), granted=True))
    assert group[1].role is Role.LEADER


def test_a_wiped_voter_does_not_elect_a_node_that_lacks_committed_entries() -> None:
    group = Group((1, 2, 3))
    group.elect(1)
    group.isolate(3)
    group.propose(1, b"committed by 1 and 2")
    group.crash(1)
    group.wipe(2)
    group.heal()
    for _ in range(60):
        group.tick(2)
        group.tick(3)
        group.deliver()
    assert group.leaders() == []
    group.start(1)
    for _ in range(60):
        for node_id in (1, 2, 3):
            group.tick(node_id)
        group.deliver()
    assert group.leaders() == [1]
    assert group.nodes[3].data == [b"committed by 1 and 2"]


def test_a_wiped_voter_gets_the_log_but_counts_for_nothing() -> None:
    group = Group((1, 2, 3))
    leader = group.elect(1)
    group.propose(1, b"a")
    group.wipe(2)
    group.crash(3)
    for _ in range(3):
        group.beat(1)
    assert group.nodes[2].data == [b"a"]
    peer = leader.status().peers[2]
    assert (peer.directory_id, peer.match, peer.counts) == (directory(2, 1), leader.last_index, False)
    commit = leader.commit
    group.propose(1, b"b")
    assert leader.commit == commit
    for _ in range(10):
        group.beat(1)
    assert leader.role is Role.FOLLOWER, "it hears only a wiped voter, which is no quorum"


def test_a_wiped_voter_does_not_campaign_once_it_knows() -> None:
    group = Group((1, 2, 3))
    group.elect(1)
    group.wipe(2)
    for _ in range(3):
        group.beat(1)
    group.crash(1)
    group.tick(2, 100)
    assert group[2].role is Role.FOLLOWER


def test_a_wiped_voter_returns_by_being_demoted_and_added_again() -> None:
    group = Group((1, 2, 3))
    leader = group.elect(1)
    group.wipe(2)
    group.beat(1)
    make(group, 1, ChangeKind.DEMOTE_VOTER, 2, 1)
    assert leader.configuration.observers[2].directory_id == directory(2, 1)
    make(group, 1, ChangeKind.ADD_VOTER, 2, 1)
    group.crash(3)
    group.propose(1, b"x")
    assert leader.commit == leader.last_index
    assert group.nodes[2].data == [b"x"]


def test_a_voter_that_does_not_know_yet_that_it_was_added_votes_for_who_names_its_folder() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    group[4].step(VoteRequest(1, 4, 5, directory(1), directory(4), 9, 4))
    group.work(4)
    (answer,) = group.pending
    assert isinstance(answer, VoteResponse)
    assert answer.granted


def test_what_a_wiped_node_had_acknowledged_before_is_forgotten() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    leader.propose([b"x"])
    group.work(1)
    group.drop()
    leader.step(AppendResponse(2, 1, 1, directory(2), leader.last_index - 1))
    leader.step(HeartbeatResponse(2, 1, 1, directory(2, 1)))
    assert leader.status().peers[2].match == 0


# --- the first start, when folders are not known yet ------------------------------------------------------------------


def test_the_first_leader_records_the_folders_it_learns() -> None:
    group = Group((1, 2, 3), known=False)
    assert group[1].configuration.voters[2].directory_id == UNKNOWN_DIRECTORY
    group.elect(1)
    for node_id in (1, 2, 3):
        assert group[node_id].committed_configuration == configuration((1, 2, 3))


def test_a_folder_that_is_learned_later_is_recorded_later() -> None:
    group = Group((1, 2, 3), known=False, start=False)
    group.start(1)
    group.start(2)
    group.elect(1)
    assert group[1].configuration.voters[3].directory_id == UNKNOWN_DIRECTORY
    group.start(3)
    for _ in range(3):
        group.beat(1)
    assert group[3].committed_configuration == configuration((1, 2, 3))


def test_an_unknown_folder_matches_any_until_it_is_recorded() -> None:
    group = Group((1, 2, 3), known=False)
    group[2].step(VoteRequest(1, 2, 1, directory(1), UNKNOWN_DIRECTORY, 0, 0))
    group.work(2)
    assert any(isinstance(message, VoteResponse) and message.granted for message in group.pending)


def test_a_node_that_is_no_voter_in_its_own_eyes_does_not_vote_when_the_folder_is_unknown() -> None:
    group = Group((1, 2, 3), joiners=(4,), known=False)
    group[4].step(VoteRequest(1, 4, 1, directory(1), UNKNOWN_DIRECTORY, 9, 9))
    group.work(4)
    assert not any(isinstance(message, VoteResponse) and message.granted for message in group.pending)


def test_the_first_configuration_is_put_into_the_log_even_if_nothing_is_to_be_learned() -> None:
    group = Group((1, 2, 3), known=True)
    leader = group.elect(1)
    assert [entry.kind for entry in leader.log.entries] == [EntryKind.NOOP, EntryKind.CONFIGURATION]
    group.elect(2)
    assert [e.kind for e in group[2].log.entries].count(EntryKind.CONFIGURATION) == 1


# --- the pieces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "voters", "expected"),
    [([], 1, 0), ([7], 1, 7), ([7], 2, 0), ([7, 3], 2, 3), ([7, 5], 3, 5), ([9, 7, 5], 3, 7), ([9, 8, 7], 5, 7)],
)
def test_a_majority_has_reached_the_value_that_more_than_half_of_the_voters_have(
    values: list[int], voters: int, expected: int
) -> None:
    assert quorum_value(values, voters) == expected


def test_learned_folders_fill_only_what_was_unknown() -> None:
    first = configuration((1, 2), known=False)
    filled = with_learned_directories(first, {1: directory(1), 7: directory(7)})
    assert filled is not None
    assert [m.directory_id for m in filled.voters.values()] == [directory(1), UNKNOWN_DIRECTORY]
    assert with_learned_directories(filled, {1: directory(1, 5)}) is None


def test_the_history_of_configurations_follows_the_log() -> None:
    def entry(index: int, *voters: int) -> Entry:
        return Entry(1, index, EntryKind.CONFIGURATION, encode_configuration(configuration(voters)))

    history = ConfigurationHistory(SnapshotMeta(10, 1, configuration((1,))), [entry(9, 8), entry(12, 1, 2)])
    history.append([Entry(1, 13), entry(14, 1, 2, 3)])
    assert [sorted(history.at(index).voters) for index in (10, 11, 12, 13, 14, 99)] == [
        [1],
        [1],
        [1, 2],
        [1, 2],
        [1, 2, 3],
        [1, 2, 3],
    ]
    history.compact(13)
    assert sorted(history.at(13).voters) == [1, 2]
    history.truncate_from(14)
    assert (sorted(history.latest.voters), history.latest_index) == ([1, 2], 12)


def test_a_heartbeat_of_a_stranger_with_a_lower_term_is_told_the_term() -> None:
    group = Group()
    group.nodes[1].disk.hard_state = HardState(term=4)
    group.restart(1)
    group[1].step(Heartbeat(9, 1, 2, directory(1), 0))
    group.work(1)
    (answer,) = group.pending
    assert (answer.target, answer.term) == (9, 4)


def test_a_configuration_has_a_node_in_at_most_one_role() -> None:
    promoted = apply_change(configuration((1, 2), (3,)), change(ChangeKind.ADD_VOTER, 3))
    assert promoted == configuration((1, 2, 3))
    demoted = apply_change(promoted, ConfigurationChange(ChangeKind.DEMOTE_VOTER, Member(3)))
    assert demoted == Configuration(configuration((1, 2)).voters, {3: member(3)})
