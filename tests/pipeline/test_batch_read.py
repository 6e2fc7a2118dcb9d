"""`spark.read.format("chronik")`: what is read, by the options of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from chronik.client import Cluster, Producer, ProducerSettings, TopicPartition
from chronik.client.admin.topics import delete_records
from chronik.pipeline.arrow_schema import TOPIC_COLUMNS
from chronik.protocol.records import Compression
from harness.node_process import NodeProcess
from harness.waiting import eventually

Read = Callable[..., DataFrame]
COMPACTION_DEADLINE_S = 60.0


@pytest.fixture
def read(spark: SparkSession, node: NodeProcess) -> Read:
    def start(**options: Any) -> DataFrame:
        reader = spark.read.format("chronik").option("kafka.bootstrap.servers", node.bootstrap)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return start


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value.decode() for row in frame.select("value").collect())


def test_the_columns_are_those_of_sparks_kafka_source(
    spark: SparkSession, read: Read, topic: Callable[..., str], cluster: Cluster
) -> None:
    name = topic()
    with Producer(cluster, ProducerSettings(compression=Compression.ZSTD)) as producer:
        producer.send(name, b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=1_700_000_000_123)
        producer.send(name, None)
    frame = read(subscribe=name, includeHeaders="true")
    assert to_arrow_schema(frame.schema, timezone="UTC") == TOPIC_COLUMNS
    first, second = frame.orderBy("offset").collect()
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (b"k", b"v", name, 0, 0)
    assert first.timestamp.timestamp() == pytest.approx(1_700_000_000.123)
    assert [(h.key, h.value) for h in first.headers] == [("h", b"1"), ("n", None)]
    assert second.key is None and second.value is None and second.headers is None
    assert read(subscribe=name).columns == [c for c in TOPIC_COLUMNS.names if c != "headers"]


def test_a_schema_that_names_fewer_columns_reads_only_those(
    spark: SparkSession, node: NodeProcess, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic()
    produce(name, [b"a", b"b"])
    reader = spark.read.format("chronik").schema("offset bigint, value binary")
    frame = reader.options(**{"kafka.bootstrap.servers": node.bootstrap, "subscribe": name}).load()
    assert sorted((row.offset, row.value) for row in frame.collect()) == [(0, b"a"), (1, b"b")]


def test_offsets_and_times_say_where_reading_starts_and_ends(
    read: Read, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic(partitions=2)
    for at in range(5):
        produce(name, [f"a{at}".encode()], partition=0, timestamp_ms=1_000 + at)
    produce(name, [b"b0", b"b1"], partition=1, timestamp_ms=5_000)

    def offsets(zero: int, one: int) -> str:
        return json.dumps({name: {"0": zero, "1": one}})

    assert len(values(read(subscribe=name))) == 7
    assert values(read(subscribe=name, startingOffsets=offsets(3, 1))) == ["a3", "a4", "b1"]
    assert values(read(subscribe=name, startingOffsets=offsets(-2, 1), endingOffsets=offsets(2, -1))) == [
        "a0",
        "a1",
        "b1",
    ]
    assert values(read(assign=json.dumps({name: [1]}))) == ["b0", "b1"]
    assert values(read(subscribe=name, startingTimestamp="1003")) == ["a3", "a4", "b0", "b1"]
    by_time = json.dumps({name: {"0": 1004, "1": 9000}})
    late = read(subscribe=name, startingOffsetsByTimestamp=by_time, startingOffsetsByTimestampStrategy="latest")
    assert values(late) == ["a4"]
    assert values(read(subscribe=name, endingTimestamp="1002")) == ["a0", "a1"]


def test_a_pattern_reads_every_topic_that_matches(
    read: Read, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    one, two = topic(name="pattern-a-"), topic(name="pattern-b-")
    produce(one, [b"1"])
    produce(two, [b"2"])
    assert values(read(subscribePattern="pattern-[ab]-.*")) == ["1", "2"]


def test_small_partitions_share_a_task_and_large_ones_are_split_on_request(
    read: Read, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic(partitions=6)
    for partition in range(6):
        produce(name, [b"x"] * 50, partition=partition)
    assert read(subscribe=name).rdd.getNumPartitions() == 1
    split = read(subscribe=name, minPartitions="12")
    assert split.rdd.getNumPartitions() >= 12
    assert split.count() == 300


def test_filters_narrow_what_is_read_and_never_change_the_answer(
    read: Read, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        for at in range(10):
            produce(name, [f"{partition}-{at}".encode()], partition=partition, timestamp_ms=1_000 * (at + 1))
    frame = read(subscribe=name)
    assert values(frame.where("partition = 1 AND offset >= 7 AND offset < 9")) == ["1-7", "1-8"]
    assert values(frame.where("offset IN (2, 4)")) == ["0-2", "0-4", "1-2", "1-4"]
    assert values(frame.where("timestamp > TIMESTAMP '1970-01-01 00:00:08.5'")) == ["0-8", "0-9", "1-8", "1-9"]
    assert frame.where("timestamp < TIMESTAMP '1970-01-01 00:00:02'").count() == 2
    assert frame.where("topic = 'another'").count() == 0


def test_a_session_without_filter_pushdown_as_spark_has_it_by_default_reads_the_same(
    spark: SparkSession, read: Read, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic()
    produce(name, [b"a", b"b", b"c"])
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        assert values(read(subscribe=name).where("offset > 0")) == ["b", "c"]
    finally:
        spark.conf.set(setting, "true")


def test_filters_reach_the_reader_and_spare_it_what_they_would_drop(
    read: Read, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic(partitions=4)
    for partition in range(4):
        produce(name, [b"x"] * 10, partition=partition)
    spread = read(subscribe=name, minPartitions="4")
    assert spread.rdd.getNumPartitions() == 4
    assert spread.where("offset < 0").rdd.getNumPartitions() == 1, "nothing is left to read"
    assert spread.where("partition = 2").count() == 10


def test_lost_offsets_are_an_error_with_their_range_or_a_gap(
    read: Read, topic: Callable[..., str], produce: Callable[..., None], cluster: Cluster
) -> None:
    name = topic()
    produce(name, [b"0", b"1", b"2", b"3"])
    delete_records(cluster, {TopicPartition(name, 0): 3})
    start = json.dumps({name: {"0": 1}})
    with pytest.raises(PySparkException, match=f"offsets 1 to 2 of {name}-0"):
        read(subscribe=name, startingOffsets=start).collect()
    assert values(read(subscribe=name, startingOffsets=start, failOnDataLoss="false")) == ["3"]
    assert values(read(subscribe=name)) == ["3"]


def test_an_end_beyond_the_end_of_the_log_is_not_waited_for(
    read: Read, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic()
    produce(name, [b"0", b"1"])
    end = json.dumps({name: {"0": 5}})
    with pytest.raises(PySparkException, match=f"offsets 2 to 4 of {name}-0 .* the log ends at offset 2"):
        read(subscribe=name, endingOffsets=end).collect()
    assert values(read(subscribe=name, endingOffsets=end, failOnDataLoss="false")) == ["0", "1"]


def test_a_compacted_topic_is_read_across_its_gaps(
    read: Read, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    settings = {"cleanup_policy": "compact", "segment_bytes": "20000", "min_cleanable_dirty_ratio": "0.01"}
    name = topic(**settings)
    for n in range(40):
        produce(name, [b"%d-%d" % (n, m) + b"." * 100 for m in range(50)], key=b"k%d" % (n % 4))

    def compacted() -> bool:
        return read(subscribe=name).count() < 1_000

    eventually(compacted, "most of the log is compacted", COMPACTION_DEADLINE_S)
    rows = sorted((row.offset, row.key, row.value) for row in read(subscribe=name).collect())
    assert rows[0][0] > 0 and rows[-1][0] == 1_999
    newest = {key: value.partition(b".")[0] for _, key, value in rows}
    assert newest == {b"k%d" % n: b"%d-49" % (36 + n) for n in range(4)}
    assert all(value.startswith(b"%d-%d." % divmod(offset, 50)) for offset, _, value in rows)
    start, end = json.dumps({name: {"0": 3}}), json.dumps({name: {"0": 40}})
    gap = read(subscribe=name, startingOffsets=start, endingOffsets=end)
    assert gap.count() == 0, "a range of which nothing is left"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "a", "frobnicate": "1"}, "option frobnicate is not known"),
        ({}, "exactly one of subscribe"),
        ({"subscribe": "a", "assign": "{}"}, "exactly one of subscribe"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "option startingOffsets must be earliest, latest or JSON"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "would read nothing"),
        ({"subscribe": "a", "kafka.ssl.keystore.location": "x"}, "without TLS"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
    ],
)
def test_options_that_cannot_be_used_are_named(read: Read, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        read(**options).collect()
