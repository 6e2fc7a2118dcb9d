"""The engine of SQL and those who ask it, without Spark: which process is it, who has left, what is shown."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types

from chronik.client.errors import ClientError
from chronik.pipeline.positions import QUERY_REMEDY, DataLoss
from chronik.pipeline.spark_session import chosen_master
from chronik.pipeline.sql import caller_watch, live_reader, process_identity, topic_views
from chronik.pipeline.sql.answers import shown_type
from chronik.pipeline.sql.caller_watch import cancelled_if_left
from chronik.pipeline.sql.connect_server import check_port
from chronik.pipeline.sql.engine_client import FAILURE, STATE, EngineClient, EngineMissing, EngineState, Wanted
from chronik.pipeline.sql.live_reader import LivePart, LiveReader
from chronik.pipeline.sql.process_identity import UNKNOWN, identity_of
from chronik.pipeline.sql.sql_errors import explain
from chronik.pipeline.sql.statements import is_complete, statements
from chronik.pipeline.sql.topic_views import alike_in_case, refuse_changes, topics_named, unquoted
from chronik.pipeline.tables.layout import schema_to_text
from chronik.pipeline.transforms import OLD_CHECKPOINTS, checkpoints
from harness.waiting import eventually

DEADLINE_S = 30.0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any engine."""
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineClient:
    monkeypatch.setenv("CHRONIK_ENGINES", str(tmp_path))
    made = EngineClient(Wanted("h:1", str(tmp_path), "local[1]"))
    made.folder.mkdir(parents=True)
    return made


def write_state(client: EngineClient, pid: int, identity: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # nobody listens there any more
    state = EngineState(pid, port, 0, "token", identity)
    (client.folder / STATE).write_bytes(msgspec.json.encode(state))


WAYS_TO_TELL = [
    way for way, there in (("/proc", Path("/proc/self/stat").exists()), ("ps", shutil.which("ps") is not None)) if there
]
"""Those that this machine has: Linux in a container may have no ps, macOS has no /proc."""


@pytest.mark.parametrize("way", WAYS_TO_TELL)
def test_a_process_is_told_from_others_and_from_one_that_has_ended(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    if way == "ps":
        monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    known = identity_of(process.pid)
    assert known and known == identity_of(process.pid)
    assert way == "ps" or known != identity_of(os.getpid()), "ps tells seconds, in which both may have begun"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert identity_of(process.pid) is None, "it has ended, though nobody has taken notice of it"
    process.wait()
    assert identity_of(process.pid) is None


def test_a_machine_that_cannot_tell_when_a_process_began_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert identity_of(os.getpid()) == UNKNOWN


def test_a_process_that_got_the_number_of_an_engine_is_not_taken_for_it(
    client: EngineClient, process: subprocess.Popen[bytes]
) -> None:
    write_state(client, process.pid, "began at another time")
    assert client.state() is None
    assert client.stop() is False
    assert process.poll() is None, "it was left alone"


def test_an_engine_that_does_not_answer_is_ended_if_it_is_certain_to_be_the_engine(
    client: EngineClient, process: subprocess.Popen[bytes]
) -> None:
    identity = identity_of(process.pid)
    assert identity
    write_state(client, process.pid, identity)
    assert client.stop() is True
    assert process.wait(DEADLINE_S) == -signal.SIGTERM


def test_an_engine_that_does_not_answer_and_may_be_another_process_is_left_to_the_person(
    client: EngineClient, process: subprocess.Popen[bytes]
) -> None:
    write_state(client, process.pid, UNKNOWN)
    with pytest.raises(EngineMissing, match=f"process {process.pid} may be another by now"):
        client.stop()
    assert process.poll() is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CHRONIK_ENGINES", str(tmp_path / "file"))
    with pytest.raises(EngineMissing, match="Set CHRONIK_ENGINES"):
        EngineClient(Wanted("h:1", str(tmp_path), "local[1]")).query("SELECT 1")


def test_a_port_that_cannot_be_listened_on_is_named_before_spark_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        with pytest.raises(ClientError, match=f"port {taken} cannot be listened on: Address already in use"):
            check_port(taken)
    check_port(taken)
    for none in (0, -1, 65_536):
        with pytest.raises(ClientError, match="ports are from 1"):
            check_port(none)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield mine, theirs


def test_a_query_is_cancelled_until_it_ends_once_its_caller_has_left(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_watch, "CANCEL_EVERY_S", 0.01)
    mine, theirs = pair
    calls: list[None] = []
    threads = threading.active_count()
    with cancelled_if_left(mine, lambda: calls.append(None)) as left:
        assert not left()
        theirs.close()
        eventually(lambda: len(calls) > 2, "it is cancelled again and again", DEADLINE_S)
        assert left()
    assert threading.active_count() == threads, "nobody is there who would cancel what comes next"


def test_a_query_whose_caller_stays_is_not_cancelled(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = pair
    calls: list[None] = []
    with cancelled_if_left(mine, lambda: calls.append(None)) as left:
        theirs.sendall(b"says something that nobody asked for")
    assert not calls and not left()
    mine.sendall(b"the end")
    assert theirs.recv(100) == b"the end"


def test_statements_are_where_they_are_in_the_script() -> None:
    script = 'SELECT \';\' AS a; -- a comment; as such\nSELECT `x;y` FROM t /* ;\n; */ WHERE b = "\\";";\n\n; SELECT 3'
    first, second, third = statements(script)
    assert first == "SELECT ';' AS a"
    assert [line.rstrip() for line in second.split("\n")] == ["", "SELECT `x;y` FROM t", '     WHERE b = "\\";"']
    assert third == "\n\n\n\n  SELECT 3"
    hint = "SELECT/**/1; SELECT /*+ BROADCAST(t) */ 2"
    assert [one.strip() for one in statements(hint)] == ["SELECT    1", "SELECT /*+ BROADCAST(t) */ 2"]
    assert statements(" ; -- nothing\n;") == []


def test_a_script_is_complete_when_its_last_statement_is() -> None:
    assert is_complete("SELECT 1;") and is_complete("SELECT ';'; SELECT 2 ; -- and so on\n")
    for script in ("", "SELECT 1", "SELECT ';", "SELECT 1 /* ;", "SELECT 1 -- ;", 'SELECT ";\n'):
        assert not is_complete(script), script


def test_an_error_shows_the_lines_that_lead_to_it_and_no_others() -> None:
    query = "\n".join(["", "", *(f"  column_{n}," for n in range(20)), "FRM t"])
    text = f"[PARSE_SYNTAX_ERROR] Syntax error at or near 't'. (line 23, pos 4)\n\n== SQL ==\n{query}\n----^^^\n"
    assert explain(RuntimeError(text)).splitlines() == [
        "[PARSE_SYNTAX_ERROR] Syntax error at or near 't'. (line 23, pos 4)",
        "== SQL ==",
        "  column_18,",
        "  column_19,",
        "FRM t",
        "----^^^",
    ]


def test_what_python_cannot_hold_is_sent_as_text_wherever_it_is() -> None:
    inner = types.StructType([types.StructField("at", types.TimestampType()), types.StructField("n", types.LongType())])
    nested = types.MapType(types.DateType(), types.ArrayType(inner))
    assert shown_type(nested).simpleString() == "map<string,array<struct<at:string,n:bigint>>>"
    for kept in (types.DecimalType(20, 2), types.DoubleType(), types.BinaryType(), types.BooleanType()):
        assert shown_type(kept) == kept
    assert shown_type(types.DayTimeIntervalType()) == types.StringType()


def test_dead_letters_and_topics_of_like_names_are_told_apart_or_refused() -> None:
    names = {"orders", "Orders", "orders__dead_letter", "Orders__dead_letter"}
    assert topics_named(names, {"FROM", "orders__dead_letter"}) == ["orders__dead_letter"]
    with pytest.raises(ValueError, match="differ in nothing but case"):
        topics_named(names, {"ORDERS__DEAD_LETTER"})
    (told,) = alike_in_case(["orders", "Orders", "clicks"])
    assert told.startswith("topic orders is left out beside Orders")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE orders",
        "drop view if exists `a-b`",
        "INSERT INTO Orders VALUES (1)",
        "\n INSERT OVERWRITE TABLE orders SELECT 1",
        "CREATE OR REPLACE TEMP VIEW orders AS SELECT 1",
        "DELETE FROM orders WHERE n = 1",
        "UPDATE orders SET n = 1",
    ],
)
def test_a_statement_that_would_change_a_topic_is_refused(statement: str) -> None:
    with pytest.raises(ValueError, match="is a topic, and SQL reads topics without changing them"):
        refuse_changes(["orders", "a-b"], statement)


def test_views_of_a_persons_own_may_be_made_from_topics() -> None:
    for statement in ("CREATE TEMP VIEW mine AS SELECT * FROM orders", "DROP VIEW mine", "SELECT 'DROP TABLE orders'"):
        refuse_changes(["orders"], statement)


@pytest.mark.parametrize("master", ["foo", "local[0]", "local[]", "spark://", "localhost", "http://h:1"])
def test_a_master_that_spark_does_not_know_is_refused_before_spark_is_started(master: str) -> None:
    with pytest.raises(ValueError, match=r"Spark runs on local\[\*\] or"):
        chosen_master(master)


def test_the_master_is_the_given_one_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONIK_SPARK_MASTER", raising=False)
    assert chosen_master(None) == "local[*]"
    monkeypatch.setenv("CHRONIK_SPARK_MASTER", "yarn")
    assert chosen_master(None) == "yarn"
    for master in (
        "local",
        "local[4]",
        "local[2, 3]",
        "local-cluster[2,1,1024]",
        "spark://h:7077",
        "k8s://https://h:1",
    ):
        assert chosen_master(master) == master


def test_a_failure_of_java_is_told_by_what_it_comes_from() -> None:
    text = (
        "An error occurred while calling o52.getResult.\n: org.apache.spark.SparkException: Exception thrown in "
        "awaitResult: \n\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)\n"
        "Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n"
        "== SQL (line 1, position 8) ==\nSELECT 1/(id-id) FROM range(1)\n       ^^^^^^^^^\n\n\tat org.apache.spark.x\n"
    )
    assert explain(RuntimeError(text)).splitlines() == [
        "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
        "== SQL (line 1, position 8) ==",
        "SELECT 1/(id-id) FROM range(1)",
        "       ^^^^^^^^^",
    ]
    text = (
        "An error occurred while calling None.X.\n: org.apache.spark.SparkException: Asked for 0 threads\n\tat org.x\n"
    )
    assert explain(RuntimeError(text)) == "Asked for 0 threads"


def test_a_table_that_is_not_there_is_told_in_one_line() -> None:
    text = (
        "[TABLE_OR_VIEW_NOT_FOUND] The table or view `nosuch` cannot be found. Verify the name.\nSearch path: [`x`].\n"
        "To tolerate the error on drop use DROP VIEW IF EXISTS. SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]\n"
    )
    told = explain(RuntimeError(text))
    assert told == "[TABLE_OR_VIEW_NOT_FOUND] There is no topic, table or view `nosuch`; line 1 pos 14"


def test_an_engine_that_cannot_start_says_why(client: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = f"import pathlib, sys; pathlib.Path(r'{client.folder}', '{FAILURE}').write_text('no memory'); sys.exit(1)"
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: popen([sys.executable, "-c", failing], **options))
    with pytest.raises(EngineMissing, match="Spark could not be started: no memory\nMore is in the log"):
        client.start()


def test_a_topic_that_lacks_its_backticks_is_found() -> None:
    topics = ["a.b", "x-y", "plain", "a.b.c"]
    assert unquoted(topics, "SELECT * FROM A.b JOIN plain") == ["a.b"]
    assert unquoted(topics, "SELECT * FROM `a.b` JOIN `x-y`, a.b.c") == ["a.b.c"]


def test_checkpoints_are_where_no_topic_can_be(tmp_path: Path) -> None:
    folder = Path(checkpoints(tmp_path, Path("jobs/clicks.py"))("sessions"))
    assert folder.is_dir() and folder.parts[-2:] == ("clicks", "sessions")
    in_the_warehouse = folder.relative_to(tmp_path).parts[0]
    assert not re.fullmatch(r"[a-zA-Z0-9._-]+", in_the_warehouse), "the characters of names of topics"


def test_a_checkpoint_from_where_checkpoints_were_before_is_brought_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = checkpoints(tmp_path, Path("clicks.py"))
    before = tmp_path / OLD_CHECKPOINTS / "clicks"
    for name in ("sessions", "no checkpoint"):
        (before / name).mkdir(parents=True)
    (before / "sessions" / "metadata").write_text('{"id":"7"}')
    new = Path(checkpoint("sessions"))
    assert (new / "metadata").read_text() == '{"id":"7"}' and not (before / "sessions").exists()
    assert f"to {new}" in capsys.readouterr().err
    assert not list(Path(checkpoint("no checkpoint")).iterdir()) and (before / "no checkpoint").exists()
    (new / "offsets").mkdir()
    assert checkpoint("sessions") == str(new) and (new / "offsets").exists()


@pytest.mark.parametrize("name", ["", "..", "a/../../b", "/tmp", "a//b"])
def test_a_checkpoint_outside_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="needs a name"):
        checkpoints(tmp_path, Path("clicks.py"))(name)


def test_a_query_that_lost_offsets_while_they_were_read_says_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise DataLoss("offsets 1 to 2 of t-0 are not there")

    monkeypatch.setattr(live_reader, "Cluster", nullcontext)
    monkeypatch.setattr(live_reader, "read_ranges", gone)
    part = LivePart("h:1", "t", "00", "string", "skip", schema_to_text(pa.schema([])), False, [(0, 1, 3)])
    reader = LiveReader(part)
    (task,) = reader.partitions()
    with pytest.raises(DataLoss, match=r"are not there\. Ask again"):
        list(reader.read(task))


def test_a_query_whose_topic_was_made_anew_since_it_was_planned_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(topic=lambda name: SimpleNamespace(topic_id=bytes(15) + b"1"))
    monkeypatch.setattr(live_reader, "Cluster", lambda _: nullcontext(other))
    monkeypatch.setattr(live_reader, "read_ranges", lambda *_, **__: iter(()))
    typed = schema_to_text(pa.schema([]))
    reader = LiveReader(LivePart("h:1", "t", (bytes(15) + b"0").hex(), "string", "skip", typed, False, [(0, 1, 3)]))
    (task,) = reader.partitions()
    with pytest.raises(ClientError, match="made anew since this was planned"):
        list(reader.read(task))
    same = LiveReader(LivePart("h:1", "t", (bytes(15) + b"1").hex(), "string", "skip", typed, False, [(0, 1, 3)]))
    assert list(same.read(task)) == []


def test_offsets_that_retention_took_before_they_landed_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a partition of which nothing has landed, if others have: the table does not begin with it."""
    monkeypatch.setattr(topic_views, "earliest", lambda _, places: dict.fromkeys(places, 5))
    monkeypatch.setattr(topic_views, "latest", lambda _, places, __: dict.fromkeys(places, 9))
    settings = SimpleNamespace(topic="t", partitions=[0, 1, 2])
    views = topic_views.TopicViews.__new__(topic_views.TopicViews)
    views.cluster = None  # type: ignore[assignment]

    def told(positions: dict[int, int]) -> tuple[list[tuple[int, int]], list[str]]:
        ranges, warnings = views._live_ranges(settings, SimpleNamespace(stored=positions.get))  # type: ignore[arg-type]
        return [(piece.start, piece.end) for piece in ranges], [text.partition(" were ")[0] for text in warnings]

    assert told({}) == ([(5, 9)] * 3, [])
    assert told({0: 7, 1: 3}) == ([(7, 9), (5, 9), (5, 9)], ["offsets 3 to 4 of t-1", "offsets 0 to 4 of t-2"])


def test_lost_offsets_are_told_with_what_helps_the_one_who_reads() -> None:
    error = DataLoss("offsets 1 to 2 of t-0 are not there", QUERY_REMEDY)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == f"offsets 1 to 2 of t-0 are not there. {QUERY_REMEDY}"
    assert "failOnDataLoss" in str(DataLoss("offsets 1 to 2 of t-0 are not there"))
