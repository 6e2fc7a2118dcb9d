"""One Spark session, one node and one client for all tests of the pipeline; topics and warehouses are per test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chronik.client import Cluster, Producer, ProducerSettings
from chronik.client.admin.topics import create_topic
from chronik.pipeline.spark_session import start_session
from harness.node_process import NodeProcess

FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

TEST_DEADLINE_S = 400
"""Starting a JVM takes seconds on a quiet machine and a minute on a busy one; a hang is told from that by this."""

FOR_EVER = "-1"
"""Tests write records of 1970, which the seven days of retention would take when the node looks, after five minutes."""

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {"offsets.topic.num.partitions": "1", "log.retention.ms": FOR_EVER, "log.cleaner.backoff.ms": "500"}
    running = NodeProcess(tmp_path_factory.mktemp("node"), settings=settings)
    try:
        yield running.start()
    finally:
        running.close()


@pytest.fixture(scope="session", autouse=True)
def fast_jvms() -> Iterator[None]:
    """For every JVM that a test starts, also through others: launchers, drivers, executors, engines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", FAST_JVM)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "")
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(
        "pipeline tests",
        "local[2]",
        {
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def cluster(node: NodeProcess) -> Iterator[Cluster]:
    with Cluster(node.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(cluster: Cluster) -> Callable[..., str]:
    """Makes a topic of its own and returns its name."""

    def make(partitions: int = 1, name: str = "t", **configs: str) -> str:
        full = f"{name}{next(_numbers)}"
        create_topic(cluster, full, partitions=partitions, configs={k.replace("_", "."): v for k, v in configs.items()})
        return full

    return make


@pytest.fixture
def produce(cluster: Cluster) -> Callable[..., None]:
    """Writes values to a partition of a topic."""

    def write(
        topic: str,
        values: list[bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        timestamp_ms: int = 1_000,
    ) -> None:
        with Producer(cluster, ProducerSettings()) as producer:
            for value in values:
                producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms)

    return write


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"
