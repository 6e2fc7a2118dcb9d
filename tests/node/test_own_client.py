"""Chronik's own client, and hand-made batches, against a real node."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from typing import cast

import google_crc32c
import pytest

from chronik.client import (
    EARLIEST,
    Cluster,
    Connection,
    Consumer,
    OffsetOutOfRange,
    Producer,
    ProducerSettings,
    TopicPartition,
    fetch_range,
)
from chronik.client.admin.topics import create_topic, delete_records
from chronik.client.offsets import end_offsets, offsets_for_time, partitions_of
from chronik.client.partitioner import partition_for_key
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from chronik.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chronik.protocol.records import Compression, Record, batch_magic, build_batch, read_records
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.protocol.records.message_sets import read_message_set
from harness.node_process import NodeProcess
from harness.record_oracles import ALL_CODECS, OLD_CODECS, kafka_python_message_set

NEWEST_BY_NAME = 12


@pytest.fixture(scope="module")
def cluster(node: NodeProcess) -> Iterator[Cluster]:
    with Cluster(node.bootstrap) as made:
        yield made


@pytest.fixture
def connection(node: NodeProcess) -> Iterator[Connection]:
    with Connection("127.0.0.1", node.kafka_port) as made:
        yield made


def produce(connection: Connection, topic: str, records: bytes | bytearray, version: int = NEWEST_BY_NAME) -> ErrorCode:
    """Send bytes as they are to partition 0, and say what the node answered."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data])
    answer = connection.call(request, ProduceResponse, newest=version)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_what_is_written_is_read_back_with_every_codec(cluster: Cluster, topic: str, codec: Compression) -> None:
    create_topic(cluster, topic, partitions=3)
    settings = ProducerSettings(compression=codec, idempotent=True, batch_bytes=20_000)
    with Producer(cluster, settings) as producer:
        sent = [producer.send(topic, b"v%d" % n, key=b"k%d" % n, headers=[("n", b"%d" % n)]) for n in range(1000)]
    places = partitions_of(cluster, topic)
    assert sum(end_offsets(cluster, places).values()) == 1000
    read = {}
    with Consumer(cluster, dict.fromkeys(places, EARLIEST)) as consumer:
        deadline = time.monotonic() + 20
        while len(read) < 1000 and time.monotonic() < deadline:
            read.update({record.key: record for record in consumer.poll(1.0)})
    for n, delivery in enumerate(sent):
        record = read[b"k%d" % n]
        assert (record.partition, record.offset) == (delivery.place.partition, delivery.offset)
        assert record.partition == partition_for_key(record.key or b"", 3)
        assert (record.value, record.headers) == (b"v%d" % n, [("n", b"%d" % n)])


def test_ranges_times_and_deleted_records(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, partitions=1)
    place = TopicPartition(topic, 0)
    with Producer(cluster, ProducerSettings(batch_bytes=500)) as producer:
        now = int(time.time() * 1000)
        for n in range(100):
            producer.send(topic, b"%d" % n, timestamp_ms=now + n)
    assert offsets_for_time(cluster, [place], now + 42) == {place: 42}
    read = [r for fetched in fetch_range(cluster, place, 10, 90) for r in fetched.records() if r.offset < 90]
    assert [int(r.value or b"") for r in read] == list(range(10, 90))
    assert delete_records(cluster, {place: 30}) == {place: 30}
    with pytest.raises(OffsetOutOfRange) as caught:
        list(fetch_range(cluster, place, 10, 90))
    assert (caught.value.earliest, caught.value.latest) == (30, 100)


def test_a_killed_node_gets_every_record_of_an_idempotent_producer_once(fresh_node: NodeProcess, topic: str) -> None:
    fresh_node.start()
    halfway = threading.Event()

    def interrupt() -> None:
        halfway.wait(20)
        fresh_node.kill()
        fresh_node.start()

    with Cluster(fresh_node.bootstrap) as cluster:
        create_topic(cluster, topic, partitions=1)
        murder = threading.Thread(target=interrupt)
        murder.start()
        with Producer(cluster, ProducerSettings(idempotent=True, batch_bytes=2000)) as producer:
            for n in range(3000):
                producer.send(topic, b"%d" % n)
                if n == 1000:
                    halfway.set()
        murder.join(60)
        place = TopicPartition(topic, 0)
        read = [r.value for fetched in fetch_range(cluster, place, 0, 3000) for r in fetched.records()]
    assert read == [b"%d" % n for n in range(3000)]


# -- batches that lie -------------------------------------------------------------------------------------------------

RECORDS = [Record(0, 1000, b"k", b"v"), Record(1, 1001, b"k", b"w")]


def changed(batch: bytearray, form: str, position: int, value: int) -> bytearray:
    """The batch with one field changed and a checksum that is right."""
    struct.pack_into(form, batch, position, value)
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    return batch


def flipped(batch: bytearray) -> bytearray:
    batch[-1] ^= 1
    return batch


MARKER = build_end_transaction_marker(committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=1)

LIES = {
    "a negative length": (changed(build_batch(RECORDS), ">i", 8, -1), ErrorCode.CORRUPT_MESSAGE),
    "a length beyond the request": (changed(build_batch(RECORDS), ">i", 8, 2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
    "a wrong checksum": (flipped(build_batch(RECORDS)), ErrorCode.CORRUPT_MESSAGE),
    "half a batch": (build_batch(RECORDS)[:70], ErrorCode.CORRUPT_MESSAGE),
    "fewer records than offsets": (build_batch(RECORDS[:1], last_offset_delta=1), ErrorCode.INVALID_RECORD),
    "more records than offsets": (changed(build_batch(RECORDS), ">i", 57, 3), ErrorCode.INVALID_RECORD),
    "a negative record count": (changed(build_batch(RECORDS), ">i", 57, -1), ErrorCode.INVALID_RECORD),
    "two batches": (build_batch(RECORDS) * 2, ErrorCode.INVALID_RECORD),
    "an old format": (bytearray(kafka_python_message_set(RECORDS, 1, Compression.NONE)), ErrorCode.INVALID_RECORD),
    "a control record": (MARKER, ErrorCode.INVALID_RECORD),
    "a codec that does not exist": (
        changed(build_batch(RECORDS), ">h", 21, 6),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "the timestamp type of a broker": (build_batch(RECORDS, log_append_time=5), ErrorCode.INVALID_TIMESTAMP),
    "no records": (bytearray(), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_batch_is_refused_and_the_log_stays_as_it_was(
    cluster: Cluster, connection: Connection, topic: str, lie: str
) -> None:
    batch, expected = LIES[lie]
    create_topic(cluster, topic, partitions=1)
    assert produce(connection, topic, batch) is expected
    assert end_offsets(cluster, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 0}
    assert produce(connection, topic, build_batch(RECORDS)) is ErrorCode.NONE


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_a_record_without_a_key_is_refused_by_a_compacted_topic(
    cluster: Cluster, connection: Connection, topic: str, codec: Compression
) -> None:
    create_topic(cluster, topic, partitions=1, configs={"cleanup.policy": "compact"})
    nameless = [*RECORDS, Record(2, 1000, None, b"x")]
    assert produce(connection, topic, build_batch(nameless, compression=codec)) is ErrorCode.INVALID_RECORD
    assert produce(connection, topic, build_batch(RECORDS, compression=codec)) is ErrorCode.NONE
    assert end_offsets(cluster, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 2}


@pytest.mark.parametrize("codec", [codec for codec in ALL_CODECS if codec])
def test_a_bomb_is_refused_where_the_broker_must_unpack_and_the_node_stays_responsive(
    cluster: Cluster, connection: Connection, topic: str, codec: Compression
) -> None:
    create_topic(cluster, topic, partitions=1, configs={"cleanup.policy": "compact", "max.message.bytes": "10000000"})
    bomb = build_batch([Record(0, 1000, b"k", bytes(150 * 1024 * 1024))], compression=codec)
    started = time.monotonic()
    assert produce(connection, topic, bomb) in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)
    assert time.monotonic() - started < 10
    assert end_offsets(cluster, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 0}


# -- formats of ten years ago -----------------------------------------------------------------------------------------


def fetch(connection: Connection, topic: str, offset: int, version: int) -> memoryview:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=1000, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[part])])
    answer = connection.call(request, FetchResponse, newest=version)
    data = answer.responses[0].partitions[0]
    assert data.error_code == 0
    return cast(memoryview, data.records)


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_sets_are_taken_stored_in_the_new_format_and_served_in_the_old_one(
    cluster: Cluster, connection: Connection, topic: str, magic: int, codec: Compression
) -> None:
    create_topic(cluster, topic, partitions=1)
    records = [Record(n, 1000 + n, b"k%d" % n, b"v" * n) for n in range(20)]
    for version in (0, 1, 2):
        assert produce(connection, topic, kafka_python_message_set(records, magic, codec), version) is ErrorCode.NONE
    new = fetch(connection, topic, 20, version=11)
    assert batch_magic(new) == 2
    assert [r.offset for r in read_records(new)] == list(range(20, 40))
    for version, served in ((0, 0), (1, 0), (2, 1), (3, 1)):
        old = fetch(connection, topic, 0, version)
        assert batch_magic(old) == served
        read = read_message_set(old)
        assert [r.offset for r in read] == list(range(60))
        assert [(r.key, r.value) for r in read] == [(r.key, r.value) for r in records] * 3
        if served and magic:
            assert [r.timestamp for r in read] == [r.timestamp for r in records] * 3
