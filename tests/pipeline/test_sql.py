"""Topics as tables by their names: landed and live, each record once; and the command that asks."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from chronik.client import Cluster, TopicPartition
from chronik.client.admin.topics import delete_records
from chronik.pipeline.sql.engine_client import EngineClient, Query, Wanted
from chronik.pipeline.sql.sql_errors import explain
from chronik.pipeline.sql.topic_views import TopicViews
from chronik.pipeline.tables.keeper import KeeperSettings, TableKeeper
from harness.node_process import NodeProcess

Produce = Callable[..., None]
COMMAND_DEADLINE_S = 180.0


@pytest.fixture
def views(spark: SparkSession, node: NodeProcess, warehouse: Path) -> Iterator[TopicViews]:
    made = TopicViews(spark, node.bootstrap, warehouse)
    yield made
    made.cluster.close()


@pytest.fixture
def land(spark: SparkSession, node: NodeProcess, warehouse: Path) -> Callable[..., None]:
    def once(*topics: str) -> None:
        settings = KeeperSettings(bootstrap=node.bootstrap, warehouse=warehouse, topics=frozenset(topics))
        keeper = TableKeeper(spark, settings, lambda _: None)
        assert keeper.run_once()
        keeper.close()

    return once


def ask(views: TopicViews, sql: str) -> list[tuple[Any, ...]]:
    views.prepare(sql)
    return [tuple(row) for row in views.spark.sql(sql).collect()]


def documents(*rows: Any) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def test_a_topic_is_a_table_with_typed_columns_before_during_and_after_landing(
    views: TopicViews, land: Callable[..., None], topic: Callable[..., str], produce: Produce
) -> None:
    name = topic(partitions=2, name="orders")
    produce(name, documents({"city": "Ulm", "n": 1}, {"city": "Bonn", "n": 2}), partition=0)
    query = f"SELECT city, sum(n), count(*) FROM {name} GROUP BY city ORDER BY city"
    assert ask(views, query) == [("Bonn", 2, 1), ("Ulm", 1, 1)]
    land(name)
    assert ask(views, query) == [("Bonn", 2, 1), ("Ulm", 1, 1)]
    produce(name, documents({"city": "Ulm", "n": 40, "late": True}), partition=1)
    assert ask(views, query) == [("Bonn", 2, 1), ("Ulm", 41, 2)]
    assert ask(views, f"SELECT n, late FROM {name} WHERE offset = 0 ORDER BY n") == [(1, None), (40, True)]
    land(name)
    assert ask(views, query) == [("Bonn", 2, 1), ("Ulm", 41, 2)]


def test_a_query_that_is_planned_sees_one_version_whatever_lands_meanwhile(
    views: TopicViews, land: Callable[..., None], topic: Callable[..., str], produce: Produce
) -> None:
    name = topic(table_value_format="string")
    produce(name, [b"a", b"b"])
    land(name)
    produce(name, [b"c"])
    views.prepare(f"SELECT * FROM {name}")
    frame = views.spark.sql(f"SELECT value FROM {name}")
    produce(name, [b"d"])
    land(name)
    assert sorted(row.value for row in frame.collect()) == ["a", "b", "c"]
    assert ask(views, f"SELECT count(*), count(DISTINCT offset) FROM {name}") == [(4, 4)]


def test_names_in_backticks_dead_letters_and_values_that_are_no_json(
    views: TopicViews, land: Callable[..., None], topic: Callable[..., str], produce: Produce
) -> None:
    kept = topic(name="with-dash.and.dots-", table_enabled="true")
    loose = topic(name="loose")
    for name in (kept, loose):
        produce(name, [b'{"a": 1}', b"no json"])
    assert ask(views, f"SELECT a FROM `{kept}`") == [(1,)], "as it will be once it has landed"
    assert ask(views, f"SELECT offset, a FROM {loose} ORDER BY offset") == [(0, 1), (1, None)]
    land(kept)
    assert ask(views, f"SELECT a FROM `{kept}`") == [(1,)]
    assert ask(views, f"SELECT offset, value FROM `{kept}__dead_letter`") == [(1, b"no json")]


def test_offsets_that_retention_took_before_they_landed_are_told_of(
    views: TopicViews, land: Callable[..., None], topic: Callable[..., str], produce: Produce, cluster: Cluster
) -> None:
    name = topic(table_value_format="string")
    produce(name, [b"0"])
    land(name)
    produce(name, [b"1", b"2", b"3"])
    delete_records(cluster, {TopicPartition(name, 0): 3})
    (warning,) = views.prepare(f"SELECT * FROM {name}")
    assert f"offsets 1 to 2 of {name}-0" in warning
    assert ask(views, f"SELECT value FROM {name} ORDER BY offset") == [("0",), ("3",)]


def test_errors_show_where_in_the_sql_and_no_java(
    views: TopicViews, topic: Callable[..., str], produce: Produce
) -> None:
    name = topic()
    produce(name, documents({"city": "Ulm"}))
    with pytest.raises(AnalysisException) as caught:
        ask(views, f"SELECT cty FROM {name}")
    told = explain(caught.value)
    assert "`cty`" in told and "line 1 pos 7" in told and "city" in told
    assert "org.apache" not in told and "Project" not in told and "\n" not in told


@pytest.fixture
def chronik(node: NodeProcess, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    environment = {
        **os.environ,
        "CHRONIK_BOOTSTRAP": node.bootstrap,
        "CHRONIK_WAREHOUSE": str(tmp_path / "warehouse"),
        "CHRONIK_ENGINES": str(tmp_path / "engines"),
        "CHRONIK_SPARK_MASTER": "local[1]",
        "PYTHONDONTWRITEBYTECODE": "",
    }

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "chronik", *arguments],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_DEADLINE_S,
            check=False,
        )

    return run


def test_the_command_starts_an_engine_reuses_it_and_stops_it(
    chronik: Callable[..., subprocess.CompletedProcess[str]],
    node: NodeProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topic: Callable[..., str],
    produce: Produce,
) -> None:
    name = topic(name="cli")
    produce(name, documents({"city": "Ulm", "note": 'a "quote", and comma'}, {"city": "Bonn", "note": None}))
    monkeypatch.setenv("CHRONIK_ENGINES", str(tmp_path / "engines"))
    client = EngineClient(Wanted(node.bootstrap, str(tmp_path / "warehouse"), "local[1]"))
    try:
        first = chronik("sql", f"SELECT city, note FROM {name} ORDER BY city", "--format", "csv")
        assert first.returncode == 0, first.stderr
        rows = list(csv.reader(io.StringIO(first.stdout)))
        assert rows == [["city", "note"], ["Bonn", ""], ["Ulm", 'a "quote", and comma']]
        assert "WARN" not in first.stderr

        state = client.state()
        assert state is not None
        (document,) = (tmp_path / "engines").glob("*/engine.json")
        assert stat.S_IMODE(document.stat().st_mode) == 0o600
        assert [piece.error for piece in client._ask(state, Query("guess", "SELECT 1"))] == ["the token is wrong"]

        wrong = chronik("sql", f"SELECT nothing FROM {name}")
        assert wrong.returncode == 1 and "line 1 pos 7" in wrong.stderr and "at org." not in wrong.stderr

        prompt = chronik(
            "sql", "--format", "json", stdin=f"SELECT count(*)\n  AS n FROM {name};\nSELEC;\nSELECT 2 AS m;\n"
        )
        answers = [json.loads(line[line.index("{") :]) for line in prompt.stdout.splitlines() if "{" in line]
        assert answers == [{"n": 2}, {"m": 2}] and "SELEC" in prompt.stderr

        again = client.state()
        assert again is not None and again.pid == state.pid, "one engine for all of it"
        assert chronik("sql", "--stop").stdout == "stopped the engine\n"
        assert client.state() is None
    finally:
        client.stop()
