"""Runs the nodes of a local cluster as child processes and merges their logs: what `chronik cluster start` does.

A child is a real `chronik start`. One that dies is reported and left dead, or revived with `--restart`; the others go
on. A signal stops all of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

PEER_PORT_STEP = 100
HTTP_PORT_STEP = 200
STOP_DEADLINE_S = 8.0
RESTART_DELAY_S = 1.0
LINE_BYTES_MAX = 1024 * 1024
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
PR_SET_PDEATHSIG = 1


class LocalNode(msgspec.Struct, frozen=True):
    """Where one node of a local cluster lives."""

    node_id: int
    kafka_port: int
    peer_port: int
    http_port: int | None
    data_dir: Path

    @property
    def ports(self) -> list[int]:
        return [port for port in (self.kafka_port, self.peer_port, self.http_port) if port is not None]


def plan(nodes: int, data_dir: Path, port: int, *, http: bool) -> list[LocalNode]:
    """Ids 1…N; Kafka on PORT, PORT+1, …, peers and HTTP a fixed step above."""
    return [
        LocalNode(
            node_id=index + 1,
            kafka_port=port + index,
            peer_port=port + PEER_PORT_STEP + index,
            http_port=port + HTTP_PORT_STEP + index if http else None,
            data_dir=data_dir / f"node-{index + 1}",
        )
        for index in range(nodes)
    ]


def taken_ports(nodes: list[LocalNode]) -> list[int]:
    """Which of the planned ports somebody else listens on."""
    taken: list[int] = []
    for port in (port for node in nodes for port in node.ports):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken.append(port)
    return taken


def node_command(node: LocalNode, nodes: list[LocalNode], settings: tuple[str, ...], log_level: str) -> list[str]:
    """The command line of one child."""
    voters = ",".join(f"{member.node_id}@127.0.0.1:{member.peer_port}" for member in nodes)
    command = [sys.executable, "-m", "chronik", "start", "--node-id", str(node.node_id)]
    command += ["--data-dir", str(node.data_dir), "--kafka", f"127.0.0.1:{node.kafka_port}"]
    command += ["--peer", f"127.0.0.1:{node.peer_port}", "--voters", voters, "--log-level", log_level]
    command += ["--http", f"127.0.0.1:{node.http_port}" if node.http_port else "off"]
    for setting in settings:
        command += ["--set", setting]
    return command


def _end_with_parent() -> None:
    """In the child, before it becomes a node: should the supervisor be killed, the kernel stops the node."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """Runs the children until a signal, or until none is left."""

    def __init__(self, nodes: list[LocalNode], command: Callable[[LocalNode], list[str]], *, restart: bool) -> None:
        self._nodes = nodes
        self._command = command
        self._restart = restart
        self._console = Console(highlight=False, soft_wrap=True)
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Returns the exit code: 0 after a signal, 1 when every node died by itself."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        keepers = [asyncio.create_task(self._keep(node)) for node in self._nodes]
        stopped: asyncio.Future[Any] = asyncio.create_task(self._stopping.wait())
        all_ended: asyncio.Future[Any] = asyncio.gather(*keepers)
        await asyncio.wait([stopped, all_ended], return_when=asyncio.FIRST_COMPLETED)
        if not self._stopping.is_set():
            self._say(None, "every node has ended; nothing is left to run")
            stopped.cancel()
            return 1
        self._say(None, "stopping")
        await self._stop_children()
        await asyncio.wait(keepers, timeout=1.0)
        return 0

    async def _keep(self, node: LocalNode) -> None:
        while not self._stopping.is_set():
            code = await self._run_once(node)
            if self._stopping.is_set():
                return
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            if not self._restart:
                self._say(node, f"{how} and stays down; the others go on")
                return
            self._say(node, f"{how}; starting it again in {RESTART_DELAY_S:g} s")
            await asyncio.sleep(RESTART_DELAY_S)

    async def _run_once(self, node: LocalNode) -> int:
        child = await asyncio.create_subprocess_exec(
            *self._command(node),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
            limit=LINE_BYTES_MAX,
        )
        self._children[node.node_id] = child
        assert child.stdout is not None
        while True:
            try:
                line = await child.stdout.readline()
            except ValueError:
                continue  # a line over LINE_BYTES_MAX was dropped by the reader
            if not line:
                break
            self._say(node, line.decode(errors="replace").rstrip("\n"))
        code = await child.wait()
        del self._children[node.node_id]
        return code

    async def _stop_children(self) -> None:
        for child in list(self._children.values()):
            _signal(child, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + STOP_DEADLINE_S
        while self._children and asyncio.get_running_loop().time() < deadline:
            await asyncio.wait([asyncio.create_task(child.wait()) for child in self._children.values()], timeout=0.1)
        for node_id, child in list(self._children.items()):
            self._say(None, f"node {node_id} did not stop within {STOP_DEADLINE_S:g} s; killing it")
            _signal(child, signal.SIGKILL)

    def _say(self, node: LocalNode | None, text: str) -> None:
        name = f"node-{node.node_id}" if node is not None else "cluster"
        colour = COLOURS[(node.node_id - 1) % len(COLOURS)] if node is not None else "bold"
        self._console.print(Text.assemble((f"{name:<8}", colour), Text.from_ansi(text)))


def _signal(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        child.send_signal(number)
    except ProcessLookupError:
        pass  # it has ended in the meantime, which is what the signal is for
