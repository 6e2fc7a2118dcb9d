"""Spark's own Kafka connector beside `format("chronik")`: the same job on the same topics gives the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster
from chronik.pipeline.spark_session import start_session
from harness.node_process import NodeProcess

pytestmark = pytest.mark.timeout(400)  # starting Spark takes seconds on a quiet machine and a minute on a busy one

FORMATS = ("kafka", "chronik")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
BASE_MS = 1_700_000_000_000
STREAM_DEADLINE_S = 120.0
TRANSACTION_MS = 900_000
SETTLED_RECORDS = 320
"""All that is written below apart from the transaction that stays open."""

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def spark(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    jars = sorted((build / "spark" / "libs").glob("*.jar"))
    assert jars, "Spark's Kafka connector is missing; run `make interop`"
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        session = start_session("interop", "local[2]", settings)
    yield session
    session.stop()


def send(producer: Producer, topic: str, number: int) -> None:
    """A record whose key, value and headers are each missing, empty, small or large in turn."""
    headers: list[list[tuple[str, bytes | None]]] = [[], [("a", b"1")], [("a", b"1"), ("a", b""), ("leer", None)]]
    producer.produce(
        topic,
        value=[b"v%d" % number, None, b"", b"lang " * 500][number % 4],
        key=[b"k%d" % number, None, b""][number % 3],
        headers=headers[number % len(headers)],
        partition=number % PARTITIONS,
        timestamp=BASE_MS + number,
    )


def transactional(node: NodeProcess, name: str) -> Producer:
    settings = {"bootstrap.servers": node.bootstrap, "transactional.id": name, "log_level": 0}
    producer = Producer({**settings, "linger.ms": 0, "transaction.timeout.ms": TRANSACTION_MS})
    producer.init_transactions(30)
    return producer


@pytest.fixture(scope="module")
def mixed(node: NodeProcess) -> str:
    """A topic of every codec, headers, and transactions: committed, aborted, interleaved, and one that stays open."""
    topic = "mixed"
    with Cluster(node.bootstrap) as cluster:
        create_topic(cluster, topic, partitions=PARTITIONS)
    for first, codec in zip(range(0, 200, 40), CODECS, strict=True):
        producer = Producer({"bootstrap.servers": node.bootstrap, "compression.type": codec, "linger.ms": 20})
        for number in range(first, first + 40):
            send(producer, topic, number)
        assert producer.flush(30) == 0
    one, other = transactional(node, "one"), transactional(node, "other")
    for turn, first in enumerate(range(200, 260, 10)):
        one.begin_transaction()
        other.begin_transaction()
        for number in range(first, first + 10):
            send(one, topic, number)
            send(other, topic, number)
            one.flush(30)
        other.flush(30)
        if turn % 2:
            one.abort_transaction(30)
            other.commit_transaction(30)
        else:
            other.abort_transaction(30)
            one.commit_transaction(30)
    open_one = transactional(node, "open")
    open_one.begin_transaction()
    send(open_one, topic, 0)
    assert open_one.flush(30) == 0
    return topic


def options(node: NodeProcess, isolation: str, **more: str) -> dict[str, str]:
    where = {"kafka.bootstrap.servers": node.bootstrap, "kafka.isolation.level": isolation}
    return {**where, "includeHeaders": "true", **more}


def rows(frame: DataFrame) -> Rows:
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: (row[2], row[3], row[4]))


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_batch_has_the_same_rows(spark: SparkSession, node: NodeProcess, mixed: str, isolation: str) -> None:
    by_offset = json.dumps({mixed: {str(partition): 7 for partition in range(PARTITIONS)}})
    by_time = json.dumps({mixed: {str(partition): BASE_MS + 150 for partition in range(PARTITIONS)}})
    questions = [
        {"subscribe": mixed},
        {"subscribePattern": "mix.*", "minPartitions": "7"},
        {"assign": json.dumps({mixed: [0, 2]})},
        {"subscribe": mixed, "startingOffsets": by_offset},
        {"subscribe": mixed, "endingOffsets": by_offset},
        {"subscribe": mixed, "startingOffsetsByTimestamp": by_time},
    ]
    for question in questions:
        frames = {
            name: spark.read.format(name).options(**options(node, isolation, **question)).load() for name in FORMATS
        }
        assert frames["chronik"].schema == frames["kafka"].schema
        theirs, ours = rows(frames["kafka"]), rows(frames["chronik"])
        assert ours == theirs, question
        assert ours, question
    everything = spark.read.format("chronik").options(**options(node, isolation, subscribe=mixed)).load().count()
    assert everything == (SETTLED_RECORDS - 60 if isolation == "read_committed" else SETTLED_RECORDS + 1)


def test_a_stream_has_the_same_rows(spark: SparkSession, node: NodeProcess, mixed: str, tmp_path: Path) -> None:
    found: dict[str, Rows] = {}
    for name in FORMATS:
        gathered: Rows = []

        def keep(batch: DataFrame, _: int, gathered: Rows = gathered) -> None:
            gathered.extend(rows(batch))

        chosen = options(
            node, "read_committed", subscribe=mixed, startingOffsets="earliest", maxOffsetsPerTrigger="100"
        )
        frame = spark.readStream.format(name).options(**chosen).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(STREAM_DEADLINE_S)
        found[name] = sorted(gathered, key=lambda row: (row[3], row[4]))
    assert found["chronik"] == found["kafka"] and found["kafka"]


def test_rows_that_either_writes_are_records_that_both_read(spark: SparkSession, node: NodeProcess, topic: str) -> None:
    with Cluster(node.bootstrap) as cluster:
        for name in FORMATS:
            create_topic(cluster, f"{topic}-{name}", partitions=PARTITIONS)
    frame = spark.range(30).selectExpr(
        f"CAST(id % {PARTITIONS} AS INT) AS partition",
        "CAST(id AS STRING) AS key",
        "CASE WHEN id % 5 > 0 THEN concat('value ', id) END AS value",
        "array(named_struct('key', 'n', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers",
    )
    read: dict[tuple[str, str], Rows] = {}
    for writer in FORMATS:
        sink = frame.write.format(writer).option("kafka.bootstrap.servers", node.bootstrap).mode("append")
        sink.option("topic", f"{topic}-{writer}").option("includeHeaders", "true").save()
        for reader in FORMATS:
            chosen = options(node, "read_committed", subscribe=f"{topic}-{writer}")
            back = spark.read.format(reader).options(**chosen).load().select("key", "value", "partition", "headers")
            read[writer, reader] = sorted((tuple(row) for row in back.collect()), key=lambda row: row[0])
    first = read["kafka", "kafka"]
    assert len(first) == 30 and all(found == first for found in read.values())
