"""Topics kept as Delta tables: every record once, typed columns, dead letters, and what happens when things change."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from chronik.client import Cluster, TopicPartition
from chronik.client.admin.configs import ResourceType, alter_configs
from chronik.client.admin.groups import committed_offsets
from chronik.client.admin.topics import create_topic, delete_records, delete_topic
from chronik.pipeline.tables import ingest_task
from chronik.pipeline.tables import keeper as keeper_module
from chronik.pipeline.tables.ingest_task import TaskReport, TaskSpec, run_task
from chronik.pipeline.tables.keeper import GROUP, KeeperSettings, TableKeeper, TopicProgress
from chronik.pipeline.tables.kept_topic import columns_of_schema
from chronik.pipeline.tables.layout import schema_to_text
from chronik.pipeline.tables.maintenance import SMALL_FILES_BEFORE_COMPACTION, tidy
from harness.node_process import NodeProcess

Produce = Callable[..., None]
DAY_MS = 86_400_000
LANDING_DEADLINE_S = 120.0


class Keeping:
    """Keeps tables in one warehouse, and remembers what was reported."""

    def __init__(self, spark: SparkSession, bootstrap: str, warehouse: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.warehouse = warehouse
        self.reported: list[TopicProgress] = []
        self._keepers: list[TableKeeper] = []

    def keeper(self, *topics: str, **settings: Any) -> TableKeeper:
        made = TableKeeper(
            self.spark,
            KeeperSettings(bootstrap=self.bootstrap, warehouse=self.warehouse, topics=frozenset(topics), **settings),
            self.reported.append,
        )
        self._keepers.append(made)
        return made

    def once(self, *topics: str, **settings: Any) -> bool:
        return self.keeper(*topics, **settings).run_once()

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = DeltaTable(str(self.warehouse / table)).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    def close(self) -> None:
        for keeper in self._keepers:
            keeper.close()


@pytest.fixture
def keeping(spark: SparkSession, node: NodeProcess, warehouse: Path) -> Iterator[Keeping]:
    made = Keeping(spark, node.bootstrap, warehouse)
    yield made
    made.close()


def as_json(*documents: Any) -> list[bytes]:
    return [json.dumps(document).encode() for document in documents]


def test_json_becomes_typed_columns_and_grows_with_new_fields(
    keeping: Keeping, topic: Callable[..., str], produce: Produce, cluster: Cluster
) -> None:
    name = topic(partitions=2, table_enabled="true")
    produce(name, as_json({"id": 1, "city": "Ulm"}, {"id": 2, "total": 9.5}), partition=0)
    produce(name, as_json({"id": 3, "a": {"x": 1}}), partition=1, timestamp_ms=DAY_MS + 5)
    assert keeping.once(name)
    rows = keeping.rows(name)
    assert [(r["partition"], r["offset"], r["id"], r["city"], r["total"], r["a"]) for r in rows] == [
        (0, 0, 1, "Ulm", None, None),
        (0, 1, 2, None, 9.5, None),
        (1, 0, 3, None, None, {"x": 1}),
    ]
    assert [str(r["_day"]) for r in rows] == ["1970-01-01", "1970-01-01", "1970-01-02"]
    assert rows[0]["value"] == b'{"id": 1, "city": "Ulm"}'

    produce(name, as_json({"id": "four", "a": {"x": 1, "y": "new"}, "more": True}), partition=0)
    assert keeping.once(name)
    rows = keeping.rows(name)
    assert len(rows) == 4
    late = rows[2]
    assert (late["id"], late["a"], late["more"]) == (None, {"x": 1, "y": "new"}, True)
    assert json.loads(late["_rescued"]) == {"id": "four"}
    positions = {
        place.partition: at.offset for place, at in committed_offsets(cluster, GROUP).items() if place.topic == name
    }
    assert positions == {0: 3, 1: 1}
    assert keeping.once(name) and len(keeping.rows(name)) == 4


def test_raw_and_string_topics_are_landed_as_they_are(
    keeping: Keeping, topic: Callable[..., str], produce: Produce
) -> None:
    raw, text = topic(table_value_format="binary"), topic(table_value_format="string")
    produce(raw, [b"\x00\xff", None], key=b"k")
    produce(text, ["grün".encode(), b"\xff"])
    assert keeping.once(raw, text)
    assert [(r["key"], r["value"]) for r in keeping.rows(raw)] == [(b"k", b"\x00\xff"), (b"k", None)]
    assert [r["value"] for r in keeping.rows(text)] == ["grün"]
    (letter,) = keeping.rows(f"{text}__dead_letter")
    assert (letter["offset"], letter["value"]) == (1, b"\xff") and "UTF-8" in letter["reason"]


def test_a_record_that_is_no_json_is_dead_lettered_skipped_or_stops_the_topic(
    keeping: Keeping, topic: Callable[..., str], produce: Produce, cluster: Cluster
) -> None:
    names = {choice: topic(table_on_error=choice) for choice in ("dead-letter", "skip", "stop")}
    for name in names.values():
        produce(name, [b'{"n": 1}', b"poison", b'{"n": 2}'])
    assert not keeping.once(*names.values())
    assert [r["n"] for r in keeping.rows(names["dead-letter"])] == [1, 2]
    (letter,) = keeping.rows(names["dead-letter"] + "__dead_letter")
    assert (letter["topic"], letter["partition"], letter["offset"], letter["value"]) == (
        names["dead-letter"],
        0,
        1,
        b"poison",
    )
    assert [r["n"] for r in keeping.rows(names["skip"])] == [1, 2]
    assert not (keeping.warehouse / (names["skip"] + "__dead_letter")).exists()
    assert [r["n"] for r in keeping.rows(names["stop"])] == [1]
    stopped = [p.error for p in keeping.reported if p.topic == names["stop"] and p.error]
    assert stopped and f"offset 1 of {names['stop']}-0" in stopped[0]

    alter_configs(cluster, ResourceType.TOPIC, names["stop"], {"table.on.error": "skip"})
    assert keeping.once(names["stop"])
    assert [r["n"] for r in keeping.rows(names["stop"])] == [1, 2]


def test_a_given_schema_is_kept_to(keeping: Keeping, topic: Callable[..., str], produce: Produce) -> None:
    name = topic(table_schema="id INT, at TIMESTAMP, tags ARRAY<STRING>")
    bad = topic(table_schema="id MAP<STRING, INT>")
    produce(name, as_json({"id": 1, "at": "2026-01-31T12:00:00Z", "tags": ["a"], "extra": 5}, {"id": 2**40}))
    produce(bad, as_json({}))
    keeping.once(name, bad)
    first, second = keeping.rows(name)
    assert (first["id"], first["at"].isoformat(), first["tags"]) == (1, "2026-01-31T12:00:00+00:00", ["a"])
    assert json.loads(first["_rescued"]) == {"extra": 5}
    assert second["id"] is None and json.loads(second["_rescued"]) == {"id": 2**40}
    assert any(p.topic == bad and "cannot be filled from JSON" in (p.error or "") for p in keeping.reported)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("id BIGINT, `a b` STRING", "no column can be named 'a b'"),
        ("id BIGINT, ID STRING", "two columns ID"),
        ("a STRUCT<x: INT, X: INT>", "two columns X"),
        ("a ARRAY<MAP<STRING, INT>>", "cannot be filled from JSON"),
        ("id BIGNIT", "is no list of columns"),
    ],
)
def test_a_schema_that_no_table_can_have_is_refused(ddl: str, said: str, spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=said):
        columns_of_schema(ddl)


def test_a_topic_that_cannot_be_kept_is_told_of_once_fails_the_run_and_holds_no_other_up(
    keeping: Keeping, topic: Callable[..., str], produce: Produce, cluster: Cluster
) -> None:
    good, bad, letters = topic(), topic(table_schema="id BIGINT, ID STRING"), topic() + "__dead_letter"
    create_topic(cluster, letters, partitions=1)
    for name in (good, bad, letters):
        produce(name, as_json({"id": 1}))
    keeper = keeping.keeper(good, bad, letters, "no-such-topic")
    keeper.discover()
    assert not keeper.run_once()
    assert [r["id"] for r in keeping.rows(good)] == [1]
    told = sorted((p.topic, p.error or "") for p in keeping.reported if p.error)
    assert [name for name, _ in told] == sorted([bad, letters, "no-such-topic"])
    assert {name: text.split(":")[0] for name, text in told}[bad] == "table.schema cannot be used"


def test_values_that_a_type_cannot_hold_are_rescued_and_do_not_fail_the_round(
    keeping: Keeping, topic: Callable[..., str], produce: Produce
) -> None:
    name = topic(table_schema="at TIMESTAMP, a STRUCT<x: BIGINT NOT NULL>")
    early = "0001-01-01T00:00:00+23:00"
    produce(name, as_json({"at": early, "a": {}}, {"at": "2026-01-31T12:00:00Z", "a": {"x": 1}}))
    assert keeping.once(name)
    first, second = keeping.rows(name)
    assert (first["at"], first["a"], json.loads(first["_rescued"])) == (None, {"x": None}, {"at": early})
    assert second["a"] == {"x": 1} and second["_rescued"] is None


def test_a_task_that_fails_in_a_way_nobody_foresaw_fails_its_topic_only(
    keeping: Keeping, topic: Callable[..., str], produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_task._Task, "run", lambda _: 1 // 0)
    name = topic()
    spec = TaskSpec(
        "nowhere:1", name, "", "", "", "binary", "skip", schema_to_text(pa.schema([])), True, [(0, 0, 1)], {}
    )
    report = msgspec.json.decode(run_task(msgspec.json.encode(spec)), type=TaskReport)
    assert (report.topic, report.reached) == (name, []) and "ZeroDivisionError" in (report.error or "")


def test_a_folder_that_is_moved_away_under_a_running_keeper_begins_anew(
    keeping: Keeping, topic: Callable[..., str], produce: Produce
) -> None:
    name = topic(table_value_format="string")
    keeper = keeping.keeper(name)
    keeper.discover()
    produce(name, [b"0"])
    keeper.round()
    (keeping.warehouse / name).rename(keeping.warehouse / "moved")
    produce(name, [b"1"])
    keeper.round()
    assert [r["value"] for r in keeping.rows(name)] == ["0", "1"]
    assert [r["value"] for r in keeping.rows("moved")] == ["0"]


def test_a_backlog_is_landed_in_rounds_of_bounded_size(
    keeping: Keeping, topic: Callable[..., str], produce: Produce
) -> None:
    name = topic(partitions=3, table_value_format="binary")
    for partition in range(3):
        produce(name, [b"v%d" % n for n in range(40)], partition=partition)
    assert keeping.once(name, max_offsets_per_trigger=50)
    assert len([p for p in keeping.reported if p.rows]) >= 3
    assert [(r["partition"], r["offset"]) for r in keeping.rows(name)] == [(p, n) for p in range(3) for n in range(40)]


def test_records_of_very_many_days_are_landed_all_the_same(
    keeping: Keeping, topic: Callable[..., str], produce: Produce
) -> None:
    name = topic(table_value_format="binary")
    for day in range(100):
        produce(name, [b"%d" % day], timestamp_ms=day * DAY_MS)
    assert keeping.once(name)
    assert [r["offset"] for r in keeping.rows(name)] == list(range(100))
    assert max(p.files for p in keeping.reported) <= 64


def test_a_second_writer_neither_repeats_nor_loses_a_record(
    keeping: Keeping, topic: Callable[..., str], produce: Produce
) -> None:
    name = topic()
    produce(name, [*as_json({"n": 1}, {"n": 2}, "no object"), b"poison"])
    slow, fast = keeping.keeper(name), keeping.keeper(name)
    slow.discover()
    land = slow._land

    def overtaken(*arguments: Any) -> TopicProgress:
        assert fast.run_once()
        return land(*arguments)

    slow._land = overtaken  # type: ignore[method-assign]
    results = slow.round()
    assert "another writer" in (results[0].error or "")
    assert [r["offset"] for r in keeping.rows(name)] == [0, 1, 2]
    assert [r["offset"] for r in keeping.rows(f"{name}__dead_letter")] == [3]


def test_a_worker_that_dies_in_a_round_is_told_of_and_the_round_runs_again(
    keeping: Keeping,
    topic: Callable[..., str],
    produce: Produce,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = topic(table_value_format="string")
    produce(name, [b"0", b"1"])
    died = str(tmp_path / "died")

    def die_once(spec: bytes) -> bytes:
        """Runs in a worker, which has none of the tests' modules."""
        try:
            os.close(os.open(died, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return run_task(spec)
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    monkeypatch.setattr(keeper_module, "run_task", die_once)
    deadline = time.monotonic() + LANDING_DEADLINE_S
    keeping.keeper(name).run_continuously(lambda: bool(keeping.reported) or time.monotonic() > deadline)
    assert [r["value"] for r in keeping.rows(name)] == ["0", "1"]
    assert "a job of Spark failed, trying again" in caplog.text


def test_offsets_lost_to_retention_stop_the_topic_unless_gaps_are_allowed(
    keeping: Keeping, topic: Callable[..., str], produce: Produce, cluster: Cluster
) -> None:
    name = topic(table_value_format="string")
    produce(name, [b"0", b"1", b"2"])
    delete_records(cluster, {TopicPartition(name, 0): 1})
    assert keeping.once(name), "a table begins where the log begins"
    produce(name, [b"3", b"4", b"5"])
    delete_records(cluster, {TopicPartition(name, 0): 5})
    assert not keeping.once(name)
    assert f"offsets 3 to 4 of {name}-0" in (keeping.reported[-1].error or "")
    assert keeping.once(name, allow_gaps=True)
    assert [r["value"] for r in keeping.rows(name)] == ["1", "2", "5"]


def test_a_topic_made_anew_under_an_old_name_does_not_touch_the_old_table(
    keeping: Keeping, topic: Callable[..., str], produce: Produce, cluster: Cluster
) -> None:
    name = topic(table_value_format="string")
    produce(name, [b"old"])
    keeper = keeping.keeper(name)
    assert keeper.run_once()
    delete_topic(cluster, name)
    create_topic(cluster, name, partitions=1, configs={"table.value.format": "string"})
    produce(name, [b"new", b"newer"])
    (unaware,) = keeper.round()
    assert "made anew" in (unaware.error or "")
    assert not keeping.once(name)
    assert "Move the folder away" in (keeping.reported[-1].error or "")
    assert [r["value"] for r in keeping.rows(name)] == ["old"]


def test_small_files_are_compacted_and_orphans_removed_and_positions_stay(
    keeping: Keeping, topic: Callable[..., str], produce: Produce
) -> None:
    name = topic(table_value_format="string")
    keeper = keeping.keeper(name)
    keeper.discover()
    for n in range(21):
        produce(name, [b"%d" % n])
        keeper.round()
    folder = keeping.warehouse / name
    orphan = folder / "_day=1970-01-01" / "part-orphan.parquet"
    orphan.write_bytes(b"left by a task that was killed")
    tidied = tidy(folder, keep_hours=0)
    assert tidied is not None and tidied.files_compacted == 21 and not orphan.exists()
    assert len(list(folder.glob("_day=*/*.parquet"))) == 1
    produce(name, [b"21"])
    assert keeping.once(name)
    assert [r["value"] for r in keeping.rows(name)] == [str(n) for n in range(22)]


def test_a_run_that_ends_tidies_its_tables_and_leaves_a_foreign_one_alone(
    keeping: Keeping, topic: Callable[..., str], produce: Produce
) -> None:
    name, foreign = topic(table_value_format="string"), topic(table_value_format="string")
    produce(foreign, [b"x"])
    write_deltalake(keeping.warehouse / foreign, pa.table({"n": [1]}))
    produce(name, [b"%d" % n for n in range(SMALL_FILES_BEFORE_COMPACTION)])
    assert not keeping.once(name, foreign, max_offsets_per_trigger=1)
    assert len(DeltaTable(keeping.warehouse / name).file_uris()) == 1
    assert len(keeping.rows(name)) == SMALL_FILES_BEFORE_COMPACTION
    assert not list((keeping.warehouse / foreign / "_delta_log").glob("*checkpoint*"))
