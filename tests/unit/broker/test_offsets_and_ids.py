"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeLogDirs and InitProducerId."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chronik.broker.producer_ids import BLOCK_SIZE, ProducerIds
from chronik.metadata.model import Result
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from chronik.protocol.messages.leader_epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from chronik.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from chronik.protocol.messages.log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from chronik.protocol.messages.producers import InitProducerIdRequest
from unit.broker.serving import NOW_TIMESTAMP, KafkaClient, ServedNode

StartNode = Callable[..., Awaitable[ServedNode]]
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NEWEST = 11


async def offset(client: KafkaClient, timestamp: int, version: int = NEWEST, topic: str = "t", **more: Any) -> Any:
    isolation = more.pop("isolation_level", 0)
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, **more)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
    )
    return (await client.ask(request, version)).topics[0].partitions[0]


async def filled(node: ServedNode) -> KafkaClient:
    """Offsets 0 to 4, with timestamps that fall back to the first of each batch."""
    await node.create_topic("t")
    node.append("t", b"a", b"b", b"c")
    node.append("t", b"d", b"e")
    return await node.connect()


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
async def test_start_end_and_timestamp_are_found_in_every_version(node: ServedNode, version: int) -> None:
    client = await filled(node)
    assert (await offset(client, EARLIEST, version)).offset == 0
    assert (await offset(client, LATEST, version)).offset == 5
    found = await offset(client, NOW_TIMESTAMP + 2, version)
    assert (found.offset, found.timestamp) == (2, NOW_TIMESTAMP + 2)
    assert (await offset(client, NOW_TIMESTAMP + 100, version)).offset == -1


async def test_version_0_answers_a_list(node: ServedNode) -> None:
    client = await filled(node)
    assert (await offset(client, LATEST, 0, max_num_offsets=1)).old_style_offsets == [5]
    assert (await offset(client, LATEST, 0, max_num_offsets=9)).old_style_offsets == [5, 0]
    assert (await offset(client, EARLIEST, 0)).old_style_offsets == [0]
    assert (await offset(client, NOW_TIMESTAMP + 100, 0)).old_style_offsets == []


async def test_the_largest_timestamp_and_the_local_start_are_found(node: ServedNode) -> None:
    client = await filled(node)
    found = await offset(client, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (2, NOW_TIMESTAMP + 2)
    assert (await offset(client, EARLIEST_LOCAL)).offset == 0
    assert (await offset(client, LATEST_TIERED)).offset == -1


@pytest.mark.parametrize(("timestamp", "version"), [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (-9, NEWEST)])
async def test_a_special_timestamp_of_a_later_version_is_refused(
    node: ServedNode, timestamp: int, version: int
) -> None:
    client = await filled(node)
    assert (await offset(client, timestamp, version)).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_latest_is_what_a_reader_of_that_isolation_can_read_up_to(node: ServedNode) -> None:
    client = await filled(node)
    node.log("t").stable_limit = 3
    assert (await offset(client, LATEST, isolation_level=0)).offset == 5
    assert (await offset(client, LATEST, isolation_level=1)).offset == 3


async def test_a_timestamp_beyond_what_can_be_read_finds_nothing(node: ServedNode) -> None:
    client = await filled(node)
    node.log("t").stable_limit = 2
    assert (await offset(client, NOW_TIMESTAMP + 2, isolation_level=0)).offset == 2
    assert (await offset(client, NOW_TIMESTAMP + 2, isolation_level=1)).offset == -1


async def test_an_empty_partition_starts_and_ends_at_zero(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    assert [(await offset(client, what)).offset for what in (EARLIEST, LATEST, 0)] == [0, 0, -1]


async def test_offsets_of_what_is_not_led_here_are_refused(start_node: StartNode) -> None:
    node = await start_node(brokers=2)
    await node.create_topic("elsewhere", replicas=(2,))
    await node.create_topic("t")
    client = await node.connect()
    assert (await offset(client, LATEST, topic="elsewhere")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await offset(client, LATEST, topic="missing")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    newer = await offset(client, LATEST, current_leader_epoch=5)
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", range(5))
async def test_the_end_of_a_leader_epoch_is_told(node: ServedNode, version: int) -> None:
    client = await filled(node)
    asked = [OffsetForLeaderPartition(partition=0, leader_epoch=epoch) for epoch in (0, 7)]
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=asked)])
    current, later = (await client.ask(request, version)).topics[0].partitions
    assert (current.error_code, current.end_offset) == (0, 5)
    assert later.end_offset in (-1, 5)


@pytest.mark.parametrize("version", range(3))
async def test_records_below_an_offset_are_deleted(node: ServedNode, version: int) -> None:
    client = await filled(node)
    await node.create_topic("compacted", cleanup_policy="compact")

    async def delete(topic: str, below: int) -> tuple[int, int]:
        asked = [DeleteRecordsPartition(partition_index=0, offset=below)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=asked)], timeout_ms=1000)
        result = (await client.ask(request, version)).topics[0].partitions[0]
        return result.error_code, result.low_watermark

    assert await delete("t", 3) == (0, 3)
    assert (await offset(client, EARLIEST)).offset == 3
    assert await delete("t", 99) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete("t", -1) == (0, 5)
    assert await delete("missing", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete("compacted", 0) == (ErrorCode.POLICY_VIOLATION, -1)


@pytest.mark.parametrize("version", range(6))
async def test_the_data_folder_tells_the_size_of_its_logs(node: ServedNode, version: int) -> None:
    client = await filled(node)
    await node.create_topic("empty", partitions=2)
    (folder,) = (await client.ask(DescribeLogDirsRequest(topics=None), version)).results
    sizes = {(t.name, p.partition_index): p.partition_size for t in folder.topics for p in t.partitions}
    assert sizes == {("t", 0): node.log("t").size_bytes, ("empty", 0): 0, ("empty", 1): 0}
    if version >= 4:
        assert folder.total_bytes >= folder.usable_bytes > 0
    asked = [DescribableLogDirTopic(topic="empty", partitions=[1])]
    (folder,) = (await client.ask(DescribeLogDirsRequest(topics=asked), version)).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in folder.topics] == [("empty", [1])]


@pytest.mark.parametrize("version", range(7))
async def test_every_idempotent_producer_gets_its_own_id(node: ServedNode, version: int) -> None:
    clients = [await node.connect() for _ in range(5)]
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    answers = await asyncio.gather(*(client.ask(request, version) for client in clients))
    assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
    assert len({answer.producer_id for answer in answers}) == 5
    assert node.store.image.producer_id_next == BLOCK_SIZE, "five producers cost one block"


async def test_producers_that_wait_for_a_block_share_it() -> None:
    class SlowStore:
        blocks = 0

        async def propose(self, command: object) -> Result:
            await asyncio.sleep(0.01)
            self.blocks += 1
            return Result(value=(1000 * self.blocks, 1000))

    store = SlowStore()
    ids = ProducerIds(1, store)  # type: ignore[arg-type]
    taken = await asyncio.gather(*(ids.take() for _ in range(50)))
    assert sorted(taken) == list(range(1000, 1050))
    assert store.blocks == 1


async def test_without_agreement_a_producer_is_asked_to_come_again(node: ServedNode) -> None:
    node.history.failure = TimeoutError("no leader was found")
    answer = await (await node.connect()).ask(InitProducerIdRequest(transactional_id=None), 4)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)


@pytest.mark.parametrize(
    ("transactional_id", "code"), [("", ErrorCode.INVALID_REQUEST), ("tx", ErrorCode.COORDINATOR_NOT_AVAILABLE)]
)
async def test_a_transactional_producer_needs_the_coordinator(
    node: ServedNode, transactional_id: str, code: ErrorCode
) -> None:
    request = InitProducerIdRequest(transactional_id=transactional_id)
    assert (await (await node.connect()).ask(request, 4)).error_code == code
