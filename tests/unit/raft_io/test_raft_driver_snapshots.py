"""Snapshots as the driver handles them: one per threshold, late followers, restarts, and a loop that never waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from chronik.raft import driver_snapshots, snapshots
from harness.raft_cluster import Cluster, Node, eventually, small_snapshots


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await Cluster(tmp_path, 3, small_snapshots()).start()
    yield cluster
    await cluster.close()


async def propose_many(node: Node, count: int, prefix: bytes = b"") -> list[bytes]:
    datas = [b"%s%d" % (prefix, i) for i in range(count)]
    await asyncio.gather(*(node.driver.propose(data, 10) for data in datas))
    return datas


async def test_one_snapshot_per_threshold_and_the_log_is_trimmed_behind_it(three: Cluster) -> None:
    for node in three.nodes.values():
        node.driver._group.settings = small_snapshots(retained=30)
    leader = await three.leader()
    taken = leader.driver.status
    for i in range(4):
        for _ in range(6):
            await propose_many(leader, 10)
            await three.same()
        await eventually(lambda: taken().snapshots_taken == i + 1, "60 entries, a snapshot per 50")  # noqa: B023
    status = leader.driver.status()
    assert 200 <= status.snapshot_index <= status.applied
    assert status.first_index == status.snapshot_index - 30 + 1
    assert len(list(leader.folder.glob("*.snap"))) == 2
    term = status.term
    await propose_many(leader, 10)
    status = leader.driver.status()
    assert status.snapshots_taken <= status.applied // 50, "never more than one per threshold"
    assert status.term == term


async def test_a_node_restarted_from_snapshot_and_log_has_applied_everything_once(three: Cluster) -> None:
    leader = await three.leader()
    datas: list[bytes] = []
    for i in range(13):
        datas += await propose_many(leader, 10, b"%d-" % i)
    await eventually(lambda: all(node.driver.status().snapshot_index for node in three.running), "all have one")
    await three.same(datas)
    for node in list(three.running):
        await node.crash()
    await three.start()
    await three.leader()
    await three.same(datas)
    assert all(node.ledger.restored_at >= 50 for node in three.running)


async def test_a_follower_that_was_away_too_long_catches_up_by_snapshot(three: Cluster) -> None:
    leader = await three.leader()
    late = next(node for node in three.running if node is not leader)
    await propose_many(leader, 5)
    await late.crash()
    for i in range(16):
        await propose_many(leader, 10, b"%d-" % i)
    await eventually(lambda: leader.driver.status().first_index > 20, "the log it needs is gone")
    await late.start()
    await three.same()
    assert late.driver.status().snapshots_installed == 1
    assert late.ledger.restored_at >= 50
    await late.driver.propose(b"and goes on", 5)
    await three.same()
    await late.crash()
    await late.start()
    await three.same()


async def test_a_snapshot_of_many_chunks_arrives_over_a_connection_that_breaks(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_CHUNK_BYTES", 1000)
    monkeypatch.setattr(driver_snapshots, "FETCH_RETRY_S", 0.01)
    leader = await three.leader()
    late = next(node for node in three.running if node is not leader)
    await late.crash()
    for i in range(12):
        await propose_many(leader, 10, b"x" * 100 + b"%d-" % i)
    await eventually(lambda: leader.driver.status().first_index > 20, "the log it needs is gone")
    offsets: list[int] = []
    read_chunk = leader.driver._storage.snapshots.read_chunk

    def counted(index: int, term: int, offset: int, max_bytes: int) -> object:
        offsets.append(offset)
        if len(offsets) in (4, 9):
            for inbound in list(leader.driver._transport._inbound):
                if inbound.channel == "data":
                    leader.driver._loop.call_soon_threadsafe(inbound.connection.abort)
        return read_chunk(index, term, offset, max_bytes)

    monkeypatch.setattr(leader.driver._storage.snapshots, "read_chunk", counted)
    await late.start()
    await three.same()
    assert late.driver.status().snapshots_installed == 1
    assert len(offsets) > 10 and offsets.count(0) == 1, "it went on where it had stopped"


async def test_the_loop_goes_on_while_a_slow_snapshot_is_encoded(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 1, small_snapshots()).start()
    node = cluster[1]
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    encode = node.ledger.snapshot

    def slow() -> object:
        captured = encode()

        def work() -> bytes:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
            return captured()

        return work

    node.ledger.snapshot = slow  # type: ignore[method-assign, assignment]
    try:
        datas = await propose_many(node, 60)
        assert node.driver.status().snapshots_taken == 0
        datas += await propose_many(node, 70, b"meanwhile ")
        release.set()
        await eventually(lambda: node.driver.status().snapshots_taken == 2, "that one, and the next that was due")
        datas += await propose_many(node, 30, b"after ")
        await node.crash()
        await node.start()
        await eventually(lambda: node.ledger.datas == datas, "nothing lost, nothing twice")
    finally:
        await cluster.close()


async def test_long_lists_are_applied_in_slices_that_let_the_loop_breathe(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 1).start()
    node = cluster[1]
    try:
        datas = await propose_many(node, 2000)
        await node.crash()
        await node.start()
        cpu_s = time.thread_time  # on a busy machine, time that others take does not count

        def busy(entries: Sequence[tuple[int, bytes]]) -> None:
            until = cpu_s() + 0.0002 * len(entries)
            while cpu_s() < until:
                pass

        node.ledger.before_apply = busy
        longest, last = 0.0, cpu_s()
        async with asyncio.timeout(20):
            while len(node.ledger.entries) < len(datas):
                await asyncio.sleep(0)
                now = cpu_s()
                longest, last = max(longest, now - last), now
        assert node.ledger.datas == datas
        assert longest < 0.15, f"the loop was held for {longest * 1000:.0f} ms"
    finally:
        await cluster.close()


async def test_a_damaged_newest_snapshot_falls_back_to_the_one_before(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 1, small_snapshots()).start()
    node = cluster[1]
    try:
        datas: list[bytes] = []
        for i in range(3):
            datas += await propose_many(node, 50, b"%d-" % i)
            await eventually(lambda: node.driver.status().snapshots_taken == i + 1, "a threshold")  # noqa: B023
        await node.crash()
        newest = sorted(node.folder.glob("*.snap"))[-1]
        content = bytearray(newest.read_bytes())
        content[-1] ^= 1
        newest.write_bytes(content)
        await node.start()
        await eventually(lambda: node.ledger.datas == datas, "nothing is lost")
    finally:
        await cluster.close()
