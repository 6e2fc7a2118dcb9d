"""Parts of the pipeline that need neither Spark nor a cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, Not

from chronik.cli.sql import warehouse_folder
from chronik.client import EARLIEST, LATEST, Isolation, TopicPartition
from chronik.pipeline.exactly_once_writer import refuse_speculation
from chronik.pipeline.java import JavaMissing, require_java
from chronik.pipeline.pushdown import bounds_of
from chronik.pipeline.source_options import OptionError, read_options, stream_options, write_options
from chronik.pipeline.sql.answers import plain
from chronik.pipeline.sql.sampling import SAMPLE_OFFSETS, Sampler
from chronik.pipeline.sql.sql_errors import explain
from chronik.pipeline.sql.topic_views import distinct, mentioned, topics_named
from chronik.pipeline.tables.keeper import TopicProgress
from chronik.pipeline.tables.progress import line_of

WHERE = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}


def test_a_machine_without_java_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaMissing, match=r"Java 17 or newer, and there is no `java` on PATH. Install it with: "):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="JAVA_HOME is"):
        require_java()


def test_a_java_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="is Java 8"):
        require_java()


def test_options_are_read_whatever_the_case_of_their_names() -> None:
    options = read_options(
        {**WHERE, "STARTINGOFFSETS": json.dumps({"a": {"0": -2, "1": 5}}), "failOnDataLoss": "FALSE"}
    )
    assert options.starting is not None
    assert options.starting.offsets == {TopicPartition("a", 0): EARLIEST, TopicPartition("a", 1): 5}
    assert options.ending.offset == LATEST
    assert options.isolation is Isolation.READ_COMMITTED
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minPartitions": "many"}, "minPartitions must be a whole number"),
        ({"minPartitions": "²"}, "minPartitions must be a whole number"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number, 1 or more"),
        ({"startingOffsets": '{"a": {"0": 1.9}}'}, "startingOffsets must look like"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "startingOffsets must look like"),
        ({"startingOffsets": '{"a": {"first": 1}}'}, "startingOffsets must look like"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -7}}'}, "negative timestamp"),
        ({"includeHeaders": "perhaps"}, "includeHeaders must be one of true, false"),
        ({"kafka.isolation.level": "none"}, "must be one of read_committed, read_uncommitted"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "below -2"),
        ({"startingOffsets": '{"a": 5}'}, "must look like"),
        ({"kafka.security.protocol": "SSL"}, "only PLAINTEXT"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "would read nothing"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_options({**WHERE, **given})


@pytest.mark.parametrize("text", ["{}", '{"a": []}', '{"a": "01"}', '{"a": [0.5]}', '{"a": 0}'])
def test_an_assignment_that_names_no_partitions_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="option assign"):
        read_options({"kafka.bootstrap.servers": "h:1", "assign": text})


def test_a_partition_that_is_assigned_twice_is_read_once() -> None:
    options = read_options({"kafka.bootstrap.servers": "h:1", "assign": '{"a": [0, 1, 0]}'})
    assert options.subscription.partitions == (TopicPartition("a", 0), TopicPartition("a", 1))


@pytest.mark.parametrize("name", ["endingOffsets", "EndingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_refuses_an_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} is for batch reads"):
        stream_options({**WHERE, name: "latest"})


def test_a_sink_refuses_what_it_cannot_promise() -> None:
    where = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
    assert write_options({**where, "delivery": "at_least_once"}).acks == -1
    assert write_options({**where, "delivery": "Exactly_Once"}).exactly_once
    with pytest.raises(OptionError, match=r"exactly_once needs kafka\.acks=all"):
        write_options({**where, "delivery": "exactly_once", "kafka.acks": "1"})
    with pytest.raises(OptionError, match="delivery must be one of at_least_once, exactly_once"):
        write_options({**where, "delivery": "at_most_once"})
    with pytest.raises(OptionError, match="not known"):
        write_options({**where, "subscribe": "t"})


@pytest.mark.parametrize("setting", ["true", "TRUE", " true "])
def test_speculation_is_refused_however_spark_lets_it_be_written(setting: str) -> None:
    with pytest.raises(OptionError, match=r"Set spark\.speculation=false for this application, or use delivery"):
        refuse_speculation(setting)


@pytest.mark.parametrize("setting", ["false", "False", None])
def test_an_application_without_speculation_is_not_refused(setting: str | None) -> None:
    refuse_speculation(setting)


def test_filters_become_bounds_that_only_leave_out_what_they_would_drop() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    bounds = bounds_of(
        [
            EqualTo(("partition",), 3),
            GreaterThan(("offset",), 10),
            LessThanOrEqual(("offset",), 20),
            GreaterThanOrEqual(("timestamp",), at),
            LessThan(("timestamp",), at),
            In(("topic",), ("a", "b")),
            Not(EqualTo(("offset",), 15)),
        ]
    )
    assert (bounds.first_offset, bounds.end_offset) == (11, 21)
    assert bounds.partitions == {3} and bounds.topics == {"a", "b"}
    assert bounds.from_timestamp_ms is not None and 0 <= at.timestamp() * 1000 - bounds.from_timestamp_ms <= 2
    assert bounds.admits(TopicPartition("a", 3)) and not bounds.admits(TopicPartition("c", 3))


def test_names_of_tables_are_found_in_a_query_in_or_out_of_backticks() -> None:
    assert {"Orders", "a.b-c", "FROM"} <= mentioned("SELECT x FROM Orders o JOIN `a.b-c` USING (id)")


def test_topics_that_differ_in_case_alone_are_told_apart_as_far_as_sql_can() -> None:
    topics = ["Orders", "orders", "clicks"]
    assert topics_named(topics, {"SELECT", "Orders", "CLICKS"}) == ["clicks", "Orders"]
    for words in ({"ORDERS"}, {"Orders", "orders"}):
        with pytest.raises(ValueError, match="topics Orders and orders differ in nothing but case"):
            topics_named(topics, words)
    assert distinct(topics) == ["Orders", "clicks"]


def test_values_of_an_answer_are_plain() -> None:
    row = Row(a=b"text", b=b"\xff", d=Decimal("1.50"), e=[float("nan")], f=Row(g=None))
    assert [plain(value) for value in row] == [
        "text",
        "base64:/w==",
        "1.50",
        ["nan"],
        {"g": None},
    ]


def test_an_error_of_a_task_is_told_without_the_stack_it_came_with() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 failed\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in read\n'
        "chronik.pipeline.positions.DataLoss: offsets 1 to 2 of t-0 are gone\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\nDriver stacktrace:"
    )
    assert explain(RuntimeError(text)) == "offsets 1 to 2 of t-0 are gone"


def test_a_warehouse_in_an_object_store_is_refused_clearly(tmp_path: Path) -> None:
    assert warehouse_folder(f"file://{tmp_path}") == tmp_path
    with pytest.raises(ValueError, match="not in an object store"):
        warehouse_folder("s3://bucket/warehouse")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="that is a file"):
        warehouse_folder(str(tmp_path / "file"))


def test_a_sample_never_looks_at_the_same_records_twice() -> None:
    sampler = Sampler()
    assert sampler._fresh(0, 0, 10) == [(0, 10)]
    assert sampler._fresh(0, 0, 10) == []
    assert sampler._fresh(0, 5, 15) == [(10, 15)]
    assert sampler._fresh(1, 5, 15) == [(5, 15)]
    assert sampler._fresh(0, 90, 90 + SAMPLE_OFFSETS) == [(90, 90 + SAMPLE_OFFSETS)]


def test_a_sample_takes_in_records_with_numbers_that_no_double_holds() -> None:
    sampler = Sampler()
    sampler._observe([b'{"mass": 1e400, "name": "a"}', b"no json", None])
    assert sampler.columns(pa.schema([])).names == ["name"]


def test_a_line_of_progress_says_what_matters() -> None:
    line = line_of(TopicProgress(topic="t", rows=10, value_bytes=2_000_000, files=2, lag=5, version=3, seconds=2.0))
    assert line == "t: 10 rows, 1.00 MB/s, 2 files, lag 5, table version 3"
    assert "1 dead letters" in line_of(TopicProgress(topic="t", dead_letters=1))
