"""A real Chronik node in a process of its own, for tests: start, wait until ready, stop, kill, pause, resume."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.fault_proxy import FaultProxy
from harness.ports import free_port
from harness.waiting import eventually

READY_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0
FILLER = "filler"
PRIVATE_MOUNTS = ("unshare", "--map-root-user", "--mount")


class NodeProcess:
    """One node. Its addresses stay the same over restarts; everything it writes is under `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        node_id: int = 1,
        voters: str | None = None,
        settings: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        http: bool = False,
        peer_port: int | None = None,
        join: str | None = None,
        disk_bytes: int | None = None,
    ) -> None:
        self.directory = directory
        self.node_id = node_id
        self.kafka_port = free_port()
        self.peer_port = peer_port or free_port()
        self.http_port = free_port() if http else None
        self.log_path = directory / f"node-{node_id}.log"
        self.data_dir = directory / f"node-{node_id}"
        self._voters = voters
        self._join = join
        self._settings = settings or {}
        self._arguments = arguments
        self._disk_bytes = disk_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"

    @property
    def peer(self) -> str:
        """Where other nodes find it."""
        return f"127.0.0.1:{self.peer_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "chronik", "start", "--node-id", str(self.node_id)]
        command += ["--data-dir", str(self.data_dir), "--kafka", self.bootstrap]
        command += ["--peer", self.peer]
        command += ["--http", f"127.0.0.1:{self.http_port}" if self.http_port else "off"]
        if self._voters:
            command += ["--voters", self._voters]
        if self._join:
            command += ["--join", self._join]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return [*self._on_small_disk(), *command, *self._arguments]

    def _on_small_disk(self) -> list[str]:
        """The data folder on a file system of its own, as small as wanted, which needs no privileges: only this process
        sees it, and it is gone with the process."""
        if self._disk_bytes is None:
            return []
        mount = f'mkdir -p "$0" && mount -t tmpfs -o size={self._disk_bytes} tmpfs "$0" && exec "$@"'
        return [*PRIVATE_MOUNTS, "sh", "-c", mount, str(self.data_dir)]

    @property
    def visible_data_dir(self) -> Path:
        """The data folder as the node sees it, also when it is on a file system of its own."""
        if self._disk_bytes is None or not self.running:
            return self.data_dir
        return Path(f"/proc/{self.pid}/root{self.data_dir.absolute()}")

    def fill_disk(self) -> None:
        """Leaves no free byte on the node's small disk."""
        assert self._disk_bytes is not None, "only a disk of its own can be filled"
        with (self.visible_data_dir / FILLER).open("wb", buffering=0) as filler:
            for piece in (1 << 16, 1 << 10, 1):
                try:
                    while filler.write(bytes(piece)):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free_disk(self) -> None:
        (self.visible_data_dir / FILLER).unlink()

    def start(self, *, wait: bool = True) -> NodeProcess:
        assert not self.running, "the node is already running"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""}
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        def ready() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"the node ended with code {self._process.returncode}:\n{self.log_since_start()}")
            return " is ready: " in self.log_since_start()

        eventually(ready, f"node {self.node_id} prints ready", deadline_s)

    def wait_listening(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Until clients are let in, which waits for no other node."""

        def listening() -> bool:
            with socket.create_connection(("127.0.0.1", self.kafka_port), timeout=1.0):
                return True

        eventually(listening, f"node {self.node_id} listens", deadline_s)

    def log_since_start(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Ends the node with SIGTERM and returns its exit code."""
        return self._end(signal.SIGTERM, deadline_s)

    def wait_ended(self, deadline_s: float = READY_DEADLINE_S) -> int:
        """Waits until the node ends by itself and returns its exit code."""
        assert self._process is not None, "the node was not started"
        return self._process.wait(deadline_s)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL, STOP_DEADLINE_S)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, with_signal: signal.Signals, deadline_s: float) -> int:
        assert self._process is not None, "the node was not started"
        if self._process.poll() is None:
            self._process.send_signal(with_signal)
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(
                f"node {self.node_id} still runs {deadline_s} s after {with_signal.name}:\n{self.log_since_start()}"
            ) from None

    def wipe(self) -> None:
        """Loses everything the node had on disk, as a machine does that is set up anew. The node must be down."""
        assert not self.running, "a running node cannot be wiped"
        shutil.rmtree(self.data_dir)

    def restart_with(self, *, voters: str | None = None, join: str | None = None) -> None:
        """From the next start on the node is told this about the cluster."""
        self._voters = voters
        self._join = join

    def advertise_peer(self, address: str) -> None:
        """From the next start on the other nodes are told to find it here."""
        self._arguments = (*self._arguments, "--advertise-peer", address)

    def close(self) -> None:
        """Ends the process whatever state it is in; for fixtures."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def need_private_mounts() -> None:
    """Skips the test, aloud, where the system lets no process have a small disk of its own: nothing else can fill one.

    A full disk is also simulated, everywhere."""
    probe = [*PRIVATE_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    found = shutil.which(probe[0]) is not None
    if not found or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no process have file systems of its own; the simulated disk covers a full disk")


def three_nodes(
    directory: Path,
    settings: dict[str, str] | None = None,
    *,
    http: bool = False,
    network: FaultProxy | None = None,
    small_disk: tuple[int, int] | None = None,
) -> list[NodeProcess]:
    """Three nodes of one cluster, not yet started; with a `network` they reach each other only through it. With
    `small_disk`, a node id and a size, that one has little space."""
    ports = {node_id: free_port() for node_id in (1, 2, 3)}
    known = {node_id: network.front(node_id, port) if network else port for node_id, port in ports.items()}
    voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in known.items())
    return [
        NodeProcess(
            directory,
            node_id=node_id,
            voters=voters,
            settings=settings,
            peer_port=port,
            http=http,
            disk_bytes=small_disk[1] if small_disk is not None and small_disk[0] == node_id else None,
        )
        for node_id, port in ports.items()
    ]
