"""Measures the pipeline on one node of this machine and writes docs/benchmarks-pipeline.md.

python -m pipeline_speed [--scale X] [--rounds N] [--freshness SECONDS] [--dry]
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import deltalake
import pyarrow
import pyspark

import chronik
from chronik.bench.machine import this_machine
from chronik.pipeline.spark_session import start_session
from pipeline_speed import report, waiting_times
from pipeline_speed.throughput import CHRONIK, KAFKA, Throughput
from pipeline_speed.workload import FULL, WARM_UP_ROWS, Load, fill
from side_by_side.systems import Chronik, Environment

ROOT = Path(__file__).resolve().parent.parent.parent
CONNECTOR = ROOT / ".build" / "spark" / "libs"
BUSY_LOAD = 1.0
ROUNDS = 3
FRESHNESS_S = 30.0
MASTER = "local[2]"


def main() -> int:
    parser = argparse.ArgumentParser(description="The pipeline beside Spark's own Kafka connector, on this machine.")
    parser.add_argument("--scale", type=float, default=1.0, help="how many rows: 1 is 2 M of 100 B and 0.6 M of 1 KiB")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each figure is measured")
    parser.add_argument("--freshness", type=float, default=FRESHNESS_S, help="seconds to watch records arrive for")
    parser.add_argument("--dry", action="store_true", help="print the report, leave the document alone")
    options = parser.parse_args()
    os.chdir(ROOT)
    began, load_before = time.monotonic(), os.getloadavg()[0]
    if load_before > BUSY_LOAD:
        print(f"beware: the load average is {load_before:.2f}, something else runs here; the figures will show it")
    jars = sorted(CONNECTOR.glob("*.jar"))
    loads = tuple(Load(load.value_bytes, max(int(load.rows * options.scale), 1_000)) for load in FULL)
    results = report.Results(loads)
    folder = ROOT / ".build" / "bench" / "pipeline"
    shutil.rmtree(folder, ignore_errors=True)
    system = Chronik(folder / "node", Environment(1, "os"))
    try:
        system.start()
        _throughput(system.bootstrap, folder / "written", loads, jars, options.rounds, results)
        print("── queries", flush=True)
        results.queries = waiting_times.query_times(system.bootstrap, folder / "queries")
        print("── freshness", flush=True)
        results.freshness = waiting_times.freshness(system.bootstrap, folder / "freshness", options.freshness)
    finally:
        system.stop()
        shutil.rmtree(folder, ignore_errors=True)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = report.section(results, date, _facts(jars, options, load_before))
    print(text)
    if not options.dry:
        document = ROOT / "docs" / "benchmarks-pipeline.md"
        report.write(document, text)
        print(f"wrote {document.relative_to(ROOT)}")
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0


def _throughput(
    bootstrap: str, folder: Path, loads: tuple[Load, ...], jars: list[Path], rounds: int, results: report.Results
) -> None:
    sources = (CHRONIK, KAFKA) if jars else (CHRONIK,)
    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    spark = start_session("pipeline speed", MASTER, settings)
    try:
        print("── warm-up", flush=True)
        warm_up = Load(64 + 8, WARM_UP_ROWS)
        fill(bootstrap, warm_up)
        Throughput(spark, bootstrap, folder, sources).round(warm_up)
        for load in loads:
            print(f"── {load.rows} rows of {load.label} are written", flush=True)
            fill(bootstrap, load)
            for number in range(rounds):
                # The order of the sources changes, so that neither always finds what the other one warmed.
                order = sources if number % 2 == 0 else sources[::-1]
                for (row, source), seconds in Throughput(spark, bootstrap, folder, order).round(load).items():
                    results.seconds.setdefault((load.value_bytes, row, source), []).append(seconds)
                    print(f"{load.label:6} {row:18} {source:8} {load.rows / seconds / 1e6:.2f} M rows/s", flush=True)
    finally:
        spark.stop()


def _facts(jars: list[Path], options: argparse.Namespace, load_before: float) -> list[str]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()[0]
    connector = next((jar.stem.rpartition("-")[2] for jar in jars if "sql-kafka" in jar.name), None)
    versions = [
        f"Chronik {chronik.__version__}",
        f"Spark {pyspark.__version__} ({MASTER})",
        f"its Kafka connector {connector}" if connector else "no Kafka connector (Maven could not be reached)",
        f"pyarrow {pyarrow.__version__}",
        f"deltalake {deltalake.__version__}",
        java,
    ]
    return [
        f"Machine: {str(this_machine()).rpartition(', load')[0]}; load average before the run: {load_before:.2f}",
        f"Versions: {', '.join(versions)}",
        f"Median of {options.rounds} round(s), lowest and highest in brackets; one node on the same machine, four "
        "partitions, batches of 16 KiB, read_committed, both sources with their defaults. Scale "
        f"{options.scale:g}.",
    ]


if __name__ == "__main__":
    sys.exit(main())
