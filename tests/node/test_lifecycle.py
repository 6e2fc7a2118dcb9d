"""Starting and stopping a real node: what it prints, how it ends, what it refuses and how it says so."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chronik.client.cluster import Cluster
from chronik.raft.storage import RaftStorage
from chronik.raft.types import Entry, EntryKind
from harness.clients.kafka_python import KafkaPython
from harness.clients.message import Message
from harness.node_process import NodeProcess
from harness.waiting import eventually

STOP_LIMIT_S = 5.0
REFUSAL_DEADLINE_S = 20.0


def refused(*arguments: str, http: str = "off", environment: dict[str, str] | None = None) -> str:
    """Runs `chronik start` that must not start; returns its one line."""
    result = subprocess.run(
        [sys.executable, "-m", "chronik", "start", "--http", http, *arguments],
        capture_output=True,
        text=True,
        timeout=REFUSAL_DEADLINE_S,
        env=environment,
    )
    assert result.returncode == 2, result
    assert "ready" not in result.stdout
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


def test_the_ready_line_names_the_addresses(fresh_node: NodeProcess) -> None:
    fresh_node.start()
    line = next(line for line in fresh_node.log_since_start().splitlines() if "ready" in line)
    assert fresh_node.bootstrap in line


def test_who_types_the_command_is_told_what_to_do_next(
    fresh_node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = str(Path(sys.executable).with_name("chronik"))
    monkeypatch.setattr(fresh_node, "command", lambda: [typed, *NodeProcess.command(fresh_node)[3:]])
    fresh_node.start()
    told = f"next, in another terminal: {typed} topic create orders --bootstrap {fresh_node.bootstrap}"
    eventually(lambda: told in fresh_node.log_since_start(), "it says what to do next")


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_node_with_code_0_in_time(fresh_node: NodeProcess, with_signal: signal.Signals) -> None:
    fresh_node.start()
    started = time.monotonic()
    assert fresh_node._end(with_signal, STOP_LIMIT_S) == 0
    assert time.monotonic() - started < STOP_LIMIT_S


def test_a_signal_ends_a_node_that_has_no_quorum(tmp_path: Path) -> None:
    lonely = NodeProcess(tmp_path, voters=None)
    lonely._voters = f"1@127.0.0.1:{lonely.peer_port},2@127.0.0.1:1,3@127.0.0.1:2"
    try:
        lonely.start()
        assert lonely.stop(STOP_LIMIT_S) == 0
    finally:
        lonely.close()


def test_a_node_that_nobody_lets_in_says_where_it_asked(tmp_path: Path) -> None:
    joining = NodeProcess(tmp_path, join="127.0.0.1:1")
    try:
        joining.start()
        told = joining.log_since_start()
        assert "nobody answers at 127.0.0.1:1, where this node was told to join" in told
        assert "nobody it was told to join has let it in" in next(x for x in told.splitlines() if "is ready" in x)
    finally:
        joining.close()


RECOVERS_FOR_EVER = """
import sys, threading
from chronik.storage import manager
def load_log(*_):
    print("recovering", flush=True)
    threading.Event().wait()
manager.load_log = load_log
from chronik.__main__ import main
sys.argv[0] = "chronik"
main()
"""


def test_a_signal_ends_a_node_that_is_still_recovering(
    fresh_node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fresh_node.data_dir / "logs" / "large-0").mkdir(parents=True)
    _, _, _, *arguments = fresh_node.command()
    monkeypatch.setattr(fresh_node, "command", lambda: [sys.executable, "-c", RECOVERS_FOR_EVER, *arguments])
    fresh_node.start(wait=False)
    eventually(lambda: "recovering" in fresh_node.log_since_start(), "it recovers")
    assert fresh_node.stop(STOP_LIMIT_S) == 0
    assert "Traceback" not in fresh_node.log_since_start()


LOADS_FOR_EVER = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "cyclopts":
            try:
                print("loading", flush=True)
                signal.pause()
            except BaseException as error:
                print("an import dropped", repr(error), flush=True)
sys.meta_path.insert(0, Finder())
from chronik.__main__ import main
sys.argv[0] = "chronik"
main()
"""


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_node_that_is_still_being_loaded(
    fresh_node: NodeProcess, monkeypatch: pytest.MonkeyPatch, with_signal: signal.Signals
) -> None:
    _, _, _, *arguments = fresh_node.command()
    monkeypatch.setattr(fresh_node, "command", lambda: [sys.executable, "-c", LOADS_FOR_EVER, *arguments])
    fresh_node.start(wait=False)
    eventually(lambda: "loading" in fresh_node.log_since_start(), "it is being loaded")
    assert fresh_node._end(with_signal, STOP_LIMIT_S) == 0
    assert fresh_node.log_since_start() == "loading\n"


TELLS_WHO_IMPORTS_HTTP = """
import sys, threading
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "uvicorn":
            own = threading.current_thread() is threading.main_thread()
            print("uvicorn is imported by the", "loop" if own else "side", flush=True)
sys.meta_path.insert(0, Finder())
from chronik.__main__ import main
sys.argv[0] = "chronik"
main()
"""


def test_the_loop_goes_on_while_the_http_side_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it not so, a leader that starts would be silent for long enough to be replaced."""
    node = NodeProcess(tmp_path, http=True)
    _, _, _, *arguments = node.command()
    monkeypatch.setattr(node, "command", lambda: [sys.executable, "-c", TELLS_WHO_IMPORTS_HTTP, *arguments])
    try:
        node.start()
        eventually(lambda: "uvicorn is imported" in node.log_since_start(), "HTTP is loaded")
        assert "uvicorn is imported by the loop" not in node.log_since_start()
    finally:
        node.close()


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused("--data-dir", str(tmp_path / "d"), "--kafka", f"127.0.0.1:{port}", "--peer", "127.0.0.1:0")
    assert str(port) in line and "in use" in line


def test_an_http_port_in_use_is_one_clear_line_and_nothing_was_ready(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        addresses = ("--kafka", "127.0.0.1:0", "--peer", "127.0.0.1:0")
        line = refused("--data-dir", str(tmp_path / "d"), *addresses, http=f"127.0.0.1:{port}")
    assert str(port) in line and "--http" in line


def test_a_locked_data_folder_is_one_clear_line(fresh_node: NodeProcess) -> None:
    fresh_node.start()
    line = refused("--data-dir", str(fresh_node.data_dir), "--kafka", "127.0.0.1:0", "--peer", "127.0.0.1:0")
    assert str(fresh_node.data_dir) in line and str(fresh_node.pid) in line


def test_a_consensus_log_of_a_newer_version_is_one_clear_line_and_stays_as_it_is(fresh_node: NodeProcess) -> None:
    fresh_node.start().stop()
    (path,) = (fresh_node.data_dir / "metadata").glob("wal-*.log")
    newer = path.read_bytes() + b"2LRC" + bytes(60)
    path.write_bytes(newer)
    line = refused("--data-dir", str(fresh_node.data_dir), "--kafka", fresh_node.bootstrap, "--peer", fresh_node.peer)
    assert "newer Chronik" in line and "start this node with the newer version" in line
    assert path.read_bytes() == newer


def test_a_command_of_a_newer_version_ends_the_node_with_an_error_that_says_so(fresh_node: NodeProcess) -> None:
    fresh_node.start().stop()
    storage = RaftStorage(fresh_node.data_dir / "metadata")
    last = storage.open().entries[-1]
    storage.save([Entry(last.term, last.index + 1, EntryKind.DATA, b"\x01\x81\xa1c\xa6future")], None, sync=True)
    storage.close()
    fresh_node.start(wait=False)
    assert fresh_node.wait_ended() == 1
    line = fresh_node.log_since_start().strip().splitlines()[-1]
    assert line.startswith("chronik: ") and "upgrade this node" in line


def test_an_unknown_broker_setting_is_one_clear_line(tmp_path: Path) -> None:
    line = refused("--data-dir", str(tmp_path / "d"), "--kafka", "127.0.0.1:0", "--set", "num.partitons=3")
    assert "num.partitons" in line


def test_a_bad_value_of_a_broker_setting_is_one_clear_line(tmp_path: Path) -> None:
    line = refused("--data-dir", str(tmp_path / "d"), "--kafka", "127.0.0.1:0", "--set", "num.partitions=many")
    assert "num.partitions" in line and "many" in line


def test_advertising_every_interface_is_refused(tmp_path: Path) -> None:
    assert "advertise" in refused("--data-dir", str(tmp_path / "d"), "--kafka", "0.0.0.0:0")


@pytest.mark.parametrize(
    ("advertise", "host"), [("localhost", "localhost"), ("localhost:{port}", "localhost"), ("[::1]:{port}", "::1")]
)
def test_an_advertised_address_reaches_clients_as_given(tmp_path: Path, advertise: str, host: str) -> None:
    made = NodeProcess(tmp_path)
    made._arguments = ("--advertise", advertise.format(port=made.kafka_port))
    try:
        made.start()
        with Cluster(made.bootstrap) as cluster:
            broker = cluster.refresh().brokers[1]
        assert (broker.host, broker.port) == (host, made.kafka_port)
    finally:
        made.close()


def test_everything_acknowledged_is_there_after_kill_9_and_restart(fresh_node: NodeProcess) -> None:
    fresh_node.start()
    client = KafkaPython(fresh_node.bootstrap)
    client.create_topic("kept", 3, 1, {"retention.ms": "12345678"})
    sent = {partition: [Message(f"{partition}-{n}".encode()) for n in range(500)] for partition in range(3)}
    for partition, messages in sent.items():
        client.produce("kept", partition, messages, "none")
    fresh_node.kill()
    fresh_node.start()
    assert client.config("kept", "retention.ms") == "12345678"
    for partition, messages in sent.items():
        assert [m.value for m in client.consume("kept", partition, 0, 500)] == [m.value for m in messages]
        assert client.end_offset("kept", partition) == 500


def test_a_topic_keeps_its_id_over_a_restart_and_gets_a_new_one_when_made_again(fresh_node: NodeProcess) -> None:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient

    def topic_id() -> str:
        admin = AdminClient({"bootstrap.servers": fresh_node.bootstrap})
        described = admin.describe_topics(TopicCollection(["named"]))["named"].result(20)
        return str(described.topic_id)

    fresh_node.start()
    client = KafkaPython(fresh_node.bootstrap)
    client.create_topic("named", 1, 1, {})
    client.produce("named", 0, [Message(b"old")], "none")
    first = topic_id()
    assert fresh_node.stop() == 0
    fresh_node.start()
    assert topic_id() == first
    client.delete_topic("named")
    client.create_topic("named", 1, 1, {})
    assert topic_id() != first
    assert client.end_offset("named", 0) == 0


def test_the_version_command_prints_the_version() -> None:
    printed = subprocess.run([sys.executable, "-m", "chronik", "version"], capture_output=True, text=True, timeout=20)
    assert re.match(r"chronik \d+\.\d+\.\d+", printed.stdout)
