"""Spark Connect, the idle engine, Declarative Pipelines: slow to start, so they run in `make long`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chronik.pipeline.sql.engine_client import EngineClient, Wanted
from harness.node_process import NodeProcess
from harness.ports import free_port
from harness.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NOTEBOOK = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(json.dumps([row.asDict() for row in spark.sql(sys.argv[2]).collect()]))
"""


@pytest.fixture
def environment(node: NodeProcess, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "CHRONIK_BOOTSTRAP": node.bootstrap,
        "CHRONIK_WAREHOUSE": str(tmp_path / "warehouse"),
        "CHRONIK_ENGINES": str(tmp_path / "engines"),
        "CHRONIK_CONNECT_TOKEN": "a-token-of-the-test",
        "PYTHONDONTWRITEBYTECODE": "",
    }


@contextmanager
def started(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask_remotely(address: str, query: str) -> list[dict[str, object]]:
    ended = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, address, query], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    answer: list[dict[str, object]] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def test_a_notebook_finds_topics_as_views_of_the_connect_server(
    environment: dict[str, str], topic: Callable[..., str], produce: Callable[..., None], tmp_path: Path
) -> None:
    name = topic(name="notebook")
    produce(name, [b'{"city": "Ulm"}', b'{"city": "Ulm"}'])
    port = free_port()
    log = tmp_path / "connect.log"
    command = [sys.executable, "-m", "chronik", "pipeline", "connect", "--port", str(port), "--master", "local[2]"]
    with started(command, environment, log):
        eventually(lambda: "Spark Connect is ready" in log.read_text(), "the server is ready", 300)
        address = f"sc://localhost:{port}/;token=a-token-of-the-test"
        query = f"SELECT city, count(*) AS n FROM global_temp.{name} GROUP BY city"
        assert ask_remotely(address, query) == [{"city": "Ulm", "n": 2}]
        produce(name, [b'{"city": "Ulm"}'])
        eventually(lambda: ask_remotely(address, query) == [{"city": "Ulm", "n": 3}], "the view is renewed", 120)


def test_an_engine_that_nobody_asks_ends_by_itself(
    environment: dict[str, str], node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONIK_ENGINES", environment["CHRONIK_ENGINES"])
    monkeypatch.setenv("CHRONIK_ENGINE_IDLE_S", "3")
    client = EngineClient(Wanted(node.bootstrap, str(tmp_path / "warehouse"), "local[1]"))
    try:
        assert list(client.query("SELECT 1 AS one").rows) == [[1]]
        eventually(lambda: client.state() is None, "the idle engine is gone", 120)
    finally:
        client.stop()


def test_a_declarative_pipelines_project_runs_as_it_is_twice(
    environment: dict[str, str], topic: Callable[..., str], produce: Callable[..., None], tmp_path: Path
) -> None:
    name = topic(name="declared")
    produce(name, [b"1", b"2", b"3"])
    project = tmp_path / "project"
    (project / "transformations").mkdir(parents=True)
    (project / "spark-pipeline.yml").write_text(
        f"name: declared\nstorage: file://{tmp_path}/storage\n"
        "libraries:\n  - glob:\n      include: transformations/**\n"
    )
    (project / "transformations" / "copy.py").write_text(
        "from pyspark import pipelines as dp\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.active()\n"
        "@dp.materialized_view\n"
        "def copied():\n"
        f"    return spark.read.format('chronik').option('subscribe', '{name}').load().select('offset')\n"
    )
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-m", "chronik", "pipeline", "run", str(project / "spark-pipeline.yml")],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        (table,) = [folder for folder in tmp_path.rglob("copied") if list(folder.glob("*.parquet"))]
        assert sorted(pq.read_table(table)["offset"].to_pylist()) == [0, 1, 2]
