"""Produce appends in order, answers as acks asks, and keeps each error with its partition."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.metadata import MetadataRequest
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from chronik.protocol.records import Compression, Record, build_batch, parse_batches, read_records
from chronik.protocol.records.message_sets import write_message_set
from unit.broker.serving import NOW_TIMESTAMP, ServedNode, batch_of
from unit.broker.wire_client import eventually

StartNode = Callable[..., Awaitable[ServedNode]]


def request_for(
    *records: bytes | None, topic: str = "t", acks: int = -1, topic_id: bytes = bytes(16), timeout_ms: int = 5000
) -> ProduceRequest:
    """One record set per partition, from partition 0 on."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=topic,
                topic_id=topic_id,
                partition_data=[PartitionProduceData(index=i, records=data) for i, data in enumerate(records)],
            )
        ],
    )


def only(response: ProduceResponse) -> PartitionProduceResponse:
    return response.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [1, -1])
async def test_offsets_count_up_from_zero_in_every_version(node: ServedNode, version: int, acks: int) -> None:
    topic_id = await node.create_topic("t")
    client = await node.connect()
    for expected in (0, 2, 4):
        answer = only(await client.ask(request_for(batch_of(b"a", b"b"), acks=acks, topic_id=topic_id), version))
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, expected, -1)
    assert [offset for offset, _, _ in node.log("t").records()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("compression", list(Compression))
async def test_a_batch_is_stored_as_it_came_but_for_offset_and_leader_epoch(
    node: ServedNode, compression: Compression
) -> None:
    await node.create_topic("t")
    client = await node.connect()
    sent = batch_of(b"first", b"second", compression=compression)
    await client.ask(request_for(batch_of(b"before")), 9)
    await client.ask(request_for(sent), 9)
    stored = node.log("t").batches[1][1]
    assert stored[16:] == sent[16:]
    assert stored[:8] == (1).to_bytes(8, "big")


async def test_one_request_may_write_to_many_partitions(node: ServedNode) -> None:
    await node.create_topic("t", partitions=3)
    client = await node.connect()
    response = await client.ask(request_for(batch_of(b"0"), batch_of(b"1"), batch_of(b"2")), 9)
    assert [(p.index, p.error_code, p.base_offset) for p in response.responses[0].partition_responses] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    assert node.log("t", 2).records() == [(0, b"k", b"2")]


async def test_pipelined_requests_are_appended_in_order_and_answered_in_order(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    sent = [client.send(request_for(batch_of(b"%d" % i)), 9) for i in range(100)]
    answers = [only(await client.receive(ProduceResponse, 9, correlation_id)) for correlation_id in sent]
    assert [answer.base_offset for answer in answers] == list(range(100))
    assert [value for _, _, value in node.log("t").records()] == [b"%d" % i for i in range(100)]


async def test_acks_all_waits_for_the_sync_and_later_requests_are_appended_meanwhile(node: ServedNode) -> None:
    await node.create_topic("t")
    node.log("t").hold_syncs = True
    client = await node.connect()
    first = client.send(request_for(batch_of(b"1")), 9)
    second = client.send(request_for(batch_of(b"2")), 9)
    third = client.send(MetadataRequest(topics=[]), 9)
    await eventually(lambda: node.log("t").end_offset == 2, "both batches are appended")
    assert node.log("t").high_watermark == 0
    node.log("t").sync()
    assert only(await client.receive(ProduceResponse, 9, first)).base_offset == 0
    assert only(await client.receive(ProduceResponse, 9, second)).base_offset == 1
    await client.read_frame()
    assert third == 2


async def test_acks_one_does_not_wait_for_the_sync(node: ServedNode) -> None:
    await node.create_topic("t")
    node.log("t").hold_syncs = True
    client = await node.connect()
    assert only(await client.ask(request_for(batch_of(b"1"), acks=1), 9)).error_code == 0


async def test_acks_zero_gets_no_response_at_all(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    client.send(request_for(batch_of(b"1"), acks=0), 9)
    client.send(request_for(batch_of(b"2"), acks=0), 9)
    answer = only(await client.ask(request_for(batch_of(b"3"), acks=1), 9))
    assert answer.base_offset == 2


async def test_an_error_with_acks_zero_closes_the_connection_and_is_logged(node: ServedNode) -> None:
    client = await node.connect()
    with structlog.testing.capture_logs() as lines:
        client.send(request_for(batch_of(b"1"), acks=0, topic="missing"), 9)
        assert await client.closed_by_peer()
    assert [line["error"] for line in lines if "acks=0" in line["event"]] == ["UNKNOWN_TOPIC_OR_PARTITION"]


async def test_a_write_that_is_not_confirmed_in_time_is_answered_so(node: ServedNode) -> None:
    await node.create_topic("t")
    node.log("t").hold_syncs = True
    client = await node.connect()
    answer = only(await client.ask(request_for(batch_of(b"1"), timeout_ms=30), 9))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    node.log("t").sync()
    node.log("t").hold_syncs = False
    assert only(await client.ask(request_for(batch_of(b"2")), 9)).base_offset == 1


async def test_losing_the_leadership_while_waiting_fails_the_write(start_node: StartNode) -> None:
    node = await start_node(brokers=2)
    await node.create_topic("t", replicas=(1, 2))
    client = await node.connect()
    sent = client.send(request_for(batch_of(b"1")), 10)
    await eventually(lambda: node.log("t").end_offset == 1, "the batch is appended")
    node.replicas.partition("t", 0).stand_by()
    answer = only(await client.receive(ProduceResponse, 10, sent))
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_node_that_does_not_lead_says_who_does(start_node: StartNode) -> None:
    node = await start_node(brokers=2)
    await node.create_topic("t", replicas=(2, 1))
    client = await node.connect()
    response = await client.ask(request_for(batch_of(b"1")), 10)
    answer = only(response)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.current_leader is not None and answer.current_leader.leader_id == 2
    assert [(e.node_id, e.host, e.port) for e in response.node_endpoints] == [(2, "host-2", 9092)]


async def test_without_enough_replicas_in_sync_acks_all_is_refused_and_acks_one_is_not(start_node: StartNode) -> None:
    node = await start_node(brokers=1)
    await node.create_topic("t", min_insync_replicas="1")
    client = await node.connect()
    partition = node.replicas.partition("t", 0)
    partition.info = type(partition.info)(1, 0, 0, (1, 2), (1,))
    partition.settings = type(partition.settings)(partition.settings.log, 2)
    assert only(await client.ask(request_for(batch_of(b"1")), 9)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert only(await client.ask(request_for(batch_of(b"1"), acks=1), 9)).error_code == 0


def corrupt(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def with_bytes(batch: bytes, position: int, value: bytes) -> bytes:
    return batch[:position] + value + batch[position + len(value) :]


REFUSED = {
    "null records": (None, ErrorCode.INVALID_RECORD),
    "empty records": (b"", ErrorCode.INVALID_RECORD),
    "a wrong checksum": (corrupt(batch_of(b"x")), ErrorCode.CORRUPT_MESSAGE),
    "a negative length": (with_bytes(batch_of(b"x"), 8, b"\xff\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
    "a length beyond the end": (with_bytes(batch_of(b"x"), 8, b"\x7f\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
    "an old magic": (with_bytes(batch_of(b"x"), 16, b"\x01"), ErrorCode.INVALID_RECORD),
    "two batches": (batch_of(b"x") + batch_of(b"y"), ErrorCode.INVALID_RECORD),
    "a control batch": (batch_of(b"x", control=True, producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
    "time set by the producer": (batch_of(b"x", log_append_time=5), ErrorCode.INVALID_TIMESTAMP),
    "a batch too large": (batch_of(b"x" * 1_048_600), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("what", list(REFUSED))
@pytest.mark.parametrize("version", [3, 9])
async def test_a_lying_batch_is_refused_and_the_log_is_unchanged(node: ServedNode, what: str, version: int) -> None:
    records, code = REFUSED[what]
    await node.create_topic("t", partitions=2)
    client = await node.connect()
    response = await client.ask(request_for(records, batch_of(b"good")), version)
    bad, good = response.responses[0].partition_responses
    assert (bad.error_code, bad.base_offset) == (code, -1)
    if version >= 8:
        assert bad.error_message
    assert (good.error_code, good.base_offset) == (0, 0)
    assert node.log("t", 0).end_offset == 0


@pytest.mark.parametrize("acks", [2, -2, 5])
async def test_unknown_acks_are_refused(node: ServedNode, acks: int) -> None:
    await node.create_topic("t")
    client = await node.connect()
    answer = only(await client.ask(request_for(batch_of(b"1"), acks=acks), 9))
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert node.log("t").end_offset == 0


async def test_unknown_topics_partitions_and_ids_have_their_own_errors(node: ServedNode) -> None:
    topic_id = await node.create_topic("t")
    client = await node.connect()
    unknown = only(await client.ask(request_for(batch_of(b"1"), topic="missing"), 9))
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = await client.ask(request_for(batch_of(b"0"), batch_of(b"1")), 9)
    codes = [p.error_code for p in response.responses[0].partition_responses]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    unknown = only(await client.ask(request_for(batch_of(b"1"), topic_id=b"\x09" * 16), 13))
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert only(await client.ask(request_for(batch_of(b"1"), topic_id=topic_id), 13)).error_code == 0


async def test_internal_topics_are_not_for_clients(node: ServedNode) -> None:
    await node.create_topic("__consumer_offsets")
    client = await node.connect()
    answer = only(await client.ask(request_for(batch_of(b"1"), topic="__consumer_offsets"), 9))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_failure_of_the_log_is_never_error_zero(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    node.log("t").append_error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
    assert only(await client.ask(request_for(batch_of(b"1")), 9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    node.log("t").append_error = RuntimeError("a mistake of ours")
    answer = only(await client.ask(request_for(batch_of(b"1")), 9))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)


async def test_log_append_time_is_ours_and_the_checksum_is_right(node: ServedNode) -> None:
    await node.create_topic("t", message_timestamp_type="LogAppendTime")
    client = await node.connect()
    answer = only(await client.ask(request_for(batch_of(b"1", b"2", compression=Compression.LZ4)), 9))
    assert answer.log_append_time_ms > NOW_TIMESTAMP
    (stored,) = [data for _, data in node.log("t").batches]
    (info,) = parse_batches(stored)
    assert info.log_append_time and info.max_timestamp == answer.log_append_time_ms
    assert [record.timestamp for record in read_records(stored)] == [answer.log_append_time_ms] * 2


async def test_timestamps_that_the_topic_does_not_allow_are_refused(node: ServedNode) -> None:
    await node.create_topic("old", message_timestamp_before_max_ms="1000")
    client = await node.connect()
    answer = only(await client.ask(request_for(batch_of(b"1"), topic="old"), 9))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_a_record_that_is_too_old_is_found_behind_one_that_is_not(node: ServedNode, codec: Compression) -> None:
    await node.create_topic("t", message_timestamp_before_max_ms="60000")
    client = await node.connect()
    now = int(time.time() * 1000)
    for times, code in (
        ((now, now - 90_000), ErrorCode.INVALID_TIMESTAMP),
        ((now, now - 30_000), ErrorCode.NONE),
        ((now, -1), ErrorCode.NONE),
    ):
        batch = build_batch([Record(i, at, b"k", b"v") for i, at in enumerate(times)], compression=codec)
        assert only(await client.ask(request_for(bytes(batch)), 9)).error_code == code
    assert [offset for offset, _, _ in node.log("t").records()] == [0, 1, 2, 3]


async def test_a_topic_with_its_own_codec_stores_batches_in_it_and_keeps_their_order(node: ServedNode) -> None:
    await node.create_topic("t", compression_type="zstd")
    client = await node.connect()
    sent = [
        client.send(request_for(batch_of(b"%d" % i, compression=codec)), 9)
        for i, codec in enumerate([Compression.NONE, Compression.ZSTD, Compression.GZIP] * 5)
    ]
    offsets = [only(await client.receive(ProduceResponse, 9, correlation_id)).base_offset for correlation_id in sent]
    assert offsets == list(range(15))
    assert {info.compression for info, _ in node.log("t").batches} == {Compression.ZSTD}
    assert [value for _, _, value in node.log("t").records()] == [b"%d" % i for i in range(15)]


@pytest.mark.parametrize(("codec", "hardest"), [("gzip", "9"), ("zstd", "22")])
async def test_a_topic_with_its_own_codec_compresses_as_hard_as_it_is_told(
    node: ServedNode, codec: str, hardest: str
) -> None:
    client = await node.connect()
    value = b" ".join(b"%x" % number for number in random.Random(1).choices(range(1 << 12), k=4000))
    sizes = []
    for level in ("1", hardest):
        await node.create_topic(f"t{level}", compression_type=codec, **{f"compression_{codec}_level": level})
        assert only(await client.ask(request_for(batch_of(value), topic=f"t{level}"), 9)).error_code == 0
        (stored,) = node.log(f"t{level}").batches
        sizes.append(stored[0].size)
    assert sizes[0] > sizes[1]


async def test_a_compacted_topic_takes_no_record_without_a_key(node: ServedNode) -> None:
    await node.create_topic("t", cleanup_policy="compact")
    client = await node.connect()
    for compression in (Compression.NONE, Compression.SNAPPY):
        keyless = batch_of(b"1", key=None, compression=compression)
        assert only(await client.ask(request_for(keyless), 9)).error_code == ErrorCode.INVALID_RECORD
        assert only(await client.ask(request_for(batch_of(b"1", compression=compression)), 9)).error_code == 0
    assert node.log("t").end_offset == 2


async def test_what_waits_for_its_conversion_is_not_overwritten_by_others(node: ServedNode) -> None:
    await node.create_topic("t", compression_type="gzip")
    node.services.executor = ThreadPoolExecutor(1)
    go_on = threading.Event()
    node.services.executor.submit(go_on.wait)
    client, other = await node.connect(), await node.connect()
    sent = client.send(request_for(batch_of(b"kept")), 9)
    await eventually(lambda: node.listener.metrics.bytes_in > 0, "the batch arrives")
    for _ in range(3):
        await other.ask(request_for(batch_of(b"#" * 1000), topic="missing"), 9)
    go_on.set()
    assert only(await client.receive(ProduceResponse, 9, sent)).error_code == 0
    assert node.log("t").records() == [(0, b"k", b"kept")]
    node.services.executor.shutdown()


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
async def test_old_message_sets_are_stored_as_batches(node: ServedNode, version: int, compression: Compression) -> None:
    await node.create_topic("t")
    client = await node.connect()
    message_set = bytearray()
    records = [Record(i, NOW_TIMESTAMP, b"key", b"value-%d" % i) for i in range(3)]
    write_message_set(message_set, 1 if version == 2 else 0, records, compression=compression, log_append_time=False)
    first = client.send(request_for(bytes(message_set)), version)
    second = client.send(request_for(bytes(message_set), acks=1), version)
    assert only(await client.receive(ProduceResponse, version, first)).base_offset == 0
    assert only(await client.receive(ProduceResponse, version, second)).base_offset == 3
    assert node.log("t").records() == [(i, b"key", b"value-%d" % (i % 3)) for i in range(6)]


async def test_conversion_with_acks_all_waits_for_the_sync(node: ServedNode) -> None:
    await node.create_topic("t", compression_type="gzip")
    node.log("t").hold_syncs = True
    client = await node.connect()
    sent = client.send(request_for(batch_of(b"1")), 9)
    await eventually(lambda: node.log("t").end_offset == 1, "the batch is appended")
    await asyncio.sleep(0.01)
    node.log("t").sync()
    assert only(await client.receive(ProduceResponse, 9, sent)).base_offset == 0
