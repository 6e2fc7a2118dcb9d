"""Tables of topics without Spark and without a cluster: what they hold on to, whatever happens around them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from chronik.client import ClientError, TopicPartition
from chronik.client.metadata import TopicMetadata
from chronik.pipeline.arrow_schema import HEADERS, TIMESTAMP
from chronik.pipeline.ranges import OffsetRange
from chronik.pipeline.tables import ingest_task
from chronik.pipeline.tables import keeper as keeper_module
from chronik.pipeline.tables.delta_table import ForeignTable, PositionMoved
from chronik.pipeline.tables.ingest_task import DataFile, FileWriter, TaskReport
from chronik.pipeline.tables.json_shape import Shape
from chronik.pipeline.tables.keeper import KeeperSettings, TableKeeper
from chronik.pipeline.tables.kept_topic import Begins, KeptTopic
from chronik.pipeline.tables.layout import READ_COLUMNS, TableSettings
from chronik.pipeline.tables.maintenance import SMALL_FILES_BEFORE_COMPACTION, tidy
from chronik.pipeline.tables.table_rows import RowMaker
from chronik.protocol.errors import ErrorCode, KafkaError

TOPIC_ID = "0a" * 16
OVER_A_DAY_S = 25 * 3600


def kept_topic(warehouse: Path, *, value_format: str = "json", partitions: tuple[int, ...] = (0, 1)) -> KeptTopic:
    settings = TableSettings("t", TOPIC_ID, partitions, True, value_format, "", "dead-letter")
    kept = KeptTopic(settings, warehouse, None)
    kept.open()
    return kept


def written(kept: KeptTopic, start: int, *documents: Any, partition: int = 0) -> TaskReport:
    """What a task reports that has read these values, for which there are columns."""
    count = len(documents)
    values = [json.dumps(document).encode() for document in documents]
    columns = {
        "topic": pa.array(["t"] * count),
        "partition": pa.array([partition] * count, pa.int32()),
        "offset": pa.array(range(start, start + count), pa.int64()),
        "timestamp": pa.array([1_000_000] * count, TIMESTAMP),
        "key": pa.array([None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array([[{"key": "h", "value": b"x"}]] * count, HEADERS),
    }
    maker = RowMaker(kept.settings.value_format, kept.typed, "dead-letter")
    files: list[DataFile] = []
    writer = FileWriter(str(kept.table.folder), partition, maker.schema, files)
    writer.write(maker.convert(pa.RecordBatch.from_pydict({name: columns[name] for name in READ_COLUMNS})).rows)
    writer.close()
    return TaskReport("t", [(partition, start, start + count)], [start + count], files)


def land(kept: KeptTopic, start: int, *documents: Any, partition: int = 0) -> None:
    kept.open()
    shape = Shape()
    for document in documents:
        shape.observe(document)
    kept.grow([TaskReport("t", [], unknown=shape.to_document())])
    commit(kept, start, written(kept, start, *documents, partition=partition), partition=partition)


def commit(kept: KeptTopic, start: int, report: TaskReport, *, partition: int = 0) -> None:
    stored = {partition: kept.table.stored(partition)}
    kept.commit(Begins({partition: start}, stored, {partition: None}), [report])


def rows(folder: Path) -> list[dict[str, Any]]:
    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


# -- positions --------------------------------------------------------------------------------------------------------


def test_positions_outlive_checkpoints_of_delta_and_the_commits_that_made_them(tmp_path: Path) -> None:
    kept = kept_topic(tmp_path)
    land(kept, 0, {"n": 0}, partition=1)
    for n in range(3):
        land(kept, n, {"n": n})
    folder = kept.table.folder
    DeltaTable(str(folder)).create_checkpoint()
    for old in sorted((folder / "_delta_log").glob("*.json"))[:-1]:
        old.unlink()
    again = kept_topic(tmp_path)
    assert again.open() == {0: 3, 1: 1}
    land(again, 3, {"n": 3})
    assert tidy(folder) is not None
    assert kept_topic(tmp_path).open() == {0: 4, 1: 1}


def test_delta_itself_refuses_two_writers_that_move_a_position_at_the_same_moment(tmp_path: Path) -> None:
    kept = kept_topic(tmp_path)
    land(kept, 0, {"n": 0})
    late = DeltaTable(str(kept.table.folder))
    land(kept, 1, {"n": 1})
    moved = CommitProperties(app_transactions=[Transaction(kept.settings.app_id(0), 2)])
    with pytest.raises(CommitFailedError):
        late.create_write_transaction([], "append", late.schema(), partition_by=["_day"], commit_properties=moved)
    assert kept.open() == {0: 2, 1: 0}


def test_positions_are_looked_up_once_in_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta reads many commits to tell that a partition has none, and tables may have thousands of partitions."""
    kept = kept_topic(tmp_path, partitions=tuple(range(50)))
    land(kept, 0, {"n": 0})
    look_up = DeltaTable.transaction_version
    asked: list[str] = []
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda self, app: asked.append(app) or look_up(self, app))
    assert kept.open()[0] == 1
    first = len(asked)
    land(kept, 1, {"n": 1})
    assert kept.open()[0] == 2 and len(asked) == first
    land(kept_topic(tmp_path), 2, {"n": 2})
    assert kept.open() == {**dict.fromkeys(range(50), 0), 0: 3}


def test_a_folder_that_is_moved_away_in_the_middle_of_a_round_is_left_alone(tmp_path: Path) -> None:
    kept = kept_topic(tmp_path)
    for n in range(2):
        land(kept, n, {"n": n})
    begins = Begins({0: kept.open()[0]}, {0: 2}, {0: None})
    kept.table.folder.rename(tmp_path / "moved")
    with pytest.raises(PositionMoved, match="was moved away"):
        kept.commit(begins, [written(kept, 2, {"n": 2})])
    assert kept.open() == {0: 0, 1: 0}
    land(kept, 0, {"n": 0})
    assert [row["offset"] for row in rows(kept.table.folder)] == [0]
    assert [row["offset"] for row in rows(tmp_path / "moved")] == [0, 1]


def test_a_table_that_takes_the_place_of_another_is_not_mistaken_for_it(tmp_path: Path) -> None:
    kept = kept_topic(tmp_path)
    for n in range(4):
        land(kept, n, {"n": n})
    kept.table.folder.rename(tmp_path / "moved")
    land(kept_topic(tmp_path), 0, {"n": 0})
    assert kept.open() == {0: 1, 1: 0}
    land(kept, 1, {"n": 1})
    assert [row["offset"] for row in rows(kept.table.folder)] == [0, 1]


def test_files_that_the_driver_does_not_see_are_not_added(tmp_path: Path) -> None:
    """Executors that have a folder of that name on a disk of their own write where nobody else reads."""
    kept = kept_topic(tmp_path)
    land(kept, 0, {"n": 0})
    report = written(kept, 1, {"n": 1})
    (kept.table.folder / report.files[0].path).unlink()
    with pytest.raises(FileNotFoundError, match="executors share"):
        commit(kept, 1, report)
    assert kept.open() == {0: 1, 1: 0}


def keeper_of(warehouse: Path) -> TableKeeper:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    return TableKeeper(spark, KeeperSettings(bootstrap="nowhere:1", warehouse=warehouse), lambda _: None)


def planned(keeper: TableKeeper, kept: KeptTopic, ends: dict[int, int]) -> list[tuple[int, int, int]]:
    waiting = {TopicPartition("t", partition): end for partition, end in ends.items()}
    plan = keeper._plan_topic(kept, kept.open(), waiting)
    return [(piece.partition, piece.start, piece.end) for piece in plan.ranges]


def test_offsets_lost_in_a_partition_that_had_nothing_to_land_before_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 0}
    monkeypatch.setattr(keeper_module, "earliest", lambda _, places: {place: begins[place] for place in places})
    keeper = keeper_of(tmp_path)
    kept = kept_topic(tmp_path)
    assert planned(keeper, kept, {0: 6}) == [(0, 5, 6)], "a table begins where the log begins"
    land(kept, 5, {"n": 5})
    assert planned(keeper, kept, {1: 9}) == [(1, 0, 9)]
    begins[TopicPartition("t", 1)] = 7
    with pytest.raises(ClientError, match="offsets 0 to 6 of t-1 were removed by retention"):
        planned(keeper, kept, {1: 9})


def test_a_partition_that_nobody_leads_holds_no_other_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leader(place: TopicPartition) -> None:
        if place.partition == 1:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {place} has no leader")

    keeper = keeper_of(tmp_path)
    keeper.cluster = SimpleNamespace(refresh=lambda _: None, metadata=SimpleNamespace(leader=leader))  # type: ignore[assignment]
    monkeypatch.setattr(keeper_module, "latest", lambda _, places, __: dict.fromkeys(places, 7))
    ends, failures = keeper._ends([kept_topic(tmp_path)])
    assert ends == {TopicPartition("t", 0): 7}
    assert [(failure.topic, failure.error) for failure in failures] == [("t", "partition t-1 has no leader")]


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_records_of_a_topic_that_was_made_anew_are_not_landed_with_those_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_topic(tmp_path, value_format="binary")
    begins = Begins({0: 0}, {0: None}, {0: None})
    spec = kept.spec("nowhere:1", begins, [OffsetRange("t", 0, 0, 1)], settled=True)
    monkeypatch.setattr(ingest_task, "read_range", lambda *_, **__: iter(()))

    def report_from(topic_id: bytes) -> TaskReport:
        found = TopicMetadata("t", topic_id, False, {})
        monkeypatch.setattr(ingest_task.Cluster, "topic", lambda *_: found)
        return msgspec.json.decode(ingest_task.run_task(msgspec.json.encode(spec)), type=TaskReport)

    assert report_from(bytes.fromhex(TOPIC_ID)).reached == [1]
    refused = report_from(bytes(15) + b"1")
    assert refused.reached == [] and "made anew" in (refused.error or "")


def test_a_topic_whose_values_are_not_json_any_more_goes_on_without_the_columns(tmp_path: Path) -> None:
    land(kept_topic(tmp_path), 0, {"n": 1})
    binary = kept_topic(tmp_path, value_format="binary")
    commit(binary, 1, written(binary, 1, {"n": 2}))
    assert [(row["offset"], row["n"], row["value"]) for row in rows(binary.table.folder)] == [
        (0, 1, b'{"n": 1}'),
        (1, None, b'{"n": 2}'),
    ]


def test_a_schema_whose_column_differs_from_one_of_the_table_in_case_alone_is_refused(tmp_path: Path) -> None:
    land(kept_topic(tmp_path), 0, {"id": 1})
    settings = TableSettings("t", TOPIC_ID, (0, 1), True, "json", "ID BIGINT", "dead-letter")
    with pytest.raises(ForeignTable, match="a column ID, in the table it is id"):
        KeptTopic(settings, tmp_path, pa.schema([("ID", pa.int64())])).open()


# -- maintenance ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rounds",
    [
        [{"a": {"x": 1}}, {"a": {"x": 1, "y": "new", "z": {"q": [1]}}}],
        [{"l": [{"x": 1}]}, {"l": [{"x": 1, "y": "new"}]}],
        [{"Aa": 1, "B": {"Cc": 1}}, {"Aa": 1, "more": 2.5}],
        [{"a.b": 1, "a": {"b": 2}}],
        [{'a"b': 1, "c`d": 2, "e'f": 3, "ä": 4}],
    ],
)
def test_compaction_changes_no_row_whatever_the_columns_are(tmp_path: Path, rounds: list[dict[str, Any]]) -> None:
    kept = kept_topic(tmp_path)
    for n in range(SMALL_FILES_BEFORE_COMPACTION):
        land(kept, n, rounds[min(n, len(rounds) - 1)])
    before, columns = rows(kept.table.folder), kept.table.columns()
    tidied = tidy(kept.table.folder, keep_hours=0)
    assert tidied is not None and tidied.files_compacted == SMALL_FILES_BEFORE_COMPACTION
    assert rows(kept.table.folder) == before
    assert kept.open() == {0: SMALL_FILES_BEFORE_COMPACTION, 1: 0} and kept.table.columns() == columns
    land(kept, SMALL_FILES_BEFORE_COMPACTION, rounds[-1])
    assert len(rows(kept.table.folder)) == SMALL_FILES_BEFORE_COMPACTION + 1


def test_files_that_a_second_driver_is_about_to_add_are_not_taken_for_orphans(tmp_path: Path) -> None:
    kept = kept_topic(tmp_path)
    land(kept, 0, {"n": 0})
    kept.open()
    report = written(kept, 1, {"n": 1})
    orphan = kept.table.folder / written(kept, 1, {"n": 1}).files[0].path
    os.utime(orphan, times=(time.time() - OVER_A_DAY_S,) * 2)
    tidied = tidy(kept.table.folder)
    assert tidied is not None and tidied.files_removed == 1 and not orphan.exists()
    commit(kept, 1, report)
    assert [row["n"] for row in rows(kept.table.folder)] == [0, 1]
