"""A driver that keeps one table, in a process of its own, for tests that kill it.

Run as `python table_driver.py '{"bootstrap": …, "warehouse": …, "topic": …}'`. With `crash` it kills itself (SIGKILL):
`before-commit` just before the second Delta commit, `after-commit` just after it and before the consumer group hears
of it, `mid-write` when a task of the second round has written half of a file. With `executor-mid-write` it is the
executor of that task that is killed, once, and the driver goes on. With `trusting` it believes the consumer group
instead of the table, as a driver without the check would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from chronik.client import Cluster
from chronik.client.admin.groups import committed_offsets
from chronik.pipeline.spark_session import start_session
from chronik.pipeline.tables import keeper as keeper_module
from chronik.pipeline.tables.delta_table import TopicTable
from chronik.pipeline.tables.keeper import GROUP, KeeperSettings, TableKeeper

OFFSETS_PER_ROUND = 20
ON_EXECUTORS = {
    "spark.python.daemon.module": "pyspark.daemon",  # as on a cluster, whose executors know of no daemon of ours
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
"""No task starts before all executors are there, however long they take."""

CRASH_AT_COMMIT = 2


def plant_crash(where: str, warehouse: Path) -> None:
    commit = TopicTable.commit
    calls = 0

    def crashing(self: TopicTable, *arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == CRASH_AT_COMMIT and where == "before-commit":
            os.kill(os.getpid(), signal.SIGKILL)
        version = commit(self, *arguments)
        if calls == CRASH_AT_COMMIT and where == "after-commit":
            os.kill(os.getpid(), signal.SIGKILL)
        if calls == CRASH_AT_COMMIT - 1 and where.endswith("mid-write"):
            driver = None if where.startswith("executor") else os.getpid()
            keeper_module.run_task = dying_task(driver, str(warehouse / "killed"))
        return version

    TopicTable.commit = crashing  # type: ignore[method-assign,assignment]


def dying_task(driver: int | None, once: str) -> Callable[[bytes], bytes]:
    """A task that writes half of its rows and then kills the driver, or its own executor; only the first of all does.

    It runs in workers, which have none of the tests' modules.
    """

    def run(spec: bytes) -> bytes:
        import pyarrow.parquet as pq

        from chronik.pipeline.tables.ingest_task import run_task

        write = pq.ParquetWriter.write_batch

        def write_half_and_kill(self: Any, batch: Any) -> None:
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                write(self, batch)
                return
            write(self, batch.slice(0, batch.num_rows // 2))
            with open(f"/proc/{os.getppid()}/stat") as stat:  # the parent is Spark's daemon, whose parent is the JVM
                jvm = int(stat.read().rpartition(")")[2].split()[1])
            os.kill(jvm if driver is None else driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        pq.ParquetWriter.write_batch = write_half_and_kill
        try:
            return run_task(spec)
        finally:
            pq.ParquetWriter.write_batch = write

    return run


def trust_the_group(bootstrap: str) -> None:
    """Where to go on is asked of the consumer group, and the check that a table is still there is gone."""

    def stored(self: TopicTable, partition: int) -> int | None:
        with Cluster(bootstrap) as cluster:
            found = {place: at.offset for place, at in committed_offsets(cluster, GROUP).items()}
        return found.get((self.settings.topic, partition))  # type: ignore[call-overload,no-any-return]

    TopicTable.stored = stored  # type: ignore[method-assign]


def with_process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many rows a worker got, and which worker it is."""
    for batch in batches:
        yield pa.record_batch(
            {"process": pa.array([os.getpid()], pa.int32()), "rows": pa.array([batch.num_rows], pa.int32())}
        )


def main() -> None:
    told = json.loads(sys.argv[1])
    if told.get("crash"):
        plant_crash(told["crash"], Path(told["warehouse"]))
    if told.get("trusting"):
        trust_the_group(told["bootstrap"])
    master = told.get("master", "local[1]")
    settings = ON_EXECUTORS if master.startswith("local-cluster") else {}
    small = {"spark.sql.codegen.wholeStage": "false"}  # compiling small jobs takes longer than running them
    path = {"spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    spark = start_session("table driver", master, {**settings, **small, **path})
    if told.get("count"):
        reader = spark.read.format("chronik").option("kafka.bootstrap.servers", told["bootstrap"])
        frame = reader.option("subscribe", told["topic"]).option("minPartitions", "2").load()
        rows = frame.select("offset").mapInArrow(with_process, "process int, rows int").collect()
        print(
            json.dumps({"count": sum(row.rows for row in rows), "processes": len({row.process for row in rows})}),
            flush=True,
        )
    keeper = TableKeeper(
        spark,
        KeeperSettings(
            bootstrap=told["bootstrap"],
            warehouse=Path(told["warehouse"]),
            topics=frozenset([told["topic"]]),
            max_offsets_per_trigger=told.get("offsets_per_round", OFFSETS_PER_ROUND),
        ),
        lambda progress: print(progress, flush=True),
    )
    succeeded = keeper.run_once()
    spark.stop()
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
