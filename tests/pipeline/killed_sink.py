"""A sink of format("chronik") that is killed at a chosen point, and a driver around it for tests that kill all of it.

Run as `python killed_sink.py '{"bootstrap": …, "source": …, "target": …, "folder": …}'` it copies a topic exactly once.
With `kill` it dies in micro-batch `batch`: `before-end` when records and marker are written and the transaction is
open, `after-end` when it is committed and Spark does not know. With `trusting` it does not look at the marker.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery

from chronik.pipeline.source import ChronikDataSource
from chronik.pipeline.spark_session import session_settings, start_session

OFFSETS_PER_BATCH = 10
QUERY_DEADLINE_S = 90.0


def killed_source(told: dict[str, Any]) -> type[DataSource]:
    """The class is local so that it travels to Python workers, which have none of the tests' modules, by value."""

    class KilledSource(ChronikDataSource):
        @classmethod
        def name(cls) -> str:
            return "chronik_killed"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            from chronik.pipeline.exactly_once_writer import ExactlyOnceWriter
            from chronik.pipeline.sink_transaction import SinkTransaction, transactional_id
            from chronik.pipeline.source_options import write_options

            class KilledTransaction(SinkTransaction):
                batch_id = -1

                def marker(self, *, stable: bool = True) -> Any:
                    return None if told.get("trusting") else super().marker(stable=stable)

                def commit(self, batch_id: int, rows: int) -> None:
                    self.batch_id = batch_id
                    super().commit(batch_id, rows)

                def _end(self, *, committed: bool) -> None:
                    self._die("before-end")
                    super()._end(committed=committed)
                    self._die("after-end")

                def _die(self, point: str) -> None:
                    died = Path(told["folder"]) / f"died-{point}"
                    if told.get("kill") != point or self.batch_id != told["batch"] or died.exists():
                        return
                    died.touch()
                    if told.get("group"):
                        os.killpg(told["group"], signal.SIGKILL)  # the driver and its JVM
                    os.kill(os.getpid(), signal.SIGKILL)

            class KilledWriter(ExactlyOnceWriter):
                def transaction(self, cluster: Any, query_id: str) -> SinkTransaction:
                    return KilledTransaction(cluster, transactional_id(query_id), self.options.transaction_timeout_ms)

            return KilledWriter(write_options(self.options), schema)

    return KilledSource


def failing_once(folder: Path) -> Any:
    """A step that fails in the first attempt of a task, after a part of its rows has gone through."""
    failed = folder / "failed"

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if not failed.exists():
                failed.touch()
                raise RuntimeError("this task fails once")
            yield batch.slice(half)

    return step


def read_source(spark: SparkSession, told: dict[str, Any]) -> DataFrame:
    return (
        spark.readStream.format("chronik")
        .option("kafka.bootstrap.servers", told["bootstrap"])
        .option("subscribe", told["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(OFFSETS_PER_BATCH))
        .option("minPartitions", "2")
        .load()
        .select("value")
    )


def copy_topic(spark: SparkSession, told: dict[str, Any], *, sink: str = "chronik") -> StreamingQuery:
    """Start copying the source to the target, exactly once, up to where the source ends now."""
    frame = read_source(spark, told)
    if told.get("fail_once"):
        frame = frame.mapInArrow(failing_once(Path(told["folder"])), "value binary")
    if sink != "chronik":
        spark.dataSource.register(killed_source(told))
    return (
        frame.writeStream.format(sink)
        .option("kafka.bootstrap.servers", told["bootstrap"])
        .option("topic", told["target"])
        .option("delivery", "exactly_once")
        .option("checkpointLocation", str(Path(told["folder"]) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    told = json.loads(sys.argv[1])
    told["group"] = os.getpgrp()
    quiet = session_settings("local[2]")["spark.driver.extraJavaOptions"]
    # In local mode a task is tried again only if the master says how often.
    spark = start_session(
        "killed sink", "local[2,3]", {"spark.driver.extraJavaOptions": f"{quiet} -XX:TieredStopAtLevel=1"}
    )
    query = copy_topic(spark, told, sink="chronik_killed")
    (Path(told["folder"]) / f"started-{os.getpid()}").touch()
    query.awaitTermination(QUERY_DEADLINE_S)
    spark.stop()


if __name__ == "__main__":
    main()
