"""What a person waits for: the first and the next answers of `chronik sql`, and until a record is in its table."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from chronik.client import Cluster, Producer
from chronik.client.admin.topics import create_topic
from chronik.pipeline.tables.delta_table import TopicTable
from chronik.pipeline.tables.layout import all_settings
from pipeline_speed.workload import document

WARM_QUERIES = 5
SMALL_ROWS = 1_000
COMMAND_TIMEOUT_S = 180.0
FRESHNESS_TOPIC = "freshness"
PAUSE_S = 0.25
LOOK_S = 0.05
"""Between two looks at the table, which cost the job some of its time: how exact the freshness is."""
STOP_S = 30.0


class Commands:
    """Runs `chronik` against one node, with folders of its own."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.warehouse = folder / "kept"
        self.log = folder / "tables.log"
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "CHRONIK_BOOTSTRAP": bootstrap,
            "CHRONIK_WAREHOUSE": str(self.warehouse),
            "CHRONIK_ENGINES": str(folder / "engines"),
            "PYTHONDONTWRITEBYTECODE": "",
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "chronik", *arguments]
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def seconds(self, *arguments: str) -> float:
        """How long a command takes, from the call to the end of its process."""
        began = time.monotonic()
        command = [sys.executable, "-m", "chronik", *arguments]
        ended = subprocess.run(command, env=self.environment, capture_output=True, timeout=COMMAND_TIMEOUT_S)
        if ended.returncode:
            raise RuntimeError(f"chronik {arguments[0]} failed: {ended.stderr.decode(errors='replace')[-1000:]}")
        return time.monotonic() - began


def query_times(bootstrap: str, folder: Path) -> dict[str, float]:
    """Seconds of the first query, which starts the engine, of the next ones, and of as many of a grouped one."""
    with Cluster(bootstrap) as cluster:
        create_topic(cluster, "small", partitions=1)
        with Producer(cluster) as producer:
            for number in range(SMALL_ROWS):
                producer.send("small", document(number, 100))
    commands = Commands(bootstrap, folder)
    count, grouped = "SELECT count(*) FROM small", "SELECT city, sum(total) FROM small GROUP BY city"
    try:
        first = commands.seconds("sql", count)
        commands.seconds("sql", grouped)
        warm = [commands.seconds("sql", count) for _ in range(WARM_QUERIES)]
        groups = [commands.seconds("sql", grouped) for _ in range(WARM_QUERIES)]
    finally:
        commands.seconds("sql", "--stop")
    return {"first": first, "warm": statistics.median(warm), "warm, grouped": statistics.median(groups)}


def freshness(bootstrap: str, folder: Path, seconds: float) -> list[float]:
    """Seconds from the acknowledgement of a record until the table has it, sorted; at the default trigger."""
    with Cluster(bootstrap) as cluster:
        create_topic(cluster, FRESHNESS_TOPIC, partitions=1, configs={"table.enabled": "true"})
        commands = Commands(bootstrap, folder)
        process = commands.start("pipeline", "tables", "--continuous", "--json", "--topic", FRESHNESS_TOPIC)
        try:
            with Producer(cluster) as producer:
                return _watch(cluster, producer, process, commands, seconds)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _watch(
    cluster: Cluster, producer: Producer, process: subprocess.Popen[bytes], commands: Commands, seconds: float
) -> list[float]:
    (settings,) = [found for found in all_settings(cluster) if found.topic == FRESHNESS_TOPIC]
    table = TopicTable(commands.warehouse / FRESHNESS_TOPIC, settings, pa.schema([]))
    acknowledged: list[float] = []
    delays: list[float] = []
    landed = 0
    warm = 0
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    until = float("inf")
    while landed < len(acknowledged) or time.monotonic() < until:
        if process.poll() is not None or time.monotonic() > deadline + seconds:
            raise RuntimeError(f"the table was not kept: {commands.log.read_text(errors='replace')[-1000:]}")
        if time.monotonic() < until and (not acknowledged or time.monotonic() - acknowledged[-1] >= PAUSE_S):
            producer.send(FRESHNESS_TOPIC, document(len(acknowledged), 100))
            producer.flush()
            acknowledged.append(time.monotonic())
        reached = table.stored(0) or 0 if table.open() else 0
        now = time.monotonic()
        delays += [now - at for at in acknowledged[max(landed, warm) : reached]]
        if reached and until == float("inf"):  # the job is up: what waited for its start does not count
            delays, warm, until = [], len(acknowledged), now + seconds
        landed = reached
        time.sleep(LOOK_S)
    return sorted(delays)
