"""Fetch and ListOffsets while the disk is waited for: who leads, and what is in the log, may have changed by then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from chronik.metadata.commands import DeleteTopic
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import FetchResponse, PartitionData
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from chronik.replication.partition import Partition
from unit.broker.memory_log import MemoryLog
from unit.broker.serving import NOW_TIMESTAMP, KafkaClient, ServedNode
from unit.broker.test_fetch import only, request_for, values
from unit.broker.wire_client import eventually

StartNode = Callable[..., Awaitable[ServedNode]]
VERSION = 12
LIST_VERSION = 7
MAX_TIMESTAMP = -3


class HeldReads:
    """What of a log needs the disk waits until `done` is set, and then finds the log as it is, as a real one does."""

    def __init__(self, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way = False
        self.done = asyncio.Event()
        self._log = log
        self._reading = {name: getattr(log, name) for name in ("offset_for_timestamp", "max_timestamp_offset")}
        log.cold = True
        monkeypatch.setattr(log, "read", self._read)
        monkeypatch.setattr(
            log, "offset_for_timestamp", lambda timestamp: self._search("offset_for_timestamp", timestamp)
        )
        monkeypatch.setattr(log, "max_timestamp_offset", lambda: self._search("max_timestamp_offset"))

    async def _wait(self) -> None:
        self.under_way = True
        await self.done.wait()

    async def _read(self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool = True) -> bytes:
        await self._wait()
        if not self._log.log_start_offset <= offset <= self._log.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is out of range")
        return self._log._read(offset, max_bytes, end_offset, at_least_one)

    async def _search(self, name: str, *what: int) -> Any:
        await self._wait()
        return await self._reading[name](*what)


def given_up(log: MemoryLog) -> None:
    """As a log is after another leader's start was taken over, or after it was deleted."""
    log.batches.clear()
    log.log_start_offset = log.end_offset = log.synced_offset = log.high_watermark = 100


def led_by(partition: Partition, leader: int) -> None:
    info = partition.info
    partition.update(msgspec.structs.replace(info, leader=leader, leader_epoch=info.leader_epoch + 1))


class Reading:
    """One partition with three records, and a client whose request waits for its disk."""

    def __init__(self, node: ServedNode, client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.client = client
        self.partition = node.replicas.partition("t", 0)
        self.log = node.log("t")
        self.reads = HeldReads(self.log, monkeypatch)
        self._sent = 0

    @classmethod
    async def of(cls, start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> Reading:
        node = await start_node(brokers=2)
        await node.create_topic("t")
        for value in (b"a", b"b", b"c"):
            node.append("t", value)
        return cls(node, await node.connect(), monkeypatch)

    async def fetch(self, offset: int) -> None:
        self._sent = self.client.send(request_for(offset), VERSION)
        await eventually(lambda: self.reads.under_way, "the disk is read")

    async def fetched(self) -> PartitionData:
        self.reads.done.set()
        return only(await self.client.receive(FetchResponse, VERSION, self._sent))

    async def search(self, timestamp: int) -> None:
        asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
        self._sent = self.client.send(request, LIST_VERSION)
        await eventually(lambda: self.reads.under_way, "the disk is searched")

    async def found(self) -> tuple[int, int]:
        """The error code and the offset."""
        self.reads.done.set()
        response = await self.client.receive(ListOffsetsResponse, LIST_VERSION, self._sent)
        answer = response.topics[0].partitions[0]
        return answer.error_code, answer.offset


@pytest.fixture
async def reading(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> Reading:
    return await Reading.of(start_node, monkeypatch)


async def test_a_log_given_up_under_a_fetch_for_another_leader_does_not_reset_the_consumer(reading: Reading) -> None:
    await reading.fetch(1)
    led_by(reading.partition, 2)
    given_up(reading.log)
    assert (await reading.fetched()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_what_a_follower_has_is_not_served_to_who_asked_the_leader(reading: Reading) -> None:
    await reading.fetch(1)
    led_by(reading.partition, 2)
    data = await reading.fetched()
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and data.records == b""


async def test_a_fetch_does_not_go_on_where_another_has_led_meanwhile(reading: Reading) -> None:
    await reading.fetch(1)
    led_by(reading.partition, 2)
    given_up(reading.log)
    led_by(reading.partition, 1)
    assert (await reading.fetched()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_topic_deleted_under_a_fetch_does_not_reset_the_consumer(reading: Reading) -> None:
    await reading.fetch(1)
    assert (await reading.node.store.propose(DeleteTopic(reading.partition.topic_id))).ok
    given_up(reading.log)
    assert (await reading.fetched()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_that_stays_leader_in_the_next_epoch_serves_what_it_read(reading: Reading) -> None:
    await reading.fetch(1)
    led_by(reading.partition, 1)
    data = await reading.fetched()
    assert (data.error_code, values(data)) == (0, [b"b", b"c"])


async def test_what_retention_took_under_a_fetch_is_out_of_range(reading: Reading) -> None:
    await reading.fetch(1)
    reading.log.delete_records_to(2)
    assert (await reading.fetched()).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("timestamp", [NOW_TIMESTAMP, MAX_TIMESTAMP])
async def test_a_search_in_a_log_that_was_given_up_does_not_say_that_there_is_nothing(
    reading: Reading, timestamp: int
) -> None:
    await reading.search(timestamp)
    led_by(reading.partition, 2)
    given_up(reading.log)
    assert await reading.found() == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_a_search_does_not_go_on_where_another_has_led_meanwhile(reading: Reading) -> None:
    await reading.search(NOW_TIMESTAMP)
    led_by(reading.partition, 2)
    led_by(reading.partition, 1)
    assert await reading.found() == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize("offset", [1, 7])
async def test_a_leader_that_may_have_been_replaced_does_not_reset_consumers(node: ServedNode, offset: int) -> None:
    await node.create_topic("t")
    for value in (b"a", b"b", b"c"):
        node.append("t", value)
    node.log("t").delete_records_to(2)
    node.lease.revoke()
    client = await node.connect()
    assert only(await client.ask(request_for(offset), VERSION)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
