"""Linearizable reads (thesis §6.4) and the transfer of leadership (§3.10)."""

from __future__ import annotations

import pytest

from chronik.raft.errors import NotLeader, ProposalDropped, ReadDropped, TransferRefused
from chronik.raft.settings import RaftSettings
from chronik.raft.state import Role
from chronik.raft.types import Append, Heartbeat, HeartbeatResponse, ReadState, TimeoutNow, VoteRequest
from harness.raft_group import Group, directory

# --- reads ------------------------------------------------------------------------------------------------------------


def test_a_read_is_served_at_the_commit_index_of_the_moment_it_was_asked_for() -> None:
    group = Group()
    leader = group.elect(1)
    group.propose(1, b"a")
    leader.read_index(7)
    asked_at = leader.commit
    group.work(1)
    assert group.nodes[1].reads == []
    group.propose(1, b"b")
    assert group.nodes[1].reads == [ReadState(7, asked_at)]


def test_a_read_waits_for_a_quorum_to_confirm_the_leader() -> None:
    group = Group((1, 2, 3, 4, 5))
    leader = group.elect(1)
    leader.read_index(1)
    group.work(1)
    echoes = []
    group.deliver(lambda m: not isinstance(m, HeartbeatResponse))
    echoes = [m for m in group.pending if isinstance(m, HeartbeatResponse)]
    group.drop()
    group.step(echoes[0])
    assert group.nodes[1].reads == []
    group.step(echoes[1])
    assert [read.context for read in group.nodes[1].reads] == [1]


def test_an_echo_of_an_earlier_heartbeat_confirms_nothing() -> None:
    group = Group()
    leader = group.elect(1)
    leader.read_index(1)
    group.work(1)
    group.drop()
    for peer in (2, 3):
        leader.step(HeartbeatResponse(peer, 1, leader.term, directory(peer), 0))
    group.work(1)
    assert group.nodes[1].reads == []


def test_an_echo_of_a_wiped_voter_confirms_nothing() -> None:
    group = Group()
    leader = group.elect(1)
    leader.read_index(1)
    group.work(1)
    group.drop()
    for peer in (2, 3):
        leader.step(HeartbeatResponse(peer, 1, leader.term, directory(peer, 1), 99))
    group.work(1)
    assert group.nodes[1].reads == []


def test_a_leader_that_was_replaced_serves_no_read() -> None:
    group = Group()
    group.elect(1)
    group.isolate(1)
    group.elect(2)
    group.propose(2, b"newer")
    group[1].read_index(1)
    group.work(1)
    group.heal()
    group.beat(1)
    assert group.nodes[1].reads == []
    assert group[1].role is Role.FOLLOWER


def test_a_new_leader_serves_reads_only_after_it_has_committed_in_its_term() -> None:
    group = Group()
    leader = group[1]
    leader.campaign()
    group.work(1)
    group.deliver(lambda message: not isinstance(message, Append))
    assert leader.role is Role.LEADER
    leader.read_index(1)
    group.tick(1)
    group.deliver(lambda message: not isinstance(message, Append))
    assert group.nodes[1].reads == []
    group.deliver()
    assert [read.context for read in group.nodes[1].reads] == [1]
    assert group.nodes[1].reads[0].index >= 1


def test_reads_of_one_turn_share_one_round_of_heartbeats() -> None:
    group = Group()
    leader = group.elect(1)
    for context in range(100):
        leader.read_index(context)
    ready = leader.ready()
    assert len([m for m in ready.messages if isinstance(m, Heartbeat)]) == 2


def test_a_group_of_one_serves_reads_at_once() -> None:
    group = Group((1,))
    group[1].read_index(3)
    group.work(1)
    assert group.nodes[1].reads == [ReadState(3, group[1].commit)]


def test_the_heartbeats_of_a_read_that_are_lost_are_made_good_by_the_next_ones() -> None:
    group = Group()
    group.elect(1)
    group[1].read_index(1)
    group.work(1)
    group.drop()
    group.beat(1)
    assert [read.context for read in group.nodes[1].reads] == [1]


def test_only_a_leader_serves_reads_and_only_so_many() -> None:
    group = Group(settings=RaftSettings(pending_reads_max=2))
    leader = group.elect(1)
    with pytest.raises(NotLeader):
        group[2].read_index(1)
    leader.read_index(1)
    leader.read_index(2)
    with pytest.raises(ReadDropped, match="2 reads are waiting"):
        leader.read_index(3)


# --- transfer ---------------------------------------------------------------------------------------------------------


def test_leadership_moves_to_a_voter_that_is_up_to_date_although_everybody_hears_the_leader() -> None:
    group = Group()
    group.elect(1)
    group[1].transfer(3)
    group.work(1)
    group.deliver()
    assert group.leaders() == [3]
    assert group[3].term == 2


def test_a_voter_that_lags_is_brought_up_to_date_first() -> None:
    group = Group()
    leader = group.elect(1)
    group.isolate(3)
    group.propose(1, b"a", b"b")
    group.heal()
    leader.transfer(3)
    group.work(1)
    assert not any(isinstance(message, TimeoutNow) for message in group.pending)
    for _ in range(3):
        group.beat(1)
    assert group.leaders() == [3]
    assert group.nodes[3].data == [b"a", b"b"]


def test_proposals_are_refused_while_leadership_moves_and_taken_again_when_it_did_not() -> None:
    group = Group()
    leader = group.elect(1)
    group.isolate(3)
    group.propose(1, b"x")
    leader.transfer(3)
    with pytest.raises(ProposalDropped, match="handed to node 3"):
        leader.propose([b"y"])
    for _ in range(5):
        group.beat(1)
    group.propose(1, b"y")
    assert group.nodes[1].data == [b"x", b"y"]


def _transfer_while_a_folder_is_learned() -> Group:
    """Node 1 hands over to node 2, and before node 2 hears of it, node 3 shows its folder for the first time."""
    group = Group((1, 2, 3), known=False, start=False)
    group.start(1)
    group.start(2)
    group.elect(1)
    group[1].transfer(2)
    group.work(1)
    group.start(3)
    for _ in range(2):
        group.tick(1)
        group.deliver(lambda message: 2 not in (message.source, message.target))
    assert group[3].log.last_index == group[1].log.last_index
    return group


def test_a_folder_learned_while_leadership_moves_does_not_make_the_target_lose() -> None:
    group = _transfer_while_a_folder_is_learned()
    group.deliver()
    assert group.leaders() == [2]
    group.beat(2)
    assert group[2].configuration.voters[3].directory_id == directory(3)


def test_a_folder_learned_while_leadership_moves_is_recorded_when_it_did_not() -> None:
    group = _transfer_while_a_folder_is_learned()
    group.drop()
    group.tick(1, 5)
    group.deliver(lambda message: not isinstance(message, TimeoutNow))
    assert group.leaders() == [1]
    assert group[3].committed_configuration.voters[3].directory_id == directory(3)


def test_leadership_goes_only_to_other_voters_that_are_what_the_configuration_says() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    leader = group.elect(1)
    leader.transfer(1)
    with pytest.raises(TransferRefused, match="not another voter"):
        leader.transfer(4)
    group.wipe(3)
    group.beat(1)
    with pytest.raises(TransferRefused, match="empty data folder"):
        leader.transfer(3)
    with pytest.raises(NotLeader):
        group[2].transfer(3)
    assert leader.status().transfer_target == 0


def test_an_election_that_the_leader_asked_for_passes_the_lease() -> None:
    group = Group()
    group.elect(1)
    group[2].step(VoteRequest(3, 2, 2, directory(3), directory(2), 99, 1, transfer=True))
    assert group[2].term == 2


def test_a_node_that_may_not_lead_does_not_campaign_when_told_to() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    group.elect(1)
    group[4].step(Heartbeat(1, 4, 1, directory(4), 0))
    group[4].step(TimeoutNow(1, 4, 1))
    assert group[4].role is Role.FOLLOWER
