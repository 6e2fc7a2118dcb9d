"""Rows a second through Spark: the source, the source into Parquet, and the two ways into a table."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from chronik.client import Cluster
from chronik.client.admin.configs import ResourceType, alter_configs
from chronik.pipeline.tables.keeper import KeeperSettings, TableKeeper, TopicProgress
from pipeline_speed.workload import Load

CEILING = "Parquet → noop"
ROWS = ("source → count", "source → Parquet", "fused ingest", "JSON ingest", CEILING)
"""What is measured, in the order of the report. The first two are measured with both sources."""

CHRONIK, KAFKA = "chronik", "kafka"


class Throughput:
    """Measures one topic; what it writes is under `folder` and removed after each measurement."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, sources: tuple[str, ...]) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        self.sources = sources

    def round(self, load: Load) -> dict[tuple[str, str], float]:
        """Seconds of each measurement, by row and source."""
        seconds: dict[tuple[str, str], float] = {}
        for source in self.sources:
            seconds[ROWS[0], source] = self._timed(partial(self._count, load, source))
        for source in self.sources:
            target = self._fresh(f"parquet-{source}")
            seconds[ROWS[1], source] = self._timed(partial(self._write, load, source, target))
        seconds[CEILING, CHRONIK] = self._timed(self._parquet_to_nothing)
        seconds[ROWS[2], CHRONIK] = self._ingest(load, "binary")
        seconds[ROWS[3], CHRONIK] = self._ingest(load, "json")
        shutil.rmtree(self.folder, ignore_errors=True)
        return seconds

    def _frame(self, load: Load, source: str) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribe": load.topic,
        }
        return self.spark.read.format(source).options(**options).load()

    def _count(self, load: Load, source: str) -> None:
        found = self._frame(load, source).count()
        if found != load.rows:
            raise RuntimeError(f"{source} read {found} rows of {load.topic}, which has {load.rows}")

    def _write(self, load: Load, source: str, target: Path) -> None:
        self._frame(load, source).write.parquet(str(target))

    def _parquet_to_nothing(self) -> None:
        self.spark.read.parquet(str(self.folder / f"parquet-{CHRONIK}")).write.format("noop").mode("overwrite").save()

    def _ingest(self, load: Load, value_format: str) -> float:
        with Cluster(self.bootstrap) as cluster:
            alter_configs(cluster, ResourceType.TOPIC, load.topic, {"table.value.format": value_format})
        landed: list[TopicProgress] = []
        settings = KeeperSettings(
            bootstrap=self.bootstrap, warehouse=self._fresh(value_format), topics=frozenset([load.topic])
        )
        keeper = TableKeeper(self.spark, settings, landed.append)
        try:
            seconds = self._timed(keeper.run_once)
        finally:
            keeper.close()
        rows = sum(progress.rows for progress in landed)
        if rows != load.rows:
            errors = [progress.error for progress in landed if progress.error]
            raise RuntimeError(f"{rows} rows of {load.topic} were landed, which has {load.rows}: {errors}")
        return seconds

    def _fresh(self, name: str) -> Path:
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        return target

    def _timed(self, work: Callable[[], object]) -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began
