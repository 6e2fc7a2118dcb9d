"""`readStream` and `writeStream` with format("chronik")."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chronik.client import Cluster, TopicPartition
from chronik.client.admin.topics import create_partitions, delete_records
from chronik.pipeline.sql.sql_errors import explain
from harness.node_process import NodeProcess
from harness.waiting import eventually

QUERY_DEADLINE_S = 90.0


class Streams:
    """Streams of one test, read into memory; all are stopped at its end."""

    def __init__(self, spark: SparkSession, bootstrap: str, checkpoint: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.checkpoint = checkpoint
        self.batches: list[list[tuple[int, int, str]]] = []
        self.queries: list[StreamingQuery] = []

    def read(self, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("chronik").option("kafka.bootstrap.servers", self.bootstrap)
        for name, value in {"startingOffsets": "earliest", **options}.items():
            reader = reader.option(name, value)
        return reader.load()

    def gather(self, frame: DataFrame, *, available_now: bool = True) -> StreamingQuery:
        def keep(batch: DataFrame, _: int) -> None:
            rows = batch.selectExpr("partition", "offset", "CAST(value AS STRING) value").collect()
            self.batches.append(sorted((row.partition, row.offset, row.value) for row in rows))

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        query = writer.start()
        self.queries.append(query)
        if available_now:
            query.awaitTermination(QUERY_DEADLINE_S)
        return query

    @property
    def rows(self) -> list[tuple[int, int, str]]:
        return sorted(row for batch in self.batches for row in batch)


@pytest.fixture
def streams(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, node.bootstrap, tmp_path / "checkpoint")
    yield made
    for query in made.queries:
        query.stop()


def test_a_limit_cuts_a_backlog_into_batches_and_a_restart_goes_on_where_it_ended(
    streams: Streams, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    name = topic(partitions=2)
    produce(name, [f"a{n}".encode() for n in range(30)], partition=0)
    produce(name, [f"b{n}".encode() for n in range(10)], partition=1)
    frame = streams.read(subscribe=name, maxOffsetsPerTrigger="20")
    query = streams.gather(frame)
    assert [len(batch) for batch in streams.batches] == [20, 20]
    assert len(set(streams.rows)) == 40
    latest = json.loads(query.lastProgress["sources"][0]["latestOffset"] or "null")
    assert latest == {name: {"0": 30, "1": 10}}

    produce(name, [b"later"], partition=1)
    streams.gather(frame)
    assert streams.batches[2:] == [[(1, 10, "later")]]


def test_partitions_that_are_added_while_a_query_runs_are_read_from_their_beginning(
    streams: Streams, topic: Callable[..., str], produce: Callable[..., None], cluster: Cluster
) -> None:
    name = topic()
    produce(name, [b"old"])
    streams.gather(streams.read(subscribe=name), available_now=False)
    eventually(lambda: (0, 0, "old") in streams.rows, "the first record is read", QUERY_DEADLINE_S)
    create_partitions(cluster, name, 2)
    produce(name, [b"new"], partition=1)
    eventually(lambda: (1, 0, "new") in streams.rows, "the new partition is read", QUERY_DEADLINE_S)
    assert streams.rows == [(0, 0, "old"), (1, 0, "new")]


def test_offsets_that_went_away_between_runs_stop_the_query_or_leave_a_gap(
    streams: Streams, topic: Callable[..., str], produce: Callable[..., None], cluster: Cluster
) -> None:
    name = topic()
    produce(name, [b"0", b"1"])
    streams.gather(streams.read(subscribe=name))
    produce(name, [b"2", b"3", b"4"])
    delete_records(cluster, {TopicPartition(name, 0): 4})
    with pytest.raises(PySparkException, match=f"offsets 2 to 3 of {name}-0"):
        streams.gather(streams.read(subscribe=name))
    streams.gather(streams.read(subscribe=name, failOnDataLoss="false"))
    assert streams.rows == [(0, 0, "0"), (0, 1, "1"), (0, 4, "4")]


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({"endingOffsets": "latest"}, None, "endingoffsets is for batch reads"),
        ({}, "offset string", "column offset of a topic is bigint, not string"),
    ],
)
def test_what_a_stream_cannot_do_is_said(
    spark: SparkSession,
    node: NodeProcess,
    streams: Streams,
    topic: Callable[..., str],
    options: dict[str, str],
    schema: str | None,
    said: str,
) -> None:
    where = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic(), **options}
    reader = spark.readStream.format("chronik").options(**where)
    frame = (reader.schema(schema) if schema else reader).load()
    with pytest.raises(PySparkException) as raised:
        streams.gather(frame)
    assert said in explain(raised.value)


def test_rows_become_records_with_key_headers_partition_and_topic_of_their_own(
    spark: SparkSession, node: NodeProcess, topic: Callable[..., str]
) -> None:
    one, two = topic(partitions=3), topic()
    rows = spark.sql(
        f"SELECT '{one}' topic, 2 partition, 'k' key, 'v1' value,"
        " array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) headers"
        f" UNION ALL SELECT '{two}', 0, NULL, NULL, NULL"
    )
    where = {"kafka.bootstrap.servers": node.bootstrap}
    rows.write.format("chronik").options(**where).option("kafka.compression.type", "lz4").mode("append").save()
    back = spark.read.format("chronik").options(**where).option("subscribe", f"{one},{two}")
    found = {row.topic: row for row in back.option("includeHeaders", "true").load().collect()}
    assert (found[one].partition, found[one].key, found[one].value) == (2, b"k", b"v1")
    assert [(h.key, h.value) for h in found[one].headers] == [("h", b"x")]
    assert (found[two].key, found[two].value, found[two].headers) == (None, None, None)

    with pytest.raises(PySparkException, match="column named value is needed"):
        rows.select("topic").write.format("chronik").options(**where).mode("append").save()
    nameless = "array(named_struct('key', CAST(NULL AS STRING), 'value', CAST('x' AS BINARY))) AS headers"
    with pytest.raises(PySparkException, match="a header without a key"):
        rows.selectExpr("topic", "value", nameless).write.format("chronik").options(**where).mode("append").save()
    with pytest.raises(PySparkException, match="exactly_once is for streams"):
        rows.write.format("chronik").options(**where).option("delivery", "exactly_once").mode("append").save()
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows.write.format("chronik").options(**where).mode("overwrite").save()


def test_a_stream_runs_from_topic_to_topic(
    spark: SparkSession,
    node: NodeProcess,
    streams: Streams,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    source, target = topic(), topic()
    produce(source, [b"a", b"b", b"c"])
    upper = streams.read(subscribe=source).selectExpr("upper(CAST(value AS STRING)) AS value")
    query = (
        upper.writeStream.format("chronik")
        .option("kafka.bootstrap.servers", node.bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "topic-to-topic"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_DEADLINE_S)
    back = spark.read.format("chronik").option("kafka.bootstrap.servers", node.bootstrap).option("subscribe", target)
    assert sorted(row.value for row in back.load().collect()) == [b"A", b"B", b"C"]
