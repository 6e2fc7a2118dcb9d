"""What the driver does when something goes wrong: disks that fail, fill or hang, lost answers, blocked loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from chronik.raft.driver_errors import NodeFailed, OutcomeUnknown, ProposeError, QueueFull, Superseded
from chronik.raft.files import OsAppendFile, OsFileSystem
from chronik.raft.transport_frames import RemoteError
from harness.raft_cluster import FAST, Cluster, Node, eventually
from harness.raft_disk import SimulatedRaftDisk


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path, 3)
    for node in cluster.nodes.values():
        node.fs = SimulatedRaftDisk()
    yield await cluster.start()
    await cluster.close()


def disk_of(node: Node) -> SimulatedRaftDisk:
    assert isinstance(node.fs, SimulatedRaftDisk)
    return node.fs


def followers(cluster: Cluster, leader: Node) -> list[Node]:
    return [node for node in cluster.running if node is not leader]


async def test_a_leader_whose_sync_fails_takes_no_further_part_and_the_others_go_on(three: Cluster) -> None:
    leader = await three.leader()
    await leader.driver.propose(b"before", 5)
    failures: list[str] = []
    leader.driver.on_failure(failures.append)
    disk_of(leader).fail.add("sync")
    with pytest.raises(NodeFailed, match="Input/output error") as error:
        await leader.driver.propose(b"x", 5)
    assert not error.value.retriable
    assert len(failures) == 1 and "takes no further part" in failures[0]
    assert leader.driver.status().failure == failures[0]
    assert leader.leadership[-1][0] is False
    disk_of(leader).fail.clear()
    applied = len(leader.ledger.entries)
    rest = followers(three, leader)
    await eventually(lambda: {node.driver.leader_id for node in rest} < {n.node_id for n in rest}, "another leads")
    await rest[0].driver.propose(b"after", 5)
    assert len(leader.ledger.entries) == applied, "nothing happens on the failed node any more"
    await leader.crash()
    await leader.start()
    await three.same()


async def test_a_follower_whose_sync_fails_is_not_counted(three: Cluster) -> None:
    leader = await three.leader()
    broken, other = followers(three, leader)
    disk_of(broken).fail.add("sync")
    await leader.driver.propose(b"with two", 5)
    await eventually(lambda: broken.driver.status().failure, "it has failed")
    await other.crash()
    with pytest.raises(ProposeError):
        await leader.driver.propose(b"one is not a quorum", 0.5)
    assert b"one is not a quorum" not in leader.ledger.datas


async def test_a_leader_with_a_full_disk_gives_way_and_comes_back_when_there_is_space(three: Cluster) -> None:
    leader = await three.leader()
    disk_of(leader).free_bytes = 0
    proposal = asyncio.ensure_future(leader.driver.propose(b"caught out", 10))
    rest = followers(three, leader)
    await eventually(lambda: {node.driver.leader_id for node in rest} < {n.node_id for n in rest}, "another leads")
    await rest[0].driver.propose(b"meanwhile", 5)
    disk_of(leader).free_bytes = None
    await three.leader()
    await three.same()
    assert b"meanwhile" in leader.ledger.datas
    (outcome,) = await asyncio.gather(proposal, return_exceptions=True)
    assert (b"caught out" in leader.ledger.datas) == (not isinstance(outcome, Exception))
    assert leader.driver.status().failure is None


class HangingFileSystem(OsFileSystem):
    """Syncs wait for `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def open_append(self, path: Path) -> OsAppendFile:
        gate = self.gate

        class Hanging(OsAppendFile):
            def sync(self) -> None:
                gate.wait(20)
                super().sync()

        return Hanging(path)


async def test_a_leader_whose_disk_hangs_gives_way_and_still_stops_in_time(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3, msgspec.structs.replace(FAST, disk_stalled_s=0.3, stop_flush_s=0.3))
    disks = {node_id: HangingFileSystem() for node_id in cluster.nodes}
    for node in cluster.nodes.values():
        node.fs = disks[node.node_id]
    await cluster.start()
    try:
        leader = await cluster.leader()
        disks[leader.node_id].gate.clear()
        waiting = asyncio.ensure_future(leader.driver.propose(b"stuck here", 10))
        rest = followers(cluster, leader)
        await eventually(lambda: {node.driver.leader_id for node in rest} < {n.node_id for n in rest}, "another leads")
        await rest[0].driver.propose(b"meanwhile", 5)
        started = asyncio.get_running_loop().time()
        await leader.stop()
        assert asyncio.get_running_loop().time() - started < 2
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(outcome, ProposeError)
    finally:
        for disk in disks.values():
            disk.gate.set()
        await cluster.close()


async def test_heartbeats_leave_while_the_disk_is_busy(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    disks = {node_id: HangingFileSystem() for node_id in cluster.nodes}
    for node in cluster.nodes.values():
        node.fs = disks[node.node_id]
    await cluster.start()
    try:
        leader = await cluster.leader()
        term = leader.driver.term
        for busy in (set(disks), set(disks) - {leader.node_id}):
            ticks = leader.driver._observer.ticks
            for node_id in busy:
                disks[node_id].gate.clear()
            waiting = asyncio.ensure_future(leader.driver.propose(b"slow", 10))
            await eventually(lambda: leader.driver._observer.ticks > ticks + 25, "an election timeout passes")  # noqa: B023
            assert not waiting.done(), "nothing is acknowledged before a majority has synced it"
            for disk in disks.values():
                disk.gate.set()
            await waiting
        assert (await cluster.leader()).driver.term == term
    finally:
        for disk in disks.values():
            disk.gate.set()
        await cluster.close()


async def test_a_state_machine_that_raises_stops_the_node_with_a_reason(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 1).start()
    node = cluster[1]

    def refuse(entries: object) -> None:
        raise ValueError("an unknown command, upgrade this node")

    node.ledger.before_apply = refuse
    try:
        with pytest.raises(NodeFailed, match="an unknown command, upgrade this node"):
            await node.driver.propose(b"x", 5)
        assert "failed on this node: applying after entry" in (node.driver.status().problem or "")
    finally:
        await cluster.close()


async def test_a_forwarded_proposal_whose_answer_is_lost_is_reported_as_unknown_and_applied_once(
    three: Cluster,
) -> None:
    leader = await three.leader()
    follower = followers(three, leader)[0]
    take = leader.driver._transport._handlers["raft.propose"]

    def take_and_hang_up(peer: int, payload: bytes) -> object:
        answer = take(peer, payload)
        for inbound in list(leader.driver._transport._inbound):
            if inbound.node_id == peer and inbound.channel == "control":
                inbound.connection.abort()
        return answer

    leader.driver._transport._handlers["raft.propose"] = take_and_hang_up  # type: ignore[assignment]
    with pytest.raises(OutcomeUnknown, match="the answer of the leader was lost") as error:
        await follower.driver.propose(b"once", 5)
    assert error.value.retriable and error.value.ambiguous
    await three.same([b"once"])


async def test_a_result_applied_before_the_leaders_answer_arrives_is_not_missed(three: Cluster) -> None:
    leader = await three.leader()
    follower = followers(three, leader)[0]
    take = leader.driver._transport._handlers["raft.propose"]

    async def take_and_answer_late(peer: int, payload: bytes) -> object:
        answer = take(peer, payload)
        await eventually(lambda: follower.ledger.datas == [b"early"], "applied at the follower")
        return answer

    leader.driver._transport._handlers["raft.propose"] = take_and_answer_late  # type: ignore[assignment]
    assert await follower.driver.propose(b"early", 5) == follower.ledger.entries[0]


async def test_a_forward_is_tried_again_when_the_leader_certainly_did_not_take_it(three: Cluster) -> None:
    leader = await three.leader()
    follower = followers(three, leader)[0]
    take = leader.driver._transport._handlers["raft.propose"]
    refusals = 0

    def refuse_twice(peer: int, payload: bytes) -> object:
        nonlocal refusals
        refusals += 1
        if refusals <= 2:
            raise RemoteError("not_taken", "leadership is being handed over", retriable=True)
        return take(peer, payload)

    leader.driver._transport._handlers["raft.propose"] = refuse_twice  # type: ignore[assignment]
    await follower.driver.propose(b"in the end", 5)
    await three.same([b"in the end"])


def isolate(node: Node) -> None:
    node.driver._transport.send = lambda peer, message: False  # type: ignore[method-assign]
    node.driver._transport.on_message = lambda message: None


def rejoin(node: Node) -> None:
    del node.driver._transport.send  # type: ignore[method-assign]
    node.driver._transport.on_message = node.driver._receive


async def test_a_stale_leader_never_acknowledges_and_its_entry_is_superseded(three: Cluster) -> None:
    old = await three.leader()
    isolate(old)
    stale = asyncio.ensure_future(old.driver.propose(b"stale", 10))
    rest = followers(three, old)
    await eventually(lambda: {node.driver.leader_id for node in rest} < {n.node_id for n in rest}, "another leads")
    for i in range(3):
        await rest[0].driver.propose(b"new %d" % i, 5)
    assert not stale.done()
    rejoin(old)
    with pytest.raises(Superseded) as error:
        await stale
    assert error.value.retriable and not error.value.ambiguous
    await three.same([b"new 0", b"new 1", b"new 2"])


async def test_proposals_beyond_the_limit_are_refused_at_once(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 1, msgspec.structs.replace(FAST, proposals_waiting_max=10)).start()
    try:
        outcomes = await asyncio.gather(
            *(cluster[1].driver.propose(b"%d" % i, 5) for i in range(30)), return_exceptions=True
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, QueueFull)]
        assert len(refused) == 20 and all(error.retriable for error in refused)
        assert len(cluster[1].ledger.datas) == 10
    finally:
        await cluster.close()


async def test_a_loop_that_was_blocked_for_long_does_not_make_an_election(three: Cluster) -> None:
    leader = await three.leader()
    term = leader.driver.term
    loop = asyncio.get_running_loop()
    for _ in range(2):
        until = loop.time() + 0.8  # two election timeouts
        while loop.time() < until:
            pass
        ticks = leader.driver._observer.ticks
        await eventually(lambda: leader.driver._observer.ticks > ticks + 4, "the loop goes on")  # noqa: B023
    assert {node.driver.term for node in three.running} == {term}
    assert {node.driver.leader_id for node in three.running} == {leader.node_id}
    assert all(node.driver.status().late_ticks >= 2 for node in three.running)


class ThreadedNode:
    """A node with a thread and an event loop of its own, which can be held still like a stopped process."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    async def run(self, coroutine: object) -> object:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))  # type: ignore[arg-type]

    def hold(self) -> threading.Event:
        release = threading.Event()
        self.loop.call_soon_threadsafe(lambda: release.wait(20))
        return release

    async def close(self) -> None:
        await self.run(self.node.crash())
        self.loop.call_soon_threadsafe(self.loop.stop)


async def test_a_leader_that_was_stopped_and_goes_on_steps_down_without_disturbing_the_new_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    threaded = {node_id: ThreadedNode(node) for node_id, node in cluster.nodes.items()}
    try:
        for node in threaded.values():
            await node.run(node.node.start())
        leader = await cluster.leader()
        await threaded[leader.node_id].run(leader.driver.propose(b"before", 5))
        release = threaded[leader.node_id].hold()
        rest = followers(cluster, leader)
        await eventually(lambda: {node.driver.leader_id for node in rest} < {n.node_id for n in rest}, "another leads")
        await threaded[rest[0].node_id].run(rest[0].driver.propose(b"meanwhile", 5))
        term = rest[0].driver.term
        release.set()
        await eventually(lambda: leader.driver.term == term and not leader.driver.is_leader, "it follows")
        await cluster.same([b"before", b"meanwhile"])
        ticks = rest[0].driver._observer.ticks
        await eventually(lambda: rest[0].driver._observer.ticks > ticks + 25, "time passes")
        assert {node.driver.term for node in cluster.running} == {term}
    finally:
        for node in threaded.values():
            await node.close()
