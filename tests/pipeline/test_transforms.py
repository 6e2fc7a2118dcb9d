"""Transforms of a person's own, and the examples: each runs as it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from chronik.client import Cluster, Consumer, TopicPartition
from chronik.client.admin.topics import create_topic
from chronik.client.offsets import end_offsets
from chronik.pipeline.tables.keeper import KeeperSettings, TableKeeper
from chronik.pipeline.transforms import TransformFailed, run_file, run_python, run_sql
from harness.node_process import NodeProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
HOUR_MS = 3_600_000


def read_all(cluster: Cluster, topic: str) -> list[bytes]:
    """Everything up to the end of the topic: one fetch may bring only a part of it."""
    where = TopicPartition(topic, 0)
    end = end_offsets(cluster, [where])[where]
    found: list[bytes] = []
    with Consumer(cluster, {where: 0}) as consumer:
        while consumer.position(where) < end:
            found.extend(record.value or b"" for record in consumer.poll(5.0))
    return found


def land(spark: SparkSession, node: NodeProcess, warehouse: Path, topic: str) -> None:
    keeper = TableKeeper(
        spark,
        KeeperSettings(bootstrap=node.bootstrap, warehouse=warehouse, topics=frozenset([topic])),
        lambda _: None,
    )
    assert keeper.run_once()
    keeper.close()


def test_clicks_become_sessions_and_a_restart_goes_on(
    spark: SparkSession, node: NodeProcess, cluster: Cluster, produce: Callable[..., None], warehouse: Path
) -> None:
    create_topic(cluster, "clicks", partitions=1)
    create_topic(cluster, "sessions", partitions=1)

    def click(user: str, at: str) -> bytes:
        return json.dumps({"user": user, "page": "/", "at": f"2026-01-01T{at}Z"}).encode()

    produce("clicks", [click("ann", "10:00:00"), click("ann", "10:05:00"), click("bob", "10:02:00")])
    run_python(EXAMPLES / "clickstream_sessions.py", spark, node.bootstrap, warehouse)
    produce("clicks", [click("ann", "12:00:00"), click("eve", "13:30:00")])
    run_python(EXAMPLES / "clickstream_sessions.py", spark, node.bootstrap, warehouse)
    found = [json.loads(value) for value in read_all(cluster, "sessions")]
    assert sorted((one["user"], one["clicks"]) for one in found) == [("ann", 1), ("ann", 2), ("bob", 1)]


def test_orders_are_a_table_with_a_daily_revenue_and_dead_letters_are_replayed(
    spark: SparkSession,
    node: NodeProcess,
    cluster: Cluster,
    produce: Callable[..., None],
    warehouse: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_topic(cluster, "orders", partitions=1, configs={"table.enabled": "true"})

    def order(number: int, total: float, status: str = "paid") -> bytes:
        return json.dumps({"id": number, "total": total, "status": status}).encode()

    produce("orders", [order(1, 10.5), order(2, 4.0), order(3, 99.0, "open")], timestamp_ms=HOUR_MS)
    produce("orders", [b"{'id': 4, 'total': 7.25, 'status': 'paid'}", b"garbage"], timestamp_ms=HOUR_MS)
    land(spark, node, warehouse, "orders")
    produce("orders", [order(5, 20.0)], timestamp_ms=30 * HOUR_MS)
    run_sql((EXAMPLES / "orders_revenue.sql").read_text(), spark, node.bootstrap, warehouse)
    shown = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines()]
    assert "|1970-01-01|2|14.5|" in shown and "|1970-01-02|1|20.0|" in shown

    run_python(EXAMPLES / "dead_letter_replay.py", spark, node.bootstrap, warehouse)
    assert "replayed 1 of 2 dead letters" in capsys.readouterr().out
    land(spark, node, warehouse, "orders")
    rows = DeltaTable(str(warehouse / "orders")).to_pyarrow_table().to_pylist()
    (mended,) = [row for row in rows if row["id"] == 4]
    assert mended["total"] == 7.25
    assert [(h["key"], h["value"]) for h in mended["headers"]] == [("replayed-from", b"0/3")]


@pytest.mark.parametrize("last", ["failing", "idle"])
def test_a_query_that_fails_ends_the_run_whichever_was_started_last(
    spark: SparkSession, node: NodeProcess, topic: Callable[..., str], warehouse: Path, tmp_path: Path, last: str
) -> None:
    name = topic()
    script = tmp_path / "two.py"
    script.write_text(
        f'''
def start(options, name):
    where = {{"kafka.bootstrap.servers": bootstrap, "subscribe": "{name}"}}
    frame = spark.readStream.format("chronik").options(**where, **options).load()
    return frame.writeStream.foreachBatch(lambda rows, _: rows.count()).option("checkpointLocation", checkpoint(name))

queries = [start(dict(startingOffsets="earliest"), "idle"), start(dict(startingTimestamp="99"), "failing")]
for query in queries if "{last}" == "failing" else reversed(queries):
    query.start()
'''
    )
    try:
        with pytest.raises(TransformFailed, match="no record at or after timestamp 99"):
            run_python(script, spark, node.bootstrap, warehouse)
    finally:
        for query in spark.streams.active:
            query.stop()


def test_a_query_that_was_changed_and_cannot_go_on_says_so(
    spark: SparkSession,
    node: NodeProcess,
    topic: Callable[..., str],
    produce: Callable[..., None],
    warehouse: Path,
    tmp_path: Path,
) -> None:
    name = topic()
    script = tmp_path / "counts.py"

    def run(columns: str) -> None:
        produce(name, [b"one more"])
        script.write_text(
            f"""
where = {{"kafka.bootstrap.servers": bootstrap, "subscribe": "{name}", "startingOffsets": "earliest"}}
counts = spark.readStream.format("chronik").options(**where).load().groupBy({columns}).count()
query = counts.writeStream.format("noop").outputMode("complete").option("checkpointLocation", checkpoint("counts"))
query.trigger(availableNow=True).start()
"""
        )
        run_python(script, spark, node.bootstrap, warehouse)

    run('"partition"')
    with pytest.raises(TransformFailed, match="changed in a way that its checkpoint cannot follow"):
        run('"partition", "topic"')


def test_an_error_of_a_persons_own_is_shown_with_the_lines_of_the_file_alone(
    spark: SparkSession, node: NodeProcess, warehouse: Path, tmp_path: Path
) -> None:
    script = tmp_path / "mine.py"
    (tmp_path / "beside.py").write_text("def half(text):\n    return int(text) / 2\n")
    script.write_text("from beside import half\n\nhalf('4')\nhalf('ten')\n")
    with pytest.raises(TransformFailed) as raised:
        run_python(script, spark, node.bootstrap, warehouse)
    told = str(raised.value)
    assert "line 4, in <module>" in told and "line 2, in half" in told and told.endswith("'ten'")
    assert "runpy" not in told and "transforms.py" not in told
    script.write_text("frame = spark.range(1)\n\nframe.select('nothing')\n")
    with pytest.raises(TransformFailed, match=r"mine\.py, line 3: .*UNRESOLVED_COLUMN"):
        run_python(script, spark, node.bootstrap, warehouse)


def test_what_cannot_be_run_is_named(
    spark: SparkSession, node: NodeProcess, warehouse: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = {"bootstrap": node.bootstrap, "warehouse": warehouse, "master": None}
    with pytest.raises(TransformFailed, match="there is no file"):
        run_file(tmp_path / "missing.py", **where)
    (tmp_path / "a.txt").touch()
    with pytest.raises(TransformFailed, match="is no transform"):
        run_file(tmp_path / "a.txt", **where)
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(TransformFailed, match="is a folder"):
        run_file(tmp_path / "folder.py", **where)
    (tmp_path / "empty.sql").write_text("-- nothing; at all\n")
    with pytest.raises(TransformFailed, match="there is no statement"):
        run_file(tmp_path / "empty.sql", **where)
    with pytest.raises(TransformFailed, match="line 3 pos 15"):
        run_sql("-- a comment\nSHOW TABLES;\n SELECT * FROM nowhere", spark, node.bootstrap, warehouse)
    with pytest.raises(TransformFailed, match="DIVIDE_BY_ZERO"):
        run_sql("SELECT 1 / (id - id) FROM range(1)", spark, node.bootstrap, warehouse)
    assert "org.apache" not in capfd.readouterr().err
