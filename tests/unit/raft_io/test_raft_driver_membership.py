"""Membership over real sockets: joining, becoming a voter, leaving, dying, coming back empty, moving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from chronik.raft.driver_errors import ChangeFailed
from harness.ports import free_port
from harness.raft_cluster import Cluster, Node, eventually, small_snapshots


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await Cluster(tmp_path, 3).start()
    yield cluster
    await cluster.close()


def voters(node: Node) -> list[int]:
    return sorted(node.driver.status().configuration.voters)


def observers(node: Node) -> list[int]:
    return sorted(node.driver.status().configuration.observers)


def joiner(cluster: Cluster, node_id: int, through: Node) -> Node:
    node = cluster.new_node(node_id)
    node.join = [through.address]
    cluster.nodes[node_id] = node
    return node


async def all_see(cluster: Cluster, expected: list[int]) -> None:
    await eventually(lambda: all(voters(node) == expected for node in cluster.running), f"all see voters {expected}")


async def test_a_node_that_joins_through_any_node_catches_up_and_becomes_a_voter(three: Cluster) -> None:
    leader = await three.leader()
    await asyncio.gather(*(leader.driver.propose(b"%d" % i, 5) for i in range(50)))
    follower = next(node for node in three.running if node is not leader)
    new = await joiner(three, 4, follower).start()
    await all_see(three, [1, 2, 3, 4])
    assert len(new.ledger.datas) == 50
    await new.driver.propose(b"from the new one", 5)
    await three.same()
    for node in list(three.running):
        await node.crash()
    for node in three.nodes.values():
        node.voters, node.join = {}, []
        await node.start()
    await three.leader()
    await all_see(three, [1, 2, 3, 4])


async def test_a_node_that_joins_a_group_with_a_long_history_gets_a_snapshot(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 1, small_snapshots()).start()
    try:
        for i in range(3):
            await asyncio.gather(*(cluster[1].driver.propose(b"%d-%d" % (i, j), 5) for j in range(50)))
        await eventually(lambda: cluster[1].driver.status().first_index > 20, "the beginning of the log is gone")
        new = await joiner(cluster, 2, cluster[1]).start()
        await all_see(cluster, [1, 2])
        assert new.driver.status().snapshots_installed == 1
        await cluster.same()
    finally:
        await cluster.close()


async def test_a_node_that_joins_before_anybody_is_there_keeps_trying(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    try:
        new = await joiner(cluster, 2, cluster[1]).start()
        assert "not a member of a cluster yet" in (new.driver.status().problem or "")
        await cluster[1].start()
        await all_see(cluster, [1, 2])
    finally:
        await cluster.close()


async def test_a_member_that_is_told_to_join_another_cluster_says_so_and_stays_in_its_own(tmp_path: Path) -> None:
    structlog.reset_defaults()
    ours, theirs = Cluster(tmp_path / "ours", 1), Cluster(tmp_path / "theirs", 1)
    try:
        for cluster, cluster_id in ((ours, "ours"), (theirs, "theirs")):
            await cluster.start()
            await cluster.leader()
            await cluster[1].driver.set_cluster_id(cluster_id)
        await ours[1].stop()
        ours[1].join = [theirs[1].address]
        with structlog.testing.capture_logs() as lines:
            await ours[1].start()
            await eventually(lambda: any("told to join" in line["event"] for line in lines), "it is said")
        (warning,) = [line for line in lines if "told to join" in line["event"]]
        assert "to cluster theirs" in warning["reason"] and "empty data folder" in warning["reason"]
        assert voters(ours[1]) == [1] and ours[1].driver.status().problem is None
        assert voters(theirs[1]) == [1] and observers(theirs[1]) == []
    finally:
        await ours.close()
        await theirs.close()


async def test_an_observer_follows_without_a_vote_until_it_is_made_a_voter(three: Cluster) -> None:
    leader = await three.leader()
    new = joiner(three, 4, leader)
    new.join_as_voter = False
    await new.start()
    await eventually(lambda: all(observers(node) == [4] for node in three.running), "an observer everywhere")
    await new.driver.propose(b"observers may propose", 5)
    await three.same([b"observers may propose"])
    ticks = new.driver._observer.ticks
    await eventually(lambda: new.driver._observer.ticks > ticks + 20, "upkeep had its turn")
    assert voters(leader) == [1, 2, 3] and not new.driver.status().is_voter
    await new.driver.add_voter(4, 5)
    await all_see(three, [1, 2, 3, 4])
    await new.driver.remove_voter(4, 5)
    await all_see(three, [1, 2, 3])
    assert "not a member of the cluster, whose voters are 1, 2, 3:" in (new.driver.status().problem or "")
    assert observers(leader) == []


async def test_who_can_be_removed_depends_on_who_would_be_left(three: Cluster) -> None:
    leader = await three.leader()
    status = leader.driver.status
    await eventually(lambda: all(status().has_quorum_without(node_id) for node_id in (1, 2, 3)), "any of three")
    dead, other = (node for node in list(three.running) if node is not leader)
    await dead.crash()
    await eventually(lambda: not status().has_quorum_without(other.node_id), "one of two is no majority")
    assert status().has_quorum_without(dead.node_id), "the dead one can go"


async def test_a_voter_is_removed_and_the_rest_goes_on(three: Cluster) -> None:
    leader = await three.leader()
    gone = next(node for node in three.running if node is not leader)
    other = next(node for node in three.running if node not in (leader, gone))
    await other.driver.remove_voter(gone.node_id, 5)
    remaining = sorted({1, 2, 3} - {gone.node_id})
    await eventually(lambda: voters(leader) == remaining and voters(other) == remaining, "it is gone")
    await eventually(lambda: voters(gone) == remaining, "it learns that it was removed")
    await leader.driver.propose(b"without it", 5)
    term = leader.driver.status().term
    ticks = gone.driver._observer.ticks
    await eventually(lambda: gone.driver._observer.ticks > ticks + 25, "it has had time to campaign")
    assert leader.driver.status().term == term, "and did not disturb anybody"


async def test_a_dead_voter_is_removed_and_a_quorum_of_the_rest_suffices(three: Cluster) -> None:
    leader = await three.leader()
    dead = next(node for node in three.running if node is not leader)
    await dead.crash()
    await leader.driver.remove_voter(dead.node_id, 5)
    assert voters(leader) == sorted({1, 2, 3} - {dead.node_id})
    await leader.driver.propose(b"goes on", 5)


async def test_the_leader_removes_itself_and_another_one_takes_over(three: Cluster) -> None:
    leader = await three.leader()
    await leader.driver.remove_voter(leader.node_id, 5)
    await leader.crash()
    new = await three.leader(other_than=leader.node_id)
    await new.driver.propose(b"after", 5)
    assert voters(new) == sorted({1, 2, 3} - {leader.node_id})


async def test_the_last_voter_cannot_be_removed_and_strangers_cannot_be_added(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 1).start()
    try:
        with pytest.raises(ChangeFailed, match="last voter") as last:
            await cluster[1].driver.remove_voter(1, 5)
        assert not last.value.retriable
        with pytest.raises(ChangeFailed, match="start it with --join"):
            await cluster[1].driver.add_voter(9, 5)
        await cluster[1].driver.remove_voter(9, 5)
    finally:
        await cluster.close()


async def settled(cluster: Cluster) -> None:
    """Waits until the folders of all voters are part of the configuration everywhere."""
    await cluster.leader()
    await eventually(
        lambda: all(
            all(any(member.directory_id) for member in node.driver.status().configuration.voters.values())
            for node in cluster.running
        ),
        "the folders are recorded",
    )


async def test_a_wiped_voter_neither_votes_nor_counts_until_it_is_added_again(three: Cluster) -> None:
    leader = await three.leader()
    await settled(three)
    await leader.driver.propose(b"kept", 5)
    await three.same([b"kept"])
    wiped, third = (node for node in list(three.running) if node is not leader)
    await wiped.crash()
    wiped.wipe()
    await wiped.start()
    await eventually(lambda: wiped.ledger.datas == [b"kept"], "it is sent the log all the same")
    peer = leader.driver.status().peers[wiped.node_id]
    assert peer.same_folder is False
    assert not wiped.driver.status().is_voter
    await leader.crash()
    ticks = third.driver._observer.ticks
    await eventually(lambda: third.driver._observer.ticks > ticks + 40, "time for several elections")
    assert third.driver.leader_id == wiped.driver.leader_id == 0, "an emptied voter must not make a majority"
    assert {node.driver.status().problem for node in (third, wiped)} == {"no quorum: 1 of 3 voters reachable"}
    assert not third.driver.status().has_quorum_without(leader.node_id)
    await leader.start()
    await three.leader()
    await three[third.node_id].driver.add_voter(wiped.node_id, 10)
    await eventually(lambda: wiped.driver.status().is_voter, "added again")
    leader = await three.leader()
    await leader.crash()
    await three.leader(other_than=leader.node_id)


async def test_a_wiped_node_that_joins_again_becomes_a_voter_by_itself(three: Cluster) -> None:
    leader = await three.leader()
    await settled(three)
    await leader.driver.propose(b"kept", 5)
    wiped = next(node for node in three.running if node is not leader)
    await wiped.crash()
    wiped.wipe()
    wiped.voters, wiped.join = {}, [leader.address]
    await wiped.start()
    await eventually(lambda: wiped.driver.status().is_voter, "a voter with its new folder")
    await three.same([b"kept"])
    await all_see(three, [1, 2, 3])


async def test_a_whole_cluster_restarted_on_other_addresses_finds_itself_again(three: Cluster) -> None:
    leader = await three.leader()
    await leader.driver.propose(b"kept", 5)
    for node in list(three.running):
        await node.stop()
    for node in three.nodes.values():
        node.port = free_port()
    for node in three.nodes.values():
        node.voters = {other.node_id: other.address for other in three.nodes.values()}
    await three.start()
    await three.leader()
    await three[1].driver.propose(b"more", 5)
    await three.same([b"kept", b"more"])
    ports = {node.node_id: node.port for node in three.nodes.values()}
    await eventually(
        lambda: all(
            {n: m.port for n, m in node.driver.status().configuration.voters.items()} == ports for node in three.running
        ),
        "the new addresses are recorded",
    )


async def test_a_voter_that_moved_is_found_and_its_new_address_is_recorded(three: Cluster) -> None:
    leader = await three.leader()
    await settled(three)
    moved = next(node for node in three.running if node is not leader)
    await moved.crash()
    moved.port = free_port()
    moved.voters = {}
    await moved.start()
    await eventually(
        lambda: leader.driver.status().configuration.voters[moved.node_id].port == moved.port,
        "the new address is known",
    )
    await moved.driver.propose(b"from there", 5)
    await three.same([b"from there"])
