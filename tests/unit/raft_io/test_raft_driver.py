"""The driver with real sockets and files: proposals from anywhere, leaders that die, restarts, reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from chronik.raft.driver_errors import NodeStopped, NoLeader, ProposalTooLarge, ProposeError
from chronik.raft.types import Append, CommitNotice, Heartbeat, Message
from harness.raft_cluster import FAST, Cluster, Node, eventually


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await Cluster(tmp_path, 3).start()
    yield cluster
    await cluster.close()


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await Cluster(tmp_path, 1).start()
    yield cluster
    await cluster.close()


async def test_a_group_of_one_leads_at_once_and_answers_with_the_result_of_applying(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, msgspec.structs.replace(FAST, tick_s=10))  # an election would take minutes
    node = await cluster[1].start()
    try:
        result = await node.driver.propose(b"first", 5)
        assert result == (node.ledger.entries[0][0], b"first")
        assert node.driver.is_leader
    finally:
        await cluster.close()


async def test_nodes_that_start_elect_one_as_soon_as_a_majority_is_connected(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3, msgspec.structs.replace(FAST, tick_s=10))  # the clock alone would take minutes
    try:
        await cluster[1].start()
        assert not cluster[1].driver.leader_id
        await cluster[2].start()
        leader = await cluster.leader()
        assert await leader.driver.propose(b"first", 5)
        assert leader.driver.status().term == 1
    finally:
        await cluster.close()


async def test_a_node_that_starts_again_leaves_the_leader_alone(three: Cluster) -> None:
    leader = await three.leader()
    await leader.driver.propose(b"before", 5)
    term = leader.driver.status().term
    other = next(node for node in three.running if node is not leader)
    await other.stop()
    await other.start()
    await eventually(lambda: other.driver.leader_id == leader.node_id, "it follows")
    await other.driver.propose(b"after", 5)
    assert leader.driver.is_leader and leader.driver.status().term == term


async def test_a_proposal_made_at_any_node_is_applied_there_when_it_resolves(three: Cluster) -> None:
    await three.leader()
    for node in three.running:
        data = b"from %d" % node.node_id
        index, echoed = await node.driver.propose(data, 5)  # type: ignore[misc]
        assert (index, echoed) == node.ledger.entries[-1] and echoed == data
    await three.same([b"from 1", b"from 2", b"from 3"])


async def test_many_proposals_at_once_share_writes_and_keep_their_order(three: Cluster) -> None:
    leader = await three.leader()
    before = leader.driver.status().syncs
    datas = [b"%d" % i for i in range(500)]
    await asyncio.gather(*(leader.driver.propose(data, 10) for data in datas))
    assert leader.ledger.datas == datas
    assert leader.driver.status().syncs - before < 20
    follower = next(node for node in three.running if node is not leader)
    more = [b"f%d" % i for i in range(500)]
    await asyncio.gather(*(follower.driver.propose(data, 10) for data in more))
    await three.same(datas + more)


async def test_metadata_writes_go_on_after_the_leader_dies_without_a_word(three: Cluster) -> None:
    old = await three.leader()
    await old.driver.propose(b"before", 5)
    await old.crash()
    survivors = three.running
    results = await asyncio.gather(*(node.driver.propose(b"after %d" % node.node_id, 5) for node in survivors))
    assert len(results) == 2
    new = await three.leader(other_than=old.node_id)
    assert new.driver.status().term > 1
    await old.start()
    await three.same()
    assert sorted(new.ledger.datas) == sorted([b"before", *(b"after %d" % node.node_id for node in survivors)])


async def test_every_node_restarted_from_disk_applies_everything_once_and_in_order(three: Cluster) -> None:
    leader = await three.leader()
    datas = [b"%d" % i for i in range(50)]
    await asyncio.gather(*(leader.driver.propose(data, 5) for data in datas))
    for node in list(three.running):
        await node.crash()
    await three.start()
    await three.leader()
    await three.same(datas)
    await three[2].driver.propose(b"again", 5)
    await three.same([*datas, b"again"])


def all_folders_recorded(cluster: Cluster) -> bool:
    folders = {node.node_id: node.driver._storage.directory_id for node in cluster.running}
    return all(
        {n: m.directory_id for n, m in node.driver.status().configuration.voters.items()} == folders
        for node in cluster.running
    )


async def test_a_graceful_stop_hands_leadership_over_before_the_node_is_gone(tmp_path: Path) -> None:
    three = await Cluster(tmp_path, 3, msgspec.structs.replace(FAST, stop_transfer_s=5)).start()
    try:
        leader = await three.leader()
        await eventually(lambda: all_folders_recorded(three), "nothing more is appended")
        started = asyncio.get_running_loop().time()
        await leader.stop()
        assert asyncio.get_running_loop().time() - started < 5
        known = {node.driver.leader_id for node in three.running}
        assert known - {0, leader.node_id}, "another one leads already"
        with pytest.raises(NodeStopped):
            await leader.driver.propose(b"x", 1)
    finally:
        await three.close()


async def test_without_a_quorum_a_proposal_fails_inside_its_deadline_and_names_the_cause(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    loop = asyncio.get_running_loop()
    started = loop.time()
    node = await cluster[1].start()
    assert loop.time() - started < 1, "starting does not wait for the others"
    try:
        started = loop.time()
        with pytest.raises(NoLeader, match="no quorum: 1 of 3 voters reachable") as error:
            await node.driver.propose(b"x", 0.3)
        assert 0.25 < loop.time() - started < 1
        assert error.value.retriable and not error.value.ambiguous
        with pytest.raises(NoLeader, match="no quorum"):
            await node.driver.read_barrier(0.2)
        status = node.driver.status()
        assert status.problem == "no quorum: 1 of 3 voters reachable"
        assert not status.has_quorum
        assert "cannot connect" in (status.peers[2].problem or "")
        started = loop.time()
        await node.stop()
        assert loop.time() - started < 2
    finally:
        await cluster.close()


async def test_a_leader_cut_off_from_the_others_never_answers_and_says_so_in_time(three: Cluster) -> None:
    leader = await three.leader()
    others = [node for node in three.running if node is not leader]
    for node in others:
        await node.crash()
    with pytest.raises(ProposeError, match="no quorum: 1 of 3") as error:
        await leader.driver.propose(b"lost", 1)
    assert error.value.retriable
    await eventually(lambda: leader.driver.leader_id == 0, "it steps down")
    for node in others:
        await node.start()
    await three.leader()
    await three[1].driver.propose(b"found", 5)
    await three.same()
    assert three[1].ledger.datas in ([b"found"], [b"lost", b"found"])


async def test_a_read_barrier_at_any_node_sees_every_write_acknowledged_before_it(three: Cluster) -> None:
    await three.leader()
    for i in range(20):
        writer, reader = three[1 + i % 3], three[1 + (i + 1) % 3]
        await writer.driver.propose(b"%d" % i, 5)
        await asyncio.gather(*(reader.driver.read_barrier(5) for _ in range(5)))
        assert reader.ledger.datas[-1] == b"%d" % i


async def test_the_status_tells_what_a_person_wants_to_know(three: Cluster) -> None:
    leader = await three.leader()
    await leader.driver.propose(b"x", 5)
    await three.same([b"x"])
    await eventually(lambda: all(p.lag == 0 for p in leader.driver.status().peers.values()), "no lag")
    last = leader.driver.status().last_index
    await eventually(lambda: all(node.driver.status().applied == last for node in three.running), "all is applied")
    for node in three.running:
        status = node.driver.status()
        assert (status.leader_id, status.voters, status.voters_reachable) == (leader.node_id, 3, 3)
        assert status.applied == status.commit == status.last_index
        assert sorted(status.peers) == sorted({1, 2, 3} - {node.node_id})
        assert all(peer.connected and peer.voter and peer.same_folder for peer in status.peers.values())
        assert status.problem is None
    assert leader.driver.status().peers[1 + leader.node_id % 3].state == "replicate"


def without_commits(node: Node) -> None:
    """The node hears everything but how far it is committed, so it has applied nothing of it when it must lead."""
    receive = node.driver._receive

    def filtered(message: Message) -> None:
        if isinstance(message, Append | Heartbeat):
            message = msgspec.structs.replace(message, commit=0)
        if not isinstance(message, CommitNotice):
            receive(message)

    node.driver._transport.on_message = filtered


async def test_leadership_is_announced_once_everything_committed_before_is_applied(three: Cluster) -> None:
    first = await three.leader()
    rest = [node for node in three.running if node is not first]
    applied_when_told: list[int] = []

    def watch(node: Node) -> None:
        node.driver.on_leadership(lambda leads, term: applied_when_told.append(len(node.ledger.entries)))

    loop = asyncio.get_running_loop()

    def slowly(entries: Sequence[tuple[int, bytes]]) -> None:
        until = loop.time() + 0.001 * len(entries)
        while loop.time() < until:
            pass

    for node in rest:
        node.ledger.before_apply = slowly
        without_commits(node)
        watch(node)
    await asyncio.gather(*(first.driver.propose(b"%d" % i, 5) for i in range(50)))
    await eventually(lambda: all(p.lag == 0 for p in first.driver.status().peers.values()), "all have it")
    assert [len(node.ledger.entries) for node in rest] == [0, 0]
    await first.crash()
    await eventually(lambda: applied_when_told, "one of the others leads")
    assert applied_when_told == [50]


async def test_terms_stay_as_they_are_while_nodes_are_healthy(three: Cluster) -> None:
    leader = await three.leader()
    term, elections = leader.driver.status().term, [node.driver.status().elections for node in three.running]
    ticks = leader.driver._observer.ticks
    await eventually(lambda: leader.driver._observer.ticks > ticks + 40, "several election timeouts")
    assert [node.driver.status().elections for node in three.running] == elections
    assert (await three.leader()).driver.status().term == term


async def test_an_entry_too_large_is_refused_at_once(one: Cluster) -> None:
    with pytest.raises(ProposalTooLarge, match="the limit is"):
        await one[1].driver.propose(bytes(5 * 1024 * 1024), 5)


async def test_the_directory_ids_of_all_voters_become_part_of_the_configuration(three: Cluster) -> None:
    await three.leader()

    await eventually(lambda: all_folders_recorded(three), "every node knows every folder")
