"""`chronik cluster start`: three nodes by one command, one killed, all stopped by a signal, and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.cli.cluster import administer
from chronik.client.cluster import Cluster
from chronik.client.errors import ClientError
from harness.command import chronik, chronik_json
from harness.ports import free_port
from harness.waiting import eventually

STOP_LIMIT_S = 10.0


class LocalCluster:
    """The command, running in the foreground of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *more: str) -> None:
        command = [sys.executable, "-m", "chronik", "cluster", "start", "--nodes", "3"]
        command += ["--data-dir", str(self.folder), "--port", str(self.port), "--http", "off", *more]
        with self.log.open("wb") as log:
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        eventually(lambda: self.output().count("is ready") >= 3, "three nodes are ready", 60)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_LIMIT_S)

    def pid(self, node_id: int) -> int:
        return int((self.folder / f"node-{node_id}" / "chronik.pid").read_text())


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "cluster")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.terminate()
        made.process.wait(2 * STOP_LIMIT_S)


def _online(local: LocalCluster) -> list[int]:
    """As node 2 says."""
    with Cluster(f"127.0.0.1:{local.port + 1}") as cluster:
        try:
            view = administer(cluster, "status")
        except ClientError as error:
            raise OSError(str(error)) from error
    return [broker["node_id"] for broker in view["brokers"] if broker["status"] == "online"]


def test_a_local_cluster_lives_loses_a_node_stops_and_continues(local: LocalCluster) -> None:
    local.start()
    eventually(lambda: _online(local) == [1, 2, 3], "all nodes are online")
    chronik("topic", "create", "orders", "--partitions", "3", "--bootstrap", local.bootstrap)
    status = chronik_json("cluster", "status", "--bootstrap", local.bootstrap)
    assert {node["node_id"]: node["topics"] for node in status["nodes"]} == {1: 1, 2: 1, 3: 1}
    assert len({node["term"] for node in status["nodes"]}) == 1
    assert "orders" not in chronik("cluster", "status", "--bootstrap", local.bootstrap)
    os.kill(local.pid(3), signal.SIGKILL)
    eventually(lambda: "node-3  was ended by SIGKILL and stays down" in local.output(), "the death is reported")
    eventually(lambda: _online(local) == [1, 2], "the dead node is offline for everybody")
    assert local.stop(signal.SIGINT) == 0
    local.start("--restart")
    eventually(lambda: _online(local) == [1, 2, 3], "the same cluster continues")
    assert [topic["name"] for topic in chronik_json("topic", "list", "--bootstrap", local.bootstrap)] == ["orders"]
    os.kill(local.pid(2), signal.SIGKILL)
    eventually(lambda: local.output().count("is ready") >= 4, "the dead node is started again", 60)
    assert local.stop() == 0


def test_a_taken_port_is_one_clear_line(local: LocalCluster) -> None:
    with socket.create_server(("127.0.0.1", local.port)):
        complaint = chronik("cluster", "start", "--nodes", "1", "--port", str(local.port), "--http", "off", code=2)
    assert str(local.port) in complaint and "in use" in complaint and len(complaint.strip().splitlines()) == 1
