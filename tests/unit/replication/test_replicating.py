"""Leaders and followers of several nodes together: data, watermarks, epochs, in-sync replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from chronik.metadata.commands import (
    AssignPartition,
    ConfigChange,
    ConfigOperation,
    FinishAssignment,
    FinishedAssignment,
    IsrChange,
    Reassignment,
    SetConfig,
    UpdateBrokerStatus,
    UpdateIsr,
)
from chronik.metadata.model import BrokerStatus, ResourceType
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication import wire
from harness.replica_nodes import Nodes, settle
from harness.simulated_log import BATCH_BYTES, SimulatedLog, writable


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    cluster = Nodes(1, 2, 3)
    cluster.start()
    yield cluster
    cluster.stop()


def log_of(nodes: Nodes, node_id: int, topic: str = "events") -> SimulatedLog:
    found = nodes.logs[node_id].get(topic, 0)
    assert found is not None
    return found


def has(nodes: Nodes, node_id: int, values: list[int], topic: str = "events") -> bool:
    found = nodes.logs[node_id].get(topic, 0)
    return found is not None and found.values() == values


async def test_followers_get_what_the_leader_appends_and_then_its_high_watermark(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1, 2, 3), required_acks=-1, now_ms=1)
    committed = leader.committed(3)
    assert committed is not None and not committed.done()
    await asyncio.wait_for(committed, 5)
    for node_id in (2, 3):
        assert has(nodes, node_id, [1, 2, 3])
    leader.append(writable(4), required_acks=-1, now_ms=1)
    await settle(lambda: nodes.partition(2, "events").high_watermark >= 3, "the follower learns the high watermark")


async def test_in_fsync_mode_every_replica_counts_only_what_it_has_synced(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3))
    leader = nodes.partition(1, "events")
    leader.append(writable(1, 2), required_acks=-1, now_ms=1)
    committed = leader.committed(2)
    assert committed is not None
    await settle(lambda: has(nodes, 2, [1, 2]) and has(nodes, 3, [1, 2]), "the data arrives")
    log_of(nodes, 1).sync()
    log_of(nodes, 2).sync()
    await settle(lambda: _counted(nodes, 2) == 2, "the leader hears of the sync while the fetch waits")
    assert leader.high_watermark == 0 and not committed.done()
    log_of(nodes, 3).sync(1)
    await settle(lambda: leader.high_watermark == 1, "the high watermark follows the slowest")
    log_of(nodes, 3).sync()
    await asyncio.wait_for(committed, 5)


def _counted(nodes: Nodes, node_id: int) -> int:
    lead = nodes.partition(1, "events").leadership
    assert lead is not None
    return lead.followers[node_id].counted


class SlowReads:
    """Lets every read of a log wait for the disk until `done` is set."""

    def __init__(self, log: SimulatedLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way = 0
        self.done = asyncio.Event()
        self._from_memory = log.read_nowait
        monkeypatch.setattr(log, "read_nowait", lambda *_, **__: None)
        monkeypatch.setattr(log, "read", self._read)

    async def _read(self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool) -> bytes | memoryview:
        self.under_way += 1
        await self.done.wait()
        return self._from_memory(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one) or b""


async def reading_for_a_follower(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, **configs: str) -> SlowReads:
    """The follower has the first batch, and the leader waits for the disk to send it the second."""
    nodes.create("events", (1, 2), **configs)
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=1, now_ms=1)
    await settle(lambda: has(nodes, 2, [1]), "the data arrives")
    reads = SlowReads(log_of(nodes, 1), monkeypatch)
    leader.append(writable(2), required_acks=1, now_ms=1)
    await settle(lambda: reads.under_way, "the leader reads for the follower")
    return reads


async def test_an_append_while_a_read_waits_for_the_disk_does_not_send_the_same_twice(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = await reading_for_a_follower(nodes, monkeypatch, durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(3), required_acks=1, now_ms=1)
    reads.done.set()
    await settle(lambda: has(nodes, 2, [1, 2, 3]), "what came during the read follows it")
    assert nodes.managers[2].metrics.bytes_fetched == 3 * BATCH_BYTES


async def test_a_report_while_a_read_waits_for_the_disk_does_not_send_the_same_twice(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = await reading_for_a_follower(nodes, monkeypatch)
    log_of(nodes, 2).sync()
    await settle(lambda: _counted(nodes, 2) == 1, "the leader hears of the sync")
    reads.done.set()
    await settle(lambda: has(nodes, 2, [1, 2]), "the rest arrives")
    nodes.partition(1, "events").append(writable(3), required_acks=1, now_ms=1)
    await settle(lambda: has(nodes, 2, [1, 2, 3]), "it goes on")
    assert nodes.managers[2].metrics.bytes_fetched == 3 * BATCH_BYTES


async def test_a_log_cut_under_a_read_for_another_leader_is_not_told_of_as_the_leaders(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=1, now_ms=1)
    await settle(lambda: has(nodes, 2, [1]) and has(nodes, 3, [1]), "the data arrives")
    nodes.wires.cut.add((2, 1))
    leader.append(writable(66), required_acks=1, now_ms=1)
    await settle(lambda: has(nodes, 3, [1, 66]), "node 3 gets what node 2 does not")
    reads = SlowReads(log_of(nodes, 1), monkeypatch)
    leader.append(writable(67), required_acks=1, now_ms=1)
    await settle(lambda: reads.under_way, "the leader reads for node 3")
    nodes.consensus.stores.remove(nodes.stores[3])  # node 3 does not hear that another leads
    nodes.elect("events", 0, 2)
    await settle(lambda: has(nodes, 1, [1]), "the old leader cuts what the new one does not have")
    answered = nodes.managers[3].metrics.fetches
    reads.done.set()
    await settle(lambda: nodes.managers[3].metrics.fetches >= answered + 2, "node 3 hears how the read ended")
    assert has(nodes, 3, [1, 66])
    nodes.stores[3].apply(nodes.consensus.entries[-1:])
    nodes.consensus.stores.append(nodes.stores[3])
    await settle(lambda: has(nodes, 3, [1]), "node 3 hears of the new leader and is cut where the logs part")


async def test_an_idle_session_carries_no_partitions(nodes: Nodes) -> None:
    for number in range(50):
        nodes.create(f"topic-{number}", (1, 2))
    seen: list[wire.FetchRequest] = []
    original = nodes.wires.handlers[1, wire.FETCH]

    def spy(peer: int, payload: bytes) -> object:
        seen.append(wire.decode_request(payload))
        return original(peer, payload)

    nodes.wires.handlers[1, wire.FETCH] = spy
    await settle(lambda: any(request.sequence > 1 for request in seen), "a session goes on")
    assert all(not request.added and not request.progress for request in seen if request.sequence > 1)


async def test_partitions_that_come_while_a_fetch_waits_are_fetched_at_once(nodes: Nodes) -> None:
    nodes.create("first", (1, 2), durability="os")
    await settle(lambda: (2, 1, wire.FETCH) in nodes.wires.requests, "the follower fetches")
    nodes.create("events", (1, 2), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    committed = leader.committed(1)
    assert committed is not None
    await asyncio.wait_for(committed, 0.4)  # less than a long poll


async def test_a_diverging_follower_is_cut_by_epochs_not_by_its_high_watermark(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1, 2), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(2) or asyncio.sleep(0), 5)
    for node_id in (2, 3):
        nodes.wires.cut.add((node_id, 1))
    leader.append(writable(66, 67), required_acks=1, now_ms=1)  # nobody else gets these
    old_mark = nodes.partition(2, "events").high_watermark
    nodes.elect("events", 0, 2)
    new_leader = nodes.partition(2, "events")
    new_leader.append(writable(3, 4, 5), required_acks=-1, now_ms=1)
    await asyncio.wait_for(new_leader.committed(5) or asyncio.sleep(0), 5)
    for node_id in (1, 2, 3):
        assert has(nodes, node_id, [1, 2, 3, 4, 5]), f"node {node_id}"
    assert nodes.managers[1].metrics.truncations == 1
    assert old_mark <= 2


async def test_a_fenced_leader_gets_no_progress_from_followers_of_the_next_epoch(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    await settle(lambda: _validated(nodes, 2) and _validated(nodes, 3), "all fetch")
    stale = nodes.managers[1]
    nodes.consensus.stores.remove(nodes.stores[1])  # node 1 hears of nothing any more
    nodes.elect("events", 0, 2)
    leader = stale.partition("events", 0)
    leader.append(writable(9), required_acks=-1, now_ms=1)
    committed = leader.committed(1)
    assert committed is not None
    await asyncio.sleep(0.05)
    assert not committed.done() and leader.high_watermark == 0


def _validated(nodes: Nodes, node_id: int) -> bool:
    lead = nodes.partition(1, "events").leadership
    return lead is not None and lead.followers[node_id].validated()


async def test_a_follower_that_lags_leaves_and_one_that_caught_up_returns(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    await settle(lambda: _validated(nodes, 2) and _validated(nodes, 3), "all fetch")
    nodes.wires.cut.add((3, 1))
    nodes.managers[3]._fetchers.stop()  # type: ignore[union-attr]
    leader.append(writable(1), required_acks=-1, now_ms=1)
    committed = leader.committed(1)
    assert committed is not None
    nodes.clock.now += 31
    await settle(lambda: has(nodes, 2, [1]), "the other follower has it")
    await nodes.managers[1]._isr._sweep()
    await asyncio.wait_for(committed, 5)
    assert leader.isr == (1, 2)
    nodes.wires.cut.clear()
    nodes.elect("events", 0, 2)
    nodes.elect("events", 0, 1)
    for node_id in (2, 3):
        partition = nodes.partition(node_id, "events")
        nodes.managers[node_id]._fetchers.leave(partition)  # type: ignore[union-attr]
        nodes.managers[node_id]._fetchers.follow(partition)  # type: ignore[union-attr]
    await settle(lambda: set(leader.isr) == {1, 2, 3}, "the late follower returns")
    assert has(nodes, 3, [1])


async def test_too_few_in_sync_replicas_refuse_before_and_after_the_append(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), min_insync_replicas="2")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    committed = leader.committed(1)
    assert committed is not None
    nodes.elect("events", 0, 1, isr=(1,))
    log_of(nodes, 1).sync()
    error = committed.exception()
    assert isinstance(error, KafkaError) and error.code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    with pytest.raises(KafkaError) as refused:
        leader.append(writable(2), required_acks=-1, now_ms=1)
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    leader.append(writable(3), required_acks=1, now_ms=1)
    assert len(leader.read_nowait(0, 1000) or b"") == 24, "reads go on"


async def test_a_new_leader_does_not_tell_end_offsets_before_the_isr_confirmed_them(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1, 2), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(2) or asyncio.sleep(0), 5)
    for node_id in (1, 3):
        nodes.wires.cut.add((node_id, 2))
    log_of(nodes, 2).high_watermark = 0  # it was never told
    nodes.elect("events", 0, 2)
    successor = nodes.partition(2, "events")
    with pytest.raises(KafkaError) as refused:
        successor.latest_offset()
    assert refused.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
    nodes.wires.cut.clear()
    await settle(lambda: successor.high_watermark == 2, "the followers confirm")
    assert successor.latest_offset() == 2


async def test_a_follower_that_is_offline_may_not_join(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    nodes.elect("events", 0, 1, isr=(1,))
    nodes.commit(UpdateBrokerStatus(3, BrokerStatus.OFFLINE))
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    await settle(lambda: set(leader.isr) == {1, 2}, "the one that is online joins")
    await settle(lambda: has(nodes, 3, [1]), "the other one still replicates")
    assert set(leader.isr) == {1, 2}
    nodes.commit(UpdateBrokerStatus(3, BrokerStatus.ONLINE))
    await settle(lambda: set(leader.isr) == {1, 2, 3}, "back online it joins")


async def test_an_isr_change_without_a_known_outcome_counts_as_under_way_until_it_is_ruled_out(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    nodes.elect("events", 0, 1, isr=(1, 2))
    leader = nodes.partition(1, "events")
    nodes.consensus.refuse_with = TimeoutError("no answer")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    lead = leader.leadership
    assert lead is not None
    await settle(lambda: lead.uncertain, "the change has no known outcome")
    assert set(lead.maximal_isr) == {1, 2, 3} and leader.isr == (1, 2)
    before = leader.info.partition_epoch
    nodes.consensus.refuse_with = None
    await settle(lambda: set(leader.isr) == {1, 2, 3}, "later it succeeds")
    assert leader.info.partition_epoch >= before + 2, "first a change that rules the unknown one out"
    metrics = nodes.managers[1].metrics
    await settle(lambda: metrics.isr_expansions, "what succeeded is counted")
    assert (metrics.isr_expansions, metrics.isr_shrinks) == (1, 0), "ruling out lets nobody in"


async def test_a_follower_far_behind_the_log_start_starts_over_there(nodes: Nodes) -> None:
    nodes.create("events", (1, 2), durability="os")
    for node_id in (2,):
        nodes.wires.cut.add((node_id, 1))
    nodes.elect("events", 0, 1, isr=(1,))
    leader = nodes.partition(1, "events")
    leader.append(writable(*range(10)), required_acks=-1, now_ms=1)
    leader.delete_records(7)
    nodes.wires.cut.clear()
    await settle(lambda: has(nodes, 2, [7, 8, 9]), "the follower has what is left")
    assert nodes.partition(2, "events").log_start_offset == 7
    await settle(lambda: set(leader.isr) == {1, 2}, "and joins")


async def test_followers_forget_what_the_leader_was_told_to_delete(nodes: Nodes) -> None:
    nodes.create("events", (1, 2), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(*range(5)), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(5) or asyncio.sleep(0), 5)
    leader.delete_records(3)
    leader.append(writable(5), required_acks=-1, now_ms=1)
    await settle(lambda: nodes.partition(2, "events").log_start_offset == 3, "the log start travels with the data")


async def test_a_full_disk_under_a_follower_does_not_stop_the_other_partitions(nodes: Nodes) -> None:
    nodes.create("broken", (1, 2), durability="os")
    nodes.create("events", (1, 2), durability="os")
    broken, leader = nodes.partition(1, "broken"), nodes.partition(1, "events")
    broken.append(writable(1), required_acks=1, now_ms=1)
    await settle(lambda: has(nodes, 2, [1], "broken"), "it works at first")
    log_of(nodes, 2, "broken").full = True
    broken.append(writable(2), required_acks=1, now_ms=1)
    leader.append(writable(3), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(1) or asyncio.sleep(0), 5)
    log_of(nodes, 2, "broken").full = False
    await settle(lambda: has(nodes, 2, [1, 2], "broken"), "and it recovers")


async def test_a_restarted_follower_is_compared_again(nodes: Nodes) -> None:
    nodes.create("events", (1, 2), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(1) or asyncio.sleep(0), 5)
    lead = leader.leadership
    assert lead is not None
    nodes.managers[1]._server.forget(2)
    assert lead.followers[2].link is None
    leader.append(writable(2), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(2) or asyncio.sleep(0), 10)
    assert lead.followers[2].link is not None


async def test_a_leader_whose_disk_fails_gives_leadership_up(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3))
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    waiting = leader.committed(1)
    assert waiting is not None
    nodes.logs[1].fail("events", 0)
    assert isinstance(waiting.exception(), KafkaError) and not leader.is_leader
    await settle(lambda: leader.info.leader == -1, "it asks to be replaced")
    assert leader.isr == (2, 3)
    nodes.elect("events", 0, 2)
    successor = nodes.partition(2, "events")
    successor.append(writable(2), required_acks=-1, now_ms=1)
    for node_id in (2, 3):
        await settle(lambda node_id=node_id: nodes.logs[node_id].get("events", 0) is not None, "the data arrives")
        log_of(nodes, node_id)._sync_later = lambda finish: finish()
        log_of(nodes, node_id).sync()
    await settle(lambda: successor.high_watermark == successor.end_offset, "the others go on")
    assert set(successor.isr) == {2, 3}, "the failed replica does not come back"


async def test_a_leader_whose_disk_is_full_lets_another_lead_and_returns_when_there_is_space(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(1) or asyncio.sleep(0), 5)
    log_of(nodes, 1).full = True
    with pytest.raises(KafkaError, match="disk is full"):
        leader.append(writable(2), required_acks=-1, now_ms=1)
    await settle(lambda: leader.info.leader == -1, "it asks to be replaced")
    assert leader.isr == (2, 3)
    nodes.elect("events", 0, 2)
    successor = nodes.partition(2, "events")
    successor.append(writable(2), required_acks=-1, now_ms=1)
    nodes.clock.now += 1.1  # nobody waits any longer for one that kept up until now
    await asyncio.wait_for(successor.committed(2) or asyncio.sleep(0), 5)
    assert set(successor.isr) == {2, 3} and has(nodes, 1, [1])
    log_of(nodes, 1).full = False
    await settle(lambda: set(successor.isr) == {1, 2, 3}, "it follows and is in sync again", turns=4000)
    assert has(nodes, 1, [1, 2])


async def test_a_leader_whose_disk_was_full_for_a_moment_is_not_put_out_for_ever(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=1, now_ms=1)
    log_of(nodes, 1).full = True
    nodes.consensus.refuse_with = TimeoutError("nobody leads")
    with pytest.raises(KafkaError, match="disk is full"):
        leader.append(writable(2), required_acks=1, now_ms=1)
    await settle(lambda: not nodes.managers[1]._failures._waiting, "one attempt is made", turns=4000)
    nodes.consensus.refuse_with = None
    log_of(nodes, 1).full = False
    leader.append(writable(2), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(2) or asyncio.sleep(0), 5)
    assert leader.is_leader and set(leader.isr) == {1, 2, 3}


async def test_records_are_deleted_when_no_replica_in_sync_has_them_any_more(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1, 2, 3, 4), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(4) or asyncio.sleep(0), 5)
    assert leader.delete_records(3) == 3
    deleted = leader.deleted(3)
    assert deleted is not None and not deleted.done(), "the followers have not heard of it yet"
    await asyncio.wait_for(deleted, 0.4)  # less than a long poll
    for node_id in (2, 3):
        assert nodes.partition(node_id, "events").log_start_offset == 3
    assert leader.deleted(3) is None


async def test_a_deletion_waits_for_no_replica_that_left_and_fails_with_the_leadership(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1, 2, 3), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(3) or asyncio.sleep(0), 5)
    nodes.managers[3]._fetchers.stop()  # type: ignore[union-attr]
    leader.delete_records(2)
    deleted = leader.deleted(2)
    assert deleted is not None
    await settle(lambda: nodes.partition(2, "events").log_start_offset == 2, "the one that fetches follows")
    assert not deleted.done()
    change = IsrChange(leader.topic_id, 0, leader.leader_epoch, leader.info.partition_epoch, (1, 2))
    nodes.commit(UpdateIsr(1, [change]))
    await asyncio.wait_for(deleted, 5)
    nodes.managers[2]._fetchers.stop()  # type: ignore[union-attr]
    leader.delete_records(3)
    failing = leader.deleted(3)
    assert failing is not None
    nodes.elect("events", 0, 2)
    assert isinstance(failing.exception(), KafkaError)


async def test_a_deletion_waits_for_no_replica_that_was_moved_away(nodes: Nodes) -> None:
    """Which begins a new epoch of the same leader, in which nobody else may be left to report."""
    nodes.create("events", (1, 2), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1, 2), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(2) or asyncio.sleep(0), 5)
    nodes.managers[2]._fetchers.stop()  # type: ignore[union-attr]
    leader.delete_records(2)
    deleted = leader.deleted(2)
    assert deleted is not None
    nodes.commit(AssignPartition([Reassignment(leader.topic_id, 0, (1,))]))
    nodes.commit(FinishAssignment([FinishedAssignment(leader.topic_id, 0, leader.info.partition_epoch)]))
    assert leader.is_leader and leader.isr == (1,)
    await asyncio.wait_for(deleted, 5)


async def test_the_last_replica_in_sync_stays_though_its_disk_failed(nodes: Nodes) -> None:
    nodes.create("events", (1, 2))
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=1, now_ms=1)
    nodes.elect("events", 0, 1, isr=(1,))
    nodes.managers[2].stop()
    nodes.logs[1].fail("events", 0)
    await asyncio.sleep(0.05)
    assert (leader.isr, leader.info.leader) == ((1,), 1)


async def test_a_follower_whose_disk_fails_leaves_the_isr_at_once(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(1) or asyncio.sleep(0), 5)
    nodes.logs[3].fail("events", 0)
    await settle(lambda: leader.isr == (1, 2), "it leaves")
    leader.append(writable(2), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(2) or asyncio.sleep(0), 5)
    assert leader.isr == (1, 2)


async def test_a_replica_that_is_moved_is_throttled_until_it_is_in_sync(nodes: Nodes) -> None:
    rate = ConfigChange(ConfigOperation.SET, "leader.replication.throttled.rate", "2400")
    nodes.commit(SetConfig(ResourceType.BROKER, "1", [rate]))
    nodes.create("events", (1,), durability="os", leader_replication_throttled_replicas="0:2")
    leader = nodes.partition(1, "events")
    leader.append(writable(*range(1000)), required_acks=1, now_ms=1)
    server = nodes.managers[1]._server
    server._throttle.spend(1)  # nothing is left of what the bucket began with
    topic_id = nodes.stores[1].image.topics["events"].topic_id
    nodes.commit(AssignPartition([Reassignment(topic_id, 0, (1, 2, 3))]))
    await settle(lambda: has(nodes, 3, list(range(1000))), "the replica that is not throttled has everything")
    assert nodes.logs[2].get("events", 0) is None
    nodes.clock.now += 0.5
    await settle(lambda: nodes.logs[2].get("events", 0) is not None, "the throttled one gets its share with time")
    nodes.clock.now += 60
    await settle(lambda: has(nodes, 2, list(range(1000))), "and in the end everything")


async def test_isr_changes_are_counted(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    nodes.elect("events", 0, 1, isr=(1, 2))
    metrics = nodes.managers[1].metrics
    await settle(lambda: metrics.isr_expansions == 1, "a follower joined")
    assert (metrics.isr_shrinks, metrics.isr_refusals) == (0, 0)


async def test_a_replica_that_was_moved_away_reports_nothing_any_more(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(1) or asyncio.sleep(0), 5)
    nodes.consensus.stores.remove(nodes.stores[3])  # node 3 does not know yet
    info = leader.info
    assert nodes.commit(AssignPartition([Reassignment(leader.topic_id, 0, (1, 2), info.partition_epoch)])).ok
    finished = FinishedAssignment(leader.topic_id, 0, leader.info.partition_epoch)
    assert nodes.commit(FinishAssignment([finished])).ok
    leader.append(writable(2), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(2) or asyncio.sleep(0), 5)
    await settle(lambda: nodes.managers[3].get("events", 0) is not None, "the old replica is still there")
    assert set(leader.isr) == {1, 2} and not has(nodes, 3, [1, 2])


async def test_a_replica_that_was_moved_away_and_back_counts_only_when_it_has_heard_of_it(nodes: Nodes) -> None:
    nodes.create("events", (1, 2, 3), durability="os")
    leader = nodes.partition(1, "events")
    leader.append(writable(1), required_acks=-1, now_ms=1)
    await settle(lambda: nodes.partition(3, "events").high_watermark == 1, "node 3 follows")
    nodes.consensus.stores.remove(nodes.stores[3])  # node 3 hears of neither change
    for replicas in ((1, 2), (1, 2, 3)):
        moved = Reassignment(leader.topic_id, 0, replicas, leader.info.partition_epoch)
        assert nodes.commit(AssignPartition([moved])).ok
        nodes.commit(FinishAssignment([FinishedAssignment(leader.topic_id, 0, leader.info.partition_epoch)]))
    nodes.managers[1]._server.forget(3)  # its connection breaks, and it names what it follows anew
    leader.append(writable(2), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(2) or asyncio.sleep(0), 5)
    asked = nodes.managers[3].metrics.fetches
    await settle(lambda: nodes.managers[3].metrics.fetches >= asked + 3, "node 3 asks, and asks again")
    assert set(leader.isr) == {1, 2} and not has(nodes, 3, [1, 2])
