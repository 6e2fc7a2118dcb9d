"""Drivers that are killed, leaders that are killed: the table equals the log, each record once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from chronik.client import Cluster, Producer, ProducerSettings, TopicPartition
from chronik.client.admin.groups import delete_groups
from chronik.client.admin.topics import create_topic
from chronik.pipeline.tables.delta_table import TopicTable
from chronik.pipeline.tables.keeper import GROUP, KeeperSettings, TableKeeper
from chronik.pipeline.transforms import CHECKPOINTS
from harness.node_process import NodeProcess, three_nodes
from harness.waiting import eventually

DRIVER = Path(__file__).parent / "table_driver.py"
DRIVER_DEADLINE_S = 180.0
REAL_EXECUTORS = "local-cluster[2,1,1024]"


def run_driver(**told: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DRIVER), json.dumps(told)],
        capture_output=True,
        text=True,
        timeout=DRIVER_DEADLINE_S,
        check=False,
    )


def landed(warehouse: Path, topic: str) -> list[tuple[int, int, bytes]]:
    rows = DeltaTable(str(warehouse / topic)).to_pyarrow_table(columns=["partition", "offset", "value"]).to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


@pytest.fixture
def written(topic: Callable[..., str], produce: Callable[..., None]) -> tuple[str, list[tuple[int, int, bytes]]]:
    """A topic with 60 records, which take three rounds, and what it holds."""
    name = topic(partitions=2)
    rows = []
    for partition in range(2):
        values = [json.dumps({"n": n, "p": partition}).encode() for n in range(30)]
        produce(name, values, partition=partition)
        rows += [(partition, offset, value) for offset, value in enumerate(values)]
    return name, rows


def finish(spark: SparkSession, bootstrap: str, warehouse: Path, topic: str) -> None:
    settings = KeeperSettings(bootstrap=bootstrap, warehouse=warehouse, topics=frozenset([topic]))
    keeper = TableKeeper(spark, settings, lambda _: None)
    assert keeper.run_once()
    keeper.close()


def test_a_driver_killed_before_and_after_a_commit_leaves_a_table_that_equals_the_log(
    spark: SparkSession, node: NodeProcess, warehouse: Path, written: tuple[str, list[tuple[int, int, bytes]]]
) -> None:
    """The second driver has executors in processes of their own, which read and land all that is left."""
    name, rows = written
    told = {"bootstrap": node.bootstrap, "warehouse": str(warehouse), "topic": name}
    assert run_driver(**told, crash="before-commit").returncode == -signal.SIGKILL
    assert len(landed(warehouse, name)) == 20
    ended = run_driver(**told, crash="after-commit", master=REAL_EXECUTORS, count=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    report = json.loads(ended.stdout.splitlines()[0])
    assert report["count"] == len(rows) and report["processes"] >= 2
    assert landed(warehouse, name) == rows, "the executors have landed the rest"
    finish(spark, node.bootstrap, warehouse, name)
    assert landed(warehouse, name) == rows


@pytest.mark.long
def test_a_driver_killed_in_mid_write_leaves_files_that_the_table_does_not_have(
    spark: SparkSession, node: NodeProcess, warehouse: Path, written: tuple[str, list[tuple[int, int, bytes]]]
) -> None:
    name, rows = written
    told = {"bootstrap": node.bootstrap, "warehouse": str(warehouse), "topic": name}
    assert run_driver(**told, crash="mid-write").returncode == -signal.SIGKILL
    assert 0 < len(landed(warehouse, name)) < len(rows)
    in_table = {Path(uri).name for uri in DeltaTable(str(warehouse / name)).file_uris()}
    assert {file.name for file in (warehouse / name).glob("_day=*/*.parquet")} > in_table, "half a file is left"
    finish(spark, node.bootstrap, warehouse, name)
    assert landed(warehouse, name) == rows


@pytest.mark.long
def test_an_executor_killed_in_mid_write_is_replaced_and_its_task_done_once(
    node: NodeProcess, warehouse: Path, written: tuple[str, list[tuple[int, int, bytes]]]
) -> None:
    name, rows = written
    told = {"bootstrap": node.bootstrap, "warehouse": str(warehouse), "topic": name}
    ended = run_driver(**told, crash="executor-mid-write", master=REAL_EXECUTORS)
    assert ended.returncode == 0, ended.stderr
    assert (warehouse / "killed").exists()
    assert landed(warehouse, name) == rows


@pytest.mark.long
def test_a_kill_after_which_every_other_note_of_the_position_is_deleted_costs_nothing(
    spark: SparkSession,
    node: NodeProcess,
    cluster: Cluster,
    warehouse: Path,
    written: tuple[str, list[tuple[int, int, bytes]]],
) -> None:
    """Checkpoints of Spark's and of Delta's, and the consumer group: only the log of the table is believed."""
    name, rows = written
    told = {"bootstrap": node.bootstrap, "warehouse": str(warehouse), "topic": name}
    assert run_driver(**told, crash="after-commit").returncode == -signal.SIGKILL
    DeltaTable(str(warehouse / name)).create_checkpoint()
    log = warehouse / name / "_delta_log"
    for checkpoint in [log / "_last_checkpoint", *log.glob("*.checkpoint*.parquet")]:
        checkpoint.unlink()
    assert not (warehouse / CHECKPOINTS).exists(), "the tables have no checkpoint of Spark's that could be deleted"
    assert delete_groups(cluster, [GROUP]) == {GROUP: None}
    finish(spark, node.bootstrap, warehouse, name)
    assert landed(warehouse, name) == rows


@pytest.mark.long
def test_without_the_check_a_kill_after_a_commit_does_repeat_records(
    spark: SparkSession,
    node: NodeProcess,
    warehouse: Path,
    written: tuple[str, list[tuple[int, int, bytes]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: a driver that believes the consumer group instead of the table. It shows that the test can fail."""
    name, rows = written
    told = {"bootstrap": node.bootstrap, "warehouse": str(warehouse), "topic": name, "trusting": True}
    assert run_driver(**told, crash="after-commit").returncode == -signal.SIGKILL
    monkeypatch.syspath_prepend(str(DRIVER.parent))
    import table_driver

    monkeypatch.setattr(TopicTable, "stored", TopicTable.stored)
    table_driver.trust_the_group(node.bootstrap)
    finish(spark, node.bootstrap, warehouse, name)
    found = landed(warehouse, name)
    assert set(found) == set(rows) and len(found) > len(rows)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    nodes = three_nodes(tmp_path / "three")
    try:
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.wait_ready()
        yield nodes
    finally:
        for node in nodes:
            node.close()


def test_a_leader_killed_in_the_middle_of_a_read_costs_no_record(
    spark: SparkSession, three: list[NodeProcess], tmp_path: Path, warehouse: Path
) -> None:
    count = 6_000
    bootstrap = ",".join(node.bootstrap for node in three)
    place = TopicPartition("survives", 0)
    with Cluster(bootstrap) as cluster:
        eventually(lambda: len(cluster.refresh().brokers) == 3, "three brokers are there", 60)
        create_topic(cluster, place.topic, partitions=1, replication_factor=3, configs={"table.value.format": "binary"})
        with Producer(cluster, ProducerSettings(batch_bytes=16 * 1024, idempotent=True)) as producer:
            for n in range(count):
                producer.send(place.topic, b"%d " % n + b"x" * 1000, partition=0)
        leader = cluster.leader(place).node_id
    reading, killed = tmp_path / "reading", tmp_path / "killed"

    def pause_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in a worker, which has none of the tests' modules."""
        for batch in batches:
            if not reading.exists():
                reading.touch()
                deadline = time.monotonic() + 60
                while not killed.exists() and time.monotonic() < deadline:
                    threading.Event().wait(0.02)
            yield batch

    reader = spark.read.format("chronik").option("kafka.bootstrap.servers", bootstrap).option("subscribe", place.topic)
    frame = reader.option("kafka.max.partition.fetch.bytes", "65536").load()
    found: list[int] = []
    rows = frame.select("offset").mapInArrow(pause_once, "offset bigint")
    thread = threading.Thread(target=lambda: found.extend(row.offset for row in rows.collect()))
    thread.start()
    eventually(reading.exists, "the read is under way", 120)
    next(node for node in three if node.node_id == leader).kill()
    killed.touch()
    thread.join(180)
    assert found == list(range(count))
    finish(spark, bootstrap, warehouse, place.topic)
    assert [offset for _, offset, _ in landed(warehouse, place.topic)] == list(range(count))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_drivers_killed_at_random_moments_leave_a_table_that_equals_the_log(
    spark: SparkSession, node: NodeProcess, warehouse: Path, written: tuple[str, list[tuple[int, int, bytes]]]
) -> None:
    name, rows = written
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for attempt in range(8):
        told = {"bootstrap": node.bootstrap, "warehouse": str(warehouse), "topic": name, "offsets_per_round": 3}
        told["master"] = REAL_EXECUTORS if attempt % 2 else "local[1]"
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(told)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(rng.uniform(4, 20))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the driver, its JVM, executors and Python workers
            process.wait()
    finish(spark, node.bootstrap, warehouse, name)
    assert landed(warehouse, name) == rows, f"seed {seed}"
