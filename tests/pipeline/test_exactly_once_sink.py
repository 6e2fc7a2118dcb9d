"""`delivery=exactly_once`: the sink, its driver and its tasks are killed, and each record is in the topic once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StringType, StructField, StructType

from chronik.client import EARLIEST, Cluster, Consumer, ConsumerSettings, Isolation, TopicPartition
from chronik.client.admin.topics import create_topic
from chronik.client.offsets import end_offsets
from chronik.pipeline.exactly_once_writer import BATCH_ID, QUERY_ID
from chronik.pipeline.record_packer import PackedBatch, RecordPacker
from chronik.pipeline.sink_transaction import (
    MarkerMismatch,
    SinkFenced,
    SinkTransaction,
    already_written,
    transactional_id,
    write_once,
)
from chronik.pipeline.source import ChronikDataSource
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Compression
from harness.node_process import NodeProcess, three_nodes
from harness.waiting import eventually
from pipeline.killed_sink import QUERY_DEADLINE_S, copy_topic

DRIVER = Path(__file__).parent / "killed_sink.py"
DRIVER_DEADLINE_S = 180.0
TIMEOUT_MS = 60_000
VALUES = [b"%d" % n for n in range(30)]

SPECULATING = """
import json, sys
from chronik.pipeline.spark_session import start_session
settings = {"spark.speculation": "true", "spark.sql.codegen.wholeStage": "false"}
spark = start_session("speculating", "local[2]", settings)
rate = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=2, numPartitions=1)
rows = rate.load().selectExpr("string(value) AS value")
sink = rows.writeStream.format("chronik").options(**json.loads(sys.argv[1])).trigger(availableNow=True)
sink.start().awaitTermination()
"""


def committed(
    cluster: Cluster, topic: str, isolation: Isolation = Isolation.READ_COMMITTED, *, patience_s: float = 20.0
) -> list[bytes]:
    """All values that a reader sees, once no transaction is open."""
    places = [TopicPartition(topic, index) for index in range(len(cluster.topic(topic).partitions))]

    def settled() -> dict[TopicPartition, int] | None:
        ends = end_offsets(cluster, places)
        return ends if end_offsets(cluster, places, isolation=Isolation.READ_COMMITTED) == ends else None

    ends = eventually(settled, f"no transaction is open in {topic}", patience_s)
    values: list[bytes] = []
    with Consumer(cluster, dict.fromkeys(places, EARLIEST), ConsumerSettings(isolation=isolation)) as reader:
        while any(reader.position(place) < ends[place] for place in places):
            values += [record.value or b"" for record in reader.poll()]
    return sorted(values, key=int)


def packed(cluster: Cluster, topic: str, values: list[bytes], *, spread: int | None = None) -> list[PackedBatch]:
    packer = RecordPacker(cluster, Compression.LZ4)
    for n, value in enumerate(values):
        packer.add(topic, n % spread if spread else None, None, value)
    return packer.finish()


@pytest.fixture
def told(node: NodeProcess, topic: Callable[..., str], produce: Callable[..., None], tmp_path: Path) -> dict[str, Any]:
    """A source with 30 records, which take three micro-batches, and a target for them."""
    source, target = topic(partitions=2), topic(partitions=2)
    for partition in range(2):
        produce(source, VALUES[partition::2], partition=partition)
    return {"bootstrap": node.bootstrap, "source": source, "target": target, "folder": str(tmp_path)}


def finish(spark: SparkSession, told: dict[str, Any]) -> None:
    assert copy_topic(spark, told).awaitTermination(QUERY_DEADLINE_S)


# -- the transaction --------------------------------------------------------------------------------------------------


def test_a_micro_batch_that_runs_again_is_written_once_and_one_that_was_left_open_is_taken_back(
    cluster: Cluster, topic: Callable[..., str]
) -> None:
    name, query = topic(partitions=3), transactional_id(str(uuid.uuid4()))

    def write(batch_id: int, values: list[bytes]) -> bool:
        return write_once(
            SinkTransaction(cluster, query, TIMEOUT_MS), batch_id, packed(cluster, name, values), len(values)
        )

    assert write(0, [b"1", b"2"])
    assert not write(0, [b"1", b"2"])
    left_open = SinkTransaction(cluster, query, TIMEOUT_MS)
    left_open.begin()
    left_open.write(packed(cluster, name, [b"3"]))
    assert write(1, [b"3"])
    assert write(2, [])
    assert committed(cluster, name) == [b"1", b"2", b"3"]
    for batch_id, count, said in ((0, 2, "set back"), (4, 1, "another way"), (2, 7, "written before with 0 records")):
        with pytest.raises(MarkerMismatch, match=said):
            write(batch_id, [b"9"] * count)
    assert committed(cluster, name) == [b"1", b"2", b"3"]


def test_a_run_that_was_replaced_can_neither_write_nor_commit(cluster: Cluster, topic: Callable[..., str]) -> None:
    name, query = topic(), transactional_id(str(uuid.uuid4()))
    zombie = SinkTransaction(cluster, query, TIMEOUT_MS)
    zombie.begin()
    assert zombie.marker() is None
    zombie.write(packed(cluster, name, [b"1"]))
    successor = SinkTransaction(cluster, query, TIMEOUT_MS)
    successor.begin()
    with pytest.raises(SinkFenced, match="another run of this query has taken over"):
        zombie.commit(0, 1)
    with pytest.raises(SinkFenced):
        zombie.write(packed(cluster, name, [b"1"]))
    successor.write(packed(cluster, name, [b"2"]))
    successor.commit(0, 1)
    assert committed(cluster, name) == [b"2"]


def test_a_run_that_is_behind_does_not_disturb_its_successor(cluster: Cluster, topic: Callable[..., str]) -> None:
    name, query = topic(), transactional_id(str(uuid.uuid4()))
    successor = SinkTransaction(cluster, query, TIMEOUT_MS)
    for batch_id in range(2):
        assert write_once(successor, batch_id, packed(cluster, name, [b"%d" % batch_id]), 1)
    successor.begin()
    successor.write(packed(cluster, name, [b"2"]))
    zombie = SinkTransaction(cluster, query, TIMEOUT_MS)
    assert not write_once(zombie, 1, packed(cluster, name, [b"1"]), 1)
    with pytest.raises(MarkerMismatch, match="set back"):
        write_once(zombie, 0, packed(cluster, name, [b"0"]), 1)
    successor.commit(2, 1)
    assert committed(cluster, name) == [b"0", b"1", b"2"]


def test_what_cannot_be_written_is_taken_back_as_a_whole(cluster: Cluster, topic: Callable[..., str]) -> None:
    small, large = topic(max_message_bytes="1000"), topic()
    query = transactional_id(str(uuid.uuid4()))
    batches = packed(cluster, large, [b"1"]) + packed(cluster, small, [random.randbytes(2_000)])
    with pytest.raises(KafkaError) as refused:
        write_once(SinkTransaction(cluster, query, TIMEOUT_MS), 0, batches, 2)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert committed(cluster, large) == committed(cluster, small) == []


def test_attempts_of_a_task_that_spark_did_not_choose_leave_no_trace(
    cluster: Cluster, node: NodeProcess, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is retried, or run twice by speculation, hands over its rows twice; Spark commits one of the two."""
    name = topic(partitions=2)
    context = SimpleNamespace(getLocalProperty={QUERY_ID: str(uuid.uuid4()), BATCH_ID: "0"}.get)
    monkeypatch.setattr("chronik.pipeline.exactly_once_writer.TaskContext.get", lambda: context)
    where = {"kafka.bootstrap.servers": node.bootstrap, "topic": name, "delivery": "exactly_once"}
    schema = StructType([StructField("value", StringType())])
    rows = [pa.record_batch([pa.array([value.decode() for value in VALUES])], names=["value"])]

    def writer() -> DataSourceStreamWriter:
        return ChronikDataSource(where).streamWriter(schema, overwrite=False)

    attempts = [writer().write(iter(rows)) for _ in range(2)]  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="1 of 2 tasks"):
        writer().commit([attempts[0], None], 0)
    with pytest.raises(RuntimeError, match="micro-batch 1"):
        writer().commit([attempts[0]], 1)
    writer().commit([attempts[1]], 0)
    assert committed(cluster, name) == committed(cluster, name, Isolation.READ_UNCOMMITTED) == VALUES


# -- queries ----------------------------------------------------------------------------------------------------------


def test_a_sink_killed_before_and_after_its_commit_leaves_each_record_once(
    spark: SparkSession, cluster: Cluster, told: dict[str, Any]
) -> None:
    for point, batch in (("before-end", 1), ("after-end", 2)):
        killed = {**told, "kill": point, "batch": batch}
        with pytest.raises(PySparkException):
            copy_topic(spark, killed, sink="chronik_killed").awaitTermination(QUERY_DEADLINE_S)
    finish(spark, told)
    assert committed(cluster, told["target"]) == VALUES


def test_without_the_marker_a_kill_after_the_commit_does_repeat_records(
    spark: SparkSession, cluster: Cluster, told: dict[str, Any]
) -> None:
    """The control: it shows that the tests here can fail."""
    trusting = {**told, "kill": "after-end", "batch": 0, "trusting": True}
    with pytest.raises(PySparkException):
        copy_topic(spark, trusting, sink="chronik_killed").awaitTermination(QUERY_DEADLINE_S)
    with pytest.raises(PySparkException, match="no marker"):  # batch 0 went through twice, batch 1 is refused
        copy_topic(spark, trusting, sink="chronik_killed").awaitTermination(QUERY_DEADLINE_S)
    found = committed(cluster, told["target"])
    assert len(found) == 2 * len(set(found)) > 0


def test_an_application_with_speculation_is_refused_before_anything_is_written(
    cluster: Cluster, node: NodeProcess, topic: Callable[..., str], tmp_path: Path
) -> None:
    """It is a setting of an application, so this one has its own."""
    name = topic()
    options = {"kafka.bootstrap.servers": node.bootstrap, "topic": name, "delivery": "exactly_once"}
    ended = subprocess.run(
        [sys.executable, "-c", SPECULATING, json.dumps({**options, "checkpointLocation": str(tmp_path)})],
        capture_output=True,
        text=True,
        timeout=DRIVER_DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "delivery=exactly_once is refused in a Spark application with spark.speculation=true" in ended.stderr
    assert "Set spark.speculation=false for this application, or use delivery=at_least_once" in ended.stderr
    place = TopicPartition(name, 0)
    assert end_offsets(cluster, [place]) == {place: 0}


def run_driver(told: dict[str, Any], *, kill_after_s: float | None = None) -> int:
    """Run the driver until it ends, or kill it so long after its query has started; its exit code."""
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), json.dumps(told)],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        if kill_after_s is not None:
            started = Path(told["folder"]) / f"started-{process.pid}"
            eventually(lambda: started.exists() or process.poll() is not None, "a query starts", DRIVER_DEADLINE_S)
        return process.wait(DRIVER_DEADLINE_S if kill_after_s is None else kill_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the driver and its JVM
        return process.wait()


@pytest.mark.long
@pytest.mark.parametrize("point", ["before-end", "after-end"])
def test_a_driver_killed_around_its_commit_and_a_task_that_was_retried_leave_each_record_once(
    spark: SparkSession, cluster: Cluster, told: dict[str, Any], tmp_path: Path, point: str
) -> None:
    code = run_driver({**told, "kill": point, "batch": 1, "fail_once": True})
    assert code == -signal.SIGKILL
    assert (tmp_path / "failed").exists() and (tmp_path / f"died-{point}").exists()
    finish(spark, told)
    assert committed(cluster, told["target"]) == VALUES


@pytest.mark.long
def test_leaders_and_coordinators_killed_in_the_middle_of_a_transaction_leave_each_record_once(tmp_path: Path) -> None:
    nodes = three_nodes(tmp_path)
    query = transactional_id(str(uuid.uuid4()))
    try:
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.wait_ready()
        with Cluster([node.bootstrap for node in nodes]) as cluster:
            eventually(lambda: len(cluster.refresh().brokers) == 3, "three brokers are there", 60)
            create_topic(cluster, "target", partitions=6, replication_factor=3)
            transaction = SinkTransaction(cluster, query, TIMEOUT_MS)
            for batch_id, node in enumerate(nodes):
                values = VALUES[batch_id * 10 : batch_id * 10 + 10]
                transaction.begin()
                assert not already_written(query, batch_id, 10, transaction.marker())
                transaction.write(packed(cluster, "target", values[:5], spread=6))
                node.kill()
                transaction.write(packed(cluster, "target", values[5:], spread=6))
                transaction.commit(batch_id, 10)
                node.start()
            assert committed(cluster, "target", patience_s=60) == VALUES
    finally:
        for node in nodes:
            node.close()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_drivers_killed_at_random_moments_leave_each_record_once(
    spark: SparkSession, cluster: Cluster, told: dict[str, Any], produce: Callable[..., None]
) -> None:
    more = [b"%d" % n for n in range(len(VALUES), 300)]
    produce(told["source"], more, partition=1)
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    codes = [run_driver(told, kill_after_s=rng.uniform(0, 8)) for _ in range(5)]
    assert -signal.SIGKILL in codes and set(codes) <= {0, -signal.SIGKILL}, codes
    finish(spark, told)
    assert committed(cluster, told["target"]) == VALUES + more, f"seed {seed}"
