"""Snapshots and compaction, Raft §7: by reference, fetched beside the core, installed only if that leads forward."""

from __future__ import annotations

import pytest

from chronik.raft.settings import RaftSettings
from chronik.raft.types import (
    AppendResponse,
    ChangeKind,
    ConfigurationChange,
    Entry,
    HardState,
    InstallSnapshot,
    SnapshotMeta,
)
from harness.raft_group import Group, configuration, directory, member


def group_with_a_late_node(*, retained: int = 0, entries: int = 20) -> Group:
    """Node 3 was down while the others wrote, and the leader has compacted its log."""
    group = Group((1, 2, 3), settings=RaftSettings(election_ticks=5, heartbeat_ticks=1))
    group.elect(1)
    group.crash(3)
    for number in range(entries):
        group.propose(1, b"%d" % number)
    group.snapshot(1, retained=retained)
    group.start(3)
    for _ in range(3):
        group.beat(1)
    return group


def test_a_follower_whose_entries_are_gone_is_offered_a_snapshot_and_catches_up_with_it() -> None:
    group = group_with_a_late_node()
    leader = group[1]
    (fetch,) = group.nodes[3].fetches
    assert (fetch.source, fetch.snapshot) == (1, leader.log.snapshot)
    assert leader.status().peers[3].state == "snapshot"
    assert group.finish_fetch(3)
    group.deliver()
    assert (group[3].commit, group[3].applied) == (leader.commit, leader.commit)
    assert leader.status().peers[3].state == "replicate"
    group.propose(1, b"after")
    assert group.nodes[3].data == [b"after"], "what the snapshot covers is not applied again"


def test_the_snapshot_is_installed_before_it_is_acknowledged() -> None:
    group = group_with_a_late_node()
    node = group.nodes[3]
    node.core.snapshot_fetched(node.fetches[0].snapshot)
    ready = node.core.ready()
    assert ready.snapshot == node.fetches[0].snapshot
    assert ready.must_sync
    assert ready.messages == []
    assert [type(message) for message in ready.durable_messages] == [AppendResponse]


def test_the_configuration_comes_with_the_snapshot() -> None:
    group = Group((1, 2), joiners=(3, 4))
    group.elect(1)
    group[1].propose_change(ConfigurationChange(ChangeKind.ADD_OBSERVER, member(4)))
    group.work(1)
    group.deliver()
    group.crash(2)
    group[1].propose_change(ConfigurationChange(ChangeKind.ADD_OBSERVER, member(3)))
    group.work(1)
    group.start(2)
    for _ in range(3):
        group.beat(1)
    meta = group.snapshot(1)
    assert meta.configuration == group[1].configuration
    group.nodes[4].disk.snapshot = meta
    group.nodes[4].disk.entries = []
    group.restart(4)
    assert sorted(group[4].configuration.voters) == [1, 2]
    assert sorted(group[4].configuration.observers) == [3, 4]


def test_an_installed_snapshot_brings_its_configuration() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    leader = group.elect(1)
    group.crash(3)
    leader.propose_change(ConfigurationChange(ChangeKind.ADD_VOTER, member(4)))
    group.work(1)
    group.deliver()
    group.snapshot(1)
    group.start(3)
    for _ in range(3):
        group.beat(1)
    assert sorted(group[3].configuration.voters) == [1, 2, 3]
    group.finish_fetch(3)
    assert group[3].configuration == leader.configuration
    assert sorted(group[3].committed_configuration.voters) == [1, 2, 3, 4]


def test_a_snapshot_has_the_configuration_of_its_index_not_a_later_one() -> None:
    group = Group((1, 2, 3), joiners=(4,))
    leader = group.elect(1)
    group.propose(1, b"x")
    leader.propose_change(ConfigurationChange(ChangeKind.ADD_VOTER, member(4)))
    assert sorted(leader.snapshot_meta(leader.applied).configuration.voters) == [1, 2, 3]


def test_a_follower_that_is_little_behind_is_served_from_the_retained_log() -> None:
    group = group_with_a_late_node(retained=50)
    assert group.nodes[3].fetches == []
    assert group[3].commit == group[1].commit


def test_a_lost_offer_is_made_again() -> None:
    group = group_with_a_late_node()
    group.nodes[3].fetches.clear()
    group.restart(3)
    for _ in range(8):
        group.beat(1)
    assert len(group.nodes[3].fetches) == 1


def test_a_transfer_under_way_is_not_begun_again_however_often_it_is_offered() -> None:
    group = group_with_a_late_node()
    for number in range(30):
        group.beat(1)
        group.propose(1, b"%d" % number)
        if number % 10 == 0:
            group.snapshot(1)
    assert len(group.nodes[3].fetches) == 1


def test_a_snapshot_that_is_no_longer_enough_is_followed_by_the_next_one() -> None:
    group = group_with_a_late_node()
    for number in range(10):
        group.propose(1, b"%d" % number)
    group.snapshot(1)
    assert group.finish_fetch(3)
    group.deliver()
    (fetch,) = group.nodes[3].fetches
    assert fetch.snapshot == group[1].log.snapshot
    group.finish_fetch(3)
    group.deliver()
    assert group[3].commit == group[1].commit


def test_a_failed_transfer_is_offered_again() -> None:
    group = group_with_a_late_node()
    group[3].snapshot_fetch_failed(group.nodes[3].fetches.pop().snapshot)
    for _ in range(8):
        group.beat(1)
    assert len(group.nodes[3].fetches) == 1


def test_a_new_leader_takes_over_the_transfer() -> None:
    group = group_with_a_late_node()
    for _ in range(3):
        group.beat(1)
    group.snapshot(2)
    group.crash(1)
    group.elect(2)
    for _ in range(3):
        group.beat(2)
    assert [fetch.source for fetch in group.nodes[3].fetches] == [1, 2]


def test_a_fetched_snapshot_that_the_log_has_overtaken_is_not_installed() -> None:
    group = group_with_a_late_node()
    offered = group.nodes[3].fetches[0].snapshot
    node = group.nodes[3]
    node.disk.entries = list(group.nodes[2].disk.entries)
    node.disk.hard_state = group.nodes[2].disk.hard_state
    group.restart(3)
    assert not group[3].snapshot_fetched(offered)
    assert group[3].ready().snapshot is None


def test_an_offer_that_the_log_reaches_already_only_moves_the_commit() -> None:
    group = Group((1, 2, 3))
    node = group.nodes[3]
    node.disk.entries = [Entry(1, 1), Entry(1, 2), Entry(2, 3)]
    node.disk.hard_state = HardState(term=2)
    group.restart(3)
    group[3].step(InstallSnapshot(1, 3, 2, SnapshotMeta(2, 1, configuration((1, 2, 3)))))
    group.work(3)
    assert (group[3].commit, group[3].last_index, node.fetches) == (2, 3, [])
    (answer,) = group.pending
    assert isinstance(answer, AppendResponse)
    assert (answer.index, answer.rejected) == (2, False)


def test_a_log_that_contradicts_the_snapshot_is_given_up_whole() -> None:
    group = Group((1, 2, 3))
    node = group.nodes[3]
    node.disk.entries = [Entry(1, 1), Entry(1, 2), Entry(1, 3), Entry(1, 4)]
    node.disk.hard_state = HardState(term=2)
    group.restart(3)
    group[3].step(InstallSnapshot(1, 3, 3, SnapshotMeta(3, 2, configuration((1, 2, 3)))))
    group.work(3)
    assert group.finish_fetch(3)
    assert (group[3].last_index, group[3].commit, group[3].log.last_term) == (3, 3, 2)
    assert node.disk.entries == []


def test_a_node_starts_again_from_snapshot_and_log_and_applies_only_what_follows() -> None:
    group = Group((1,))
    group.propose(1, b"a", b"b")
    group.snapshot(1)
    group.propose(1, b"c")
    group.restart(1)
    assert group.nodes[1].data == [b"c"]


def test_retained_entries_are_not_applied_again_after_a_restart() -> None:
    group = Group((1,))
    group.propose(1, b"a", b"b", b"c")
    before = list(group.nodes[1].disk.entries)
    group.snapshot(1, retained=2)
    group.nodes[1].disk.entries = before[-3:]
    group.restart(1)
    assert group.nodes[1].data == []
    assert group[1].log.first_index < group[1].log.snapshot.index


def test_only_applied_state_can_be_a_snapshot() -> None:
    group = Group((1, 2))
    leader = group.elect(1)
    leader.propose([b"x"])
    with pytest.raises(ValueError, match="is not between"):
        leader.snapshot_meta(leader.last_index)


def test_an_older_snapshot_than_the_last_one_changes_nothing() -> None:
    group = Group((1,))
    group.propose(1, b"a", b"b")
    older = group[1].snapshot_meta(2)
    newer = group.snapshot(1)
    group[1].compact(older, 0)
    assert group[1].log.snapshot == newer


def test_a_leader_does_not_install_snapshots() -> None:
    group = Group()
    leader = group.elect(1)
    assert not leader.snapshot_fetched(SnapshotMeta(99, 1, configuration((1,))))
    assert leader.log.snapshot.index == 0


def test_a_peer_of_another_folder_is_probed_from_the_start_again() -> None:
    group = group_with_a_late_node()
    group.finish_fetch(3)
    group.deliver()
    group.wipe(3)
    for _ in range(3):
        group.beat(1)
    assert len(group.nodes[3].fetches) == 1
    assert group[1].status().peers[3].directory_id == directory(3, 1)
