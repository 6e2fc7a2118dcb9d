"""Topics as tables by their names: landed and live, each record once; and the command that asks."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from chronik.client import Cluster, TopicPartition
from chronik.client.admin.topics import create_topic, delete_records, delete_topic
from chronik.pipeline.sql.engine_client import (
    MAX_QUERY_BYTES,
    STATE,
    EngineClient,
    EngineMissing,
    EngineState,
    Query,
    SqlError,
    Wanted,
)
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
    views: TopicViews, land: Callable[..., None], topic: Callable[..., str], produce: Produce, cluster: Cluster
) -> None:
    kept = topic(name="with-dash.and.dots-", table_enabled="true")
    loose = topic(name="loose")
    for name in (kept, loose):
        produce(name, [b'{"a": 1}', b"no json"])
    assert ask(views, f"SELECT a FROM `{kept}`") == [(1,)], "as it will be once it has landed"
    assert ask(views, f"SELECT offset, a FROM {loose} ORDER BY offset") == [(0, 1), (1, None)]
    assert ask(views, f"SELECT * FROM `{kept}__dead_letter`") == [], "there may be some later"
    land(kept)
    assert ask(views, f"SELECT a FROM `{kept}`") == [(1,)]
    assert ask(views, f"SELECT offset, value FROM `{kept}__dead_letter`") == [(1, b"no json")]
    assert f"write it in backticks, `{kept}`" in views.hint(f"SELECT * FROM {kept}")

    create_topic(cluster, f"{kept}__dead_letter", partitions=1, configs={"table.value.format": "string"})
    produce(f"{kept}__dead_letter", [b"a record"])
    (warning,) = views.prepare(f"SELECT * FROM `{kept}__dead_letter`")
    assert "not the dead letters" in warning
    assert ask(views, f"SELECT value FROM `{kept}__dead_letter`") == [("a record",)]
    delete_topic(cluster, f"{kept}__dead_letter")
    assert ask(views, f"SELECT value FROM `{kept}__dead_letter`") == [(b"no json",)]


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


def test_a_given_schema_gives_typed_columns_before_anything_has_landed(
    views: TopicViews, land: Callable[..., None], topic: Callable[..., str], produce: Produce
) -> None:
    name = topic(table_schema="id INT, at TIMESTAMP")
    produce(name, documents({"id": 1, "at": "2026-01-31T12:00:00Z", "more": 5}))
    query = f"SELECT id, year(at), _rescued FROM {name}"
    assert ask(views, query) == [(1, 2026, '{"more":5}')]
    land(name)
    assert ask(views, query) == [(1, 2026, '{"more":5}')]


def test_names_of_topics_that_differ_in_case_alone_are_not_mixed_up(
    views: TopicViews, cluster: Cluster, topic: Callable[..., str], produce: Produce
) -> None:
    lower = topic(name="cased", table_value_format="string")
    upper = lower.upper()
    create_topic(cluster, upper, partitions=1, configs={"table.value.format": "string"})
    produce(lower, [b"lower"])
    produce(upper, [b"upper"])
    assert ask(views, f"SELECT value FROM {lower}") == [("lower",)]
    assert ask(views, f"SELECT value FROM {upper}") == [("upper",)]
    with pytest.raises(ValueError, match="differ in nothing but case"):
        ask(views, f"SELECT * FROM {lower} JOIN {upper}")
    delete_topic(cluster, upper)


def test_a_topic_that_is_deleted_is_no_table_any_more_and_a_new_warehouse_is_not_mistaken_for_the_old(
    views: TopicViews,
    land: Callable[..., None],
    topic: Callable[..., str],
    produce: Produce,
    cluster: Cluster,
    warehouse: Path,
) -> None:
    name = topic(table_value_format="string")
    query = f"SELECT value FROM {name}"
    for value in ("old", "new"):
        produce(name, [value.encode()])
        land(name)
        assert ask(views, query) == [(value,)]
        shutil.rmtree(warehouse / name)
        delete_topic(cluster, name)
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            ask(views, query)
        create_topic(cluster, name, partitions=1, configs={"table.value.format": "string"})


def test_one_topic_without_a_view_does_not_keep_the_others_from_theirs(
    views: TopicViews, topic: Callable[..., str], produce: Produce, warehouse: Path
) -> None:
    broken, good = topic(name="broken"), topic(name="good", table_value_format="string")
    produce(good, [b"1"])
    log = warehouse / broken / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("garbage")
    assert any(f"topic {broken} has no view" in warning for warning in views.prepare_all())
    assert [tuple(row) for row in views.spark.sql(f"SELECT value FROM {good}").collect()] == [("1",)]


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
        "TZ": "Asia/Tokyo",
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
        assert [json.loads(line) for line in prompt.stdout.splitlines()] == [{"n": 2}, {"m": 2}]
        assert "SELEC" in prompt.stderr and prompt.returncode == 1

        several = chronik("sql", "--format", "csv", stdin='SELECT 1 AS a; SELECT 2 AS b;\nSELECT ";\n" AS c;\n')
        told = list(csv.reader(io.StringIO(several.stdout)))
        assert told == [["a"], ["1"], ["b"], ["2"], ["c"], [";\n"]], several.stderr
        assert several.returncode == 0

        times = chronik(
            "sql",
            "--format",
            "json",
            "SELECT TIMESTAMP '2026-01-31 12:00:00Z' AS t, array(make_date(20000, 1, 1)) AS d; SELECT 1 AS n\nFRM x",
        )
        assert json.loads(times.stdout) == {"t": "2026-01-31 12:00:00", "d": ["+20000-01-01"]}, times.stderr
        assert times.returncode == 1 and "line 2, pos 0" in times.stderr

        with socket.create_connection(("127.0.0.1", state.port)) as leaving:
            ask_for_ever = Query(state.token, "SELECT count(*) FROM range(1000000000000000)")
            leaving.sendall(msgspec.json.encode(ask_for_ever) + b"\n")
            assert b"columns" in leaving.recv(4096), "it is running, on the one core that there is"
        assert list(client.query("SELECT 1").rows) == [[1]]

        marked = chronik("sql", "SELECT '[red]x[/red] [/y] :smile:' AS m")
        assert "[red]x[/red] [/y] :smile:" in marked.stdout, marked.stderr
        twice = chronik("sql", "SELECT 1 AS a, 2 AS a", "--format", "json")
        assert twice.returncode == 1 and "column a is there twice" in twice.stderr

        log = tmp_path / "warehouse" / name / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text("garbage")
        broken = chronik("sql", f"SELECT * FROM {name}")
        assert broken.returncode == 1 and broken.stderr.startswith("chronik: ") and "Traceback" not in broken.stderr
        with pytest.raises(SqlError, match="longer than"):
            client.query("SELECT 1 -- " + "x" * MAX_QUERY_BYTES)

        again = client.state()
        assert again is not None and again.pid == state.pid, "one engine for all of it"
        assert chronik("sql", "--stop").stdout == "stopped the engine\n"
        assert client.state() is None
    finally:
        client.stop()


def test_an_engine_that_is_killed_is_told_of_and_the_next_query_starts_another(
    node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONIK_ENGINES", str(tmp_path / "engines"))
    client = EngineClient(Wanted(node.bootstrap, str(tmp_path / "warehouse"), "local[1]"))
    client.folder.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        state = EngineState(os.getpid(), listener.getsockname()[1], 0, "token")
        (client.folder / STATE).write_bytes(msgspec.json.encode(state))

        def hang_up() -> None:
            for _ in range(2):
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(EngineMissing, match="went away"):
            client.query("SELECT 1")
        thread.join()
    monkeypatch.setattr(client, "start", lambda: pytest.fail("asked for another"))
    with pytest.raises(pytest.fail.Exception, match="asked for another"):
        client.query("SELECT 1")
    assert client.state() is None, "what a killed engine left behind is removed"
