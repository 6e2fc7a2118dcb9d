"""Runs the rows: environment by environment, round by round, both systems in turn, and writes the report after each.

python -m side_by_side [--quick] [--rounds N] [--only ROW …] [--fresh]
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import confluent_kafka

import chronik
from chronik.bench.fleet import WorkerFailed
from chronik.bench.machine import this_machine
from chronik.client.errors import ClientError
from chronik.protocol.errors import KafkaError
from side_by_side import java_tools, measures, report
from side_by_side.java_tools import ToolFailed
from side_by_side.ledger import Entry, Ledger
from side_by_side.rows import ENVIRONMENTS, QUICK_SCALE, ROWS, Row
from side_by_side.systems import Chronik, Environment, Kafka, System, settle

ROOT = Path(__file__).resolve().parent.parent.parent
BUSY_LOAD = 1.0
COLD_ROW = "start"
FAILURES = (ToolFailed, WorkerFailed, KafkaError, ClientError, ValueError, OSError)
FULL_ROUNDS, QUICK_ROUNDS = 3, 1
MINUTES_MAX = 75.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Chronik beside Apache Kafka on this machine.")
    parser.add_argument("--quick", action="store_true", help="the core rows only, one round, about five minutes")
    parser.add_argument("--rounds", type=int, default=None, help="how often each row is measured")
    parser.add_argument("--only", nargs="*", default=None, metavar="ROW", help="only these rows")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run measured")
    parser.add_argument("--scale", type=float, default=None, help="how long each row is: 1 is about 15 s")
    parser.add_argument("--minutes", type=float, default=MINUTES_MAX, help="after so long no more rows are begun")
    options = parser.parse_args()
    os.chdir(ROOT)
    unknown = set(options.only or ()) - {row.key for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(row.key for row in ROWS)}")
    rows = [row for row in ROWS if (row.key in options.only if options.only else row.quick or not options.quick)]
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    scale = options.scale or (QUICK_SCALE if options.quick else 1.0)
    folder = ROOT / ".build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser.error("another run measures in this folder; let it end first, two at once would measure each other")
    path = folder / f"{'quick' if options.quick else 'full'}-{_code_state()}.jsonl"
    if options.fresh:
        path.unlink(missing_ok=True)
    ledger = Ledger(path)
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        print(f"beware: the load average is {load:.2f}, something else runs here; the figures will show it")
    kinds: list[type[System]] = [Kafka, Chronik] if java_tools.available() else [Chronik]
    if Kafka not in kinds:
        print("Apache Kafka's artifacts are not here (Maven could not be reached); measuring Chronik alone")
    deadline = time.monotonic() + options.minutes * 60
    for environment in ENVIRONMENTS:
        for number in range(1, rounds + 1):
            for kind in kinds if number % 2 else kinds[::-1]:
                wanted = [row for row in rows if row.environment == environment and number <= (row.rounds or rounds)]
                left = [row for row in wanted if not ledger.has(row.key, kind.name, number)]
                if left and time.monotonic() < deadline:
                    _measure(kind, environment, number, left, ledger, scale, deadline)
    if time.monotonic() > deadline:
        print(f"{options.minutes:g} minutes are over; the same command goes on with the rows that are left")
    facts = _facts(options, rounds, Kafka in kinds)
    document = ROOT / "docs" / "benchmarks.md"
    report.write(document, document.with_suffix(".svg"), ledger, facts)
    print(f"wrote {document.relative_to(ROOT)} and {document.with_suffix('.svg').relative_to(ROOT)}")
    failed = [f"{entry.system}: {entry.row}: {entry.failure}" for entry in ledger if entry.failure]
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    lock.close()
    return 1 if failed else 0


def _measure(
    kind: type[System],
    environment: Environment,
    number: int,
    rows: list[Row],
    ledger: Ledger,
    scale: float,
    deadline: float,
) -> None:
    """Start a system, measure what is left of a round, stop it."""
    system = kind(ROOT / ".build" / "bench" / "data", environment)
    settle()
    print(f"── {kind.name}, {environment.name}, round {number}", flush=True)
    try:
        system.start()
        warm = False
        for row in rows:
            if time.monotonic() > deadline:
                break
            if row.key != COLD_ROW and not warm:
                measures.warm_up(system, scale)
                warm = True
            began = time.monotonic()
            entry = Entry(row=row.key, system=kind.name, round=number, load_1m=os.getloadavg()[0])
            entry.at = datetime.datetime.now(datetime.UTC).strftime("%H:%M")
            try:
                entry.figures = row.measure(system, scale)
                shown = ", ".join(f"{figure.key} {entry.figures.get(figure.key, 0):.4g}" for figure in row.figures)
            except FAILURES as error:
                entry.failure = shown = f"{type(error).__name__}: {error}"
            ledger.add(entry)
            print(f"{kind.name:8} {row.key:24} {shown} ({time.monotonic() - began:.0f} s)", flush=True)
    except (RuntimeError, *FAILURES) as error:
        for row in rows:
            if not ledger.has(row.key, kind.name, number):
                ledger.add(Entry(row=row.key, system=kind.name, round=number, failure=str(error)))
        print(f"{kind.name}: {error}", file=sys.stderr, flush=True)
    finally:
        system.stop()


def _facts(options: argparse.Namespace, rounds: int, with_kafka: bool) -> report.Facts:
    versions = [f"Chronik {chronik.__version__} ({_code_state()})", f"Python {sys.version.split()[0]}"]
    notes: list[str] = []
    if with_kafka:
        java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
        versions += [f"Apache Kafka {java_tools.version()} (KRaft, heap 1 GB)", java.splitlines()[0]]
    else:
        notes.append("Apache Kafka could not be fetched here, so this is Chronik alone.")
    versions.append(f"librdkafka {confluent_kafka.libversion()[0]}")
    if options.quick:
        notes.append(
            "A quick run: one round of about three seconds a row, 600 topics instead of 3000. Read it as a hint."
        )
    command = "make bench QUICK=1" if options.quick else "make bench"
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    machine = str(this_machine()).rpartition(", load")[0]
    return report.Facts(date, machine, ", ".join(versions), command, rounds, tuple(notes))


def _code_state() -> str:
    """What was measured: the hash of the source tree, marked when it differs from what is committed."""
    tree = subprocess.run(["git", "rev-parse", "--short", "HEAD:src"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "status", "--porcelain", "src"], capture_output=True, text=True, check=False)
    return (tree.stdout.strip() or "unknown") + ("-changed" if changed.stdout.strip() else "")


if __name__ == "__main__":
    sys.exit(main())
