"""What a leader does with appends, acknowledgements and reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from chronik.metadata.commands import ConfigChange, ConfigOperation, SetConfig
from chronik.metadata.model import ResourceType
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.lease import Lease
from chronik.replication.partition import Partition
from harness.replica_nodes import Clock, Nodes
from harness.simulated_log import SimulatedLog, entries_of, writable


@pytest.fixture
async def node() -> AsyncIterator[Nodes]:
    nodes = Nodes(1)
    nodes.start()
    yield nodes
    nodes.stop()


def led(nodes: Nodes, **configs: str) -> Partition:
    nodes.create("events", (1,), **configs)
    return nodes.partition(1, "events")


def leased_for_a_second() -> tuple[Nodes, Clock, Partition, Lease]:
    """One node that leads a partition with one record, and a clock that can run beyond its lease."""
    clock = Clock()
    nodes = Nodes(1, clock=clock)
    nodes.start()
    partition = led(nodes, durability="os")
    lease = nodes.managers[1].lease
    lease.revoke()
    lease.renew(clock.now + 1)
    partition.append(writable(1), required_acks=1, now_ms=1)
    return nodes, clock, partition, lease


def log_of(partition: Partition) -> SimulatedLog:
    assert isinstance(partition.log, SimulatedLog)
    return partition.log


async def test_a_partition_without_data_has_no_log(node: Nodes) -> None:
    partition = led(node)
    assert partition.is_leader
    assert partition.opened_log is None
    assert (partition.high_watermark, partition.end_offset, partition.latest_offset()) == (0, 0, 0)
    assert partition.read_nowait(0, 1000) == b""


async def test_an_append_in_fsync_mode_is_committed_once_it_is_synced(node: Nodes) -> None:
    partition = led(node)
    appended = partition.append(writable(7, 8), required_acks=-1, now_ms=1)
    assert (appended.base_offset, appended.last_offset) == (0, 1)
    committed = partition.committed(2)
    assert committed is not None and not committed.done()
    assert partition.read_nowait(0, 1000) == b""
    log_of(partition).sync()
    assert committed.done() and committed.exception() is None
    assert partition.high_watermark == 2
    assert [entry.value for entry in entries_of(partition.read_nowait(0, 1000) or b"")] == [7, 8]


async def test_an_append_in_os_mode_is_committed_at_once(node: Nodes) -> None:
    partition = led(node, durability="os")
    partition.append(writable(7), required_acks=-1, now_ms=1)
    assert partition.high_watermark == 1
    assert partition.committed(1) is None


async def test_commits_resolve_in_the_order_of_their_offsets(node: Nodes) -> None:
    partition = led(node)
    partition.append(writable(1, 2, 3), required_acks=-1, now_ms=1)
    order: list[int] = []
    for offset in (3, 1, 2):
        future = partition.committed(offset)
        assert future is not None
        future.add_done_callback(lambda _, offset=offset: order.append(offset))
    log_of(partition).sync(2)
    await _turn()
    assert order == [1, 2]
    log_of(partition).sync(3)
    await _turn()
    assert order == [1, 2, 3]


async def test_an_abandoned_commit_does_not_disturb_the_others(node: Nodes) -> None:
    partition = led(node)
    partition.append(writable(1, 2), required_acks=-1, now_ms=1)
    abandoned, kept = partition.committed(1), partition.committed(2)
    assert abandoned is not None and kept is not None
    abandoned.cancel()
    log_of(partition).sync()
    assert kept.done() and kept.exception() is None


async def test_losing_leadership_fails_the_commits_that_wait(node: Nodes) -> None:
    partition = led(node)
    partition.append(writable(1), required_acks=-1, now_ms=1)
    waiting = partition.committed(1)
    assert waiting is not None
    node.elect("events", 0, -1)
    assert _code(waiting.exception()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError) as refused:
        partition.append(writable(1), required_acks=1, now_ms=1)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    later = partition.committed(1)
    assert later is not None and _code(later.exception()) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_that_stays_leader_in_the_next_epoch_keeps_its_commits() -> None:
    nodes = Nodes(1, 2)
    nodes.start()
    nodes.create("events", (1,))
    partition = nodes.partition(1, "events")
    partition.append(writable(1), required_acks=-1, now_ms=1)
    waiting = partition.committed(1)
    assert waiting is not None
    info = partition.info
    partition.update(msgspec.structs.replace(info, leader_epoch=info.leader_epoch + 1))
    assert not waiting.done()
    log_of(partition).sync()
    assert waiting.done() and waiting.exception() is None
    nodes.stop()


async def test_an_epoch_that_was_skipped_may_have_been_somebody_elses(node: Nodes) -> None:
    partition = led(node)
    partition.append(writable(1), required_acks=-1, now_ms=1)
    waiting = partition.committed(1)
    assert waiting is not None
    partition.update(msgspec.structs.replace(partition.info, leader_epoch=partition.leader_epoch + 2))
    assert _code(waiting.exception()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.is_leader


async def test_a_lapsed_lease_refuses_appends_until_it_is_renewed() -> None:
    nodes, clock, partition, lease = leased_for_a_second()
    clock.now += 1
    for acks in (1, -1):
        with pytest.raises(KafkaError) as refused:
            partition.append(writable(2), required_acks=acks, now_ms=1)
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    epoch = partition.leader_epoch
    lease.renew(clock.now + 1)
    partition.append(writable(3), required_acks=1, now_ms=1)
    assert (partition.leader_epoch, log_of(partition).values()) == (epoch, [1, 3])
    nodes.stop()


async def test_without_the_lease_what_is_committed_can_be_read_but_nobody_is_kept_waiting_for_more() -> None:
    nodes, clock, partition, lease = leased_for_a_second()
    assert partition.latest_offset() == 1 and partition.read_nowait(1, 1 << 20) == b""
    clock.now += 2
    assert partition.read_nowait(0, 1 << 20) and await partition.read(0, 1 << 20)
    with pytest.raises(KafkaError) as waiting:
        partition.read_nowait(1, 1 << 20)
    with pytest.raises(KafkaError) as waiting_for_the_disk:
        await partition.read(1, 1 << 20)
    with pytest.raises(KafkaError) as asking:
        partition.latest_offset()
    for refused in (waiting, waiting_for_the_disk, asking):
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.read_nowait(1, 1 << 20, replica_id=2) == b"", "a follower knows better whom to follow"
    lease.renew(clock.now + 1)
    assert partition.latest_offset() == 1 and partition.read_nowait(1, 1 << 20) == b""
    nodes.stop()


async def test_what_is_committed_after_the_lease_lapsed_is_not_acknowledged() -> None:
    clock = Clock()
    nodes = Nodes(1, clock=clock)
    nodes.start()
    partition = led(nodes)
    lease = nodes.managers[1].lease
    lease.revoke()
    lease.renew(clock.now + 1)
    partition.append(writable(1), required_acks=-1, now_ms=1)
    waiting = partition.committed(1)
    assert waiting is not None
    clock.now += 2
    log_of(partition).sync()
    assert partition.high_watermark == 1
    assert _code(waiting.exception()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    late = partition.committed(1)
    assert late is not None and _code(late.exception()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    lease.renew(clock.now + 1)
    assert partition.committed(1) is None
    nodes.stop()


async def test_a_lease_that_lapses_during_an_append_with_acks_1_is_noticed() -> None:
    clock = Clock()
    nodes = Nodes(1, clock=clock)
    nodes.start()
    partition = led(nodes)
    lease = nodes.managers[1].lease
    lease.revoke()
    lease.renew(clock.now + 1)
    original = log_of(partition).append

    def slow(*args: object, **kwargs: object) -> object:
        clock.now += 5
        return original(*args, **kwargs)  # type: ignore[arg-type]

    partition.log.append = slow  # type: ignore[method-assign,assignment]
    with pytest.raises(KafkaError) as refused:
        partition.append(writable(1), required_acks=1, now_ms=1)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    nodes.stop()


async def test_waiters_are_woken_once_by_new_data(node: Nodes) -> None:
    partition = led(node, durability="os")
    woken: list[str] = []
    partition.add_waiter(lambda: woken.append("first"))
    cancelled = partition.add_waiter(lambda: woken.append("cancelled"))
    cancelled.cancel()
    partition.append(writable(1), required_acks=1, now_ms=1)
    partition.append(writable(2), required_acks=1, now_ms=1)
    assert woken == ["first"]


async def test_waiters_are_woken_by_a_change_of_role_and_survive_each_other(node: Nodes) -> None:
    partition = led(node)
    woken: list[str] = []

    def broken() -> None:
        raise RuntimeError("a fetch that fails")

    partition.add_waiter(broken)
    partition.add_waiter(lambda: woken.append("second"))
    node.elect("events", 0, -1)
    assert woken == ["second"]


async def test_reading_out_of_range_is_refused_and_at_the_end_is_empty(node: Nodes) -> None:
    partition = led(node, durability="os")
    partition.append(writable(1, 2), required_acks=1, now_ms=1)
    assert partition.read_nowait(2, 1000) == b""
    for offset in (-1, 3):
        with pytest.raises(KafkaError) as refused:
            partition.read_nowait(offset, 1000)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(await partition.read(0, 1000)) == 48


async def test_deleting_records_goes_up_to_the_high_watermark_only(node: Nodes) -> None:
    partition = led(node)
    partition.append(writable(1, 2, 3), required_acks=1, now_ms=1)
    log_of(partition).sync(2)
    with pytest.raises(KafkaError) as refused:
        partition.delete_records(3)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.delete_records(1) == 1
    assert partition.delete_records(-1) == 2
    assert partition.delete_records(0) == 2


async def test_a_client_with_another_leader_epoch_is_told_so(node: Nodes) -> None:
    partition = led(node)
    partition.check_epoch(-1)
    partition.check_epoch(partition.leader_epoch)
    for epoch, code in ((1, ErrorCode.UNKNOWN_LEADER_EPOCH),):
        with pytest.raises(KafkaError) as refused:
            partition.check_epoch(partition.leader_epoch + epoch)
        assert refused.value.code == code
    node.elect("events", 0, -1)
    node.elect("events", 0, 1)
    with pytest.raises(KafkaError) as fenced:
        partition.check_epoch(0)
    assert fenced.value.code == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_config_change_reaches_the_log_and_the_partition(node: Nodes) -> None:
    partition = led(node)
    partition.append(writable(1), required_acks=1, now_ms=1)
    change = ConfigChange(ConfigOperation.SET, "retention.ms", "1234")
    node.commit(SetConfig(ResourceType.TOPIC, "events", [change]))
    assert partition.log.config.retention_ms == 1234
    everywhere = ConfigChange(ConfigOperation.SET, "durability", "os")
    node.commit(SetConfig(ResourceType.BROKER, "", [everywhere]))
    assert partition.log.config.durability == "os"
    assert partition.high_watermark == 1, "what is written counts from now on"


def _code(error: BaseException | None) -> ErrorCode:
    assert isinstance(error, KafkaError)
    return error.code


async def _turn() -> None:
    await asyncio.sleep(0)
