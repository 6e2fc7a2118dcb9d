"""A driver that keeps one table, in a process of its own, for tests that kill it.

Run as `python table_driver.py '{"bootstrap": …, "warehouse": …, "topic": …}'`. With `crash` it kills itself (SIGKILL):
`before-commit` just before the second Delta commit, `after-commit` just after it and before the consumer group hears
of it. With `trusting` it believes the consumer group instead of the table, as a driver without the check would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from chronik.client import Cluster
from chronik.client.admin.groups import committed_offsets
from chronik.pipeline.spark_session import session_settings, start_session
from chronik.pipeline.tables.delta_table import TopicTable
from chronik.pipeline.tables.keeper import GROUP, KeeperSettings, TableKeeper

OFFSETS_PER_ROUND = 20
CRASH_AT_COMMIT = 2


def plant_crash(where: str) -> None:
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
        return version

    TopicTable.commit = crashing  # type: ignore[method-assign,assignment]


def trust_the_group(bootstrap: str) -> None:
    """Where to go on is asked of the consumer group, and the check that a table is still there is gone."""

    def stored(self: TopicTable, partition: int) -> int | None:
        with Cluster(bootstrap) as cluster:
            found = {place: at.offset for place, at in committed_offsets(cluster, GROUP).items()}
        return found.get((self.settings.topic, partition))  # type: ignore[call-overload,no-any-return]

    TopicTable.stored = stored  # type: ignore[method-assign]


def main() -> None:
    told = json.loads(sys.argv[1])
    if told.get("crash"):
        plant_crash(told["crash"])
    if told.get("trusting"):
        trust_the_group(told["bootstrap"])
    master = told.get("master", "local[1]")
    settings = {"spark.python.daemon.module": "pyspark.daemon"} if master.startswith("local-cluster") else {}
    quiet = session_settings("local[1]")["spark.driver.extraJavaOptions"]
    settings["spark.driver.extraJavaOptions"] = f"{quiet} -XX:TieredStopAtLevel=1"
    settings["spark.executorEnv.PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    spark = start_session("table driver", master, settings)
    keeper = TableKeeper(
        spark,
        KeeperSettings(
            bootstrap=told["bootstrap"],
            warehouse=Path(told["warehouse"]),
            topics=frozenset([told["topic"]]),
            max_offsets_per_trigger=OFFSETS_PER_ROUND,
        ),
        lambda progress: print(progress, flush=True),
    )
    succeeded = keeper.run_once()
    if told.get("count"):
        reader = spark.read.format("chronik").option("kafka.bootstrap.servers", told["bootstrap"])
        frame = reader.option("subscribe", told["topic"]).option("minPartitions", "4").load()
        hosts = frame.rdd.mapPartitions(lambda rows: [(os.getpid(), sum(1 for _ in rows))]).collect()
        print(json.dumps({"count": sum(count for _, count in hosts), "processes": len({pid for pid, _ in hosts})}))
    spark.stop()
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
