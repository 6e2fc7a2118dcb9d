"""How fast the cluster agrees: `python -m chronik.bench.consensus` starts real nodes on loopback and prints figures.

Proposals are changes of a topic's settings, sent over Kafka connections: one at a time on one connection, then by many
connections at once, which share appends and syncs, on one node and on three. Then: how long three nodes take from
their start to the same metadata on all of them; and, after kill -9 of the controller, how long until both survivors
name a new one, and until metadata can be written again. With `--into FILE` the figures become the newest section of
that page. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from chronik import __version__
from chronik.bench.machine import this_machine
from chronik.cli.supervisor import LocalNode, node_command, plan, taken_ports
from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster, ClusterSettings
from chronik.client.connection import Connection
from chronik.client.errors import ClientError
from chronik.client.retry import RetryPolicy
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.administer import AdministerRequest, AdministerResponse
from chronik.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalConfigsResource,
)

FIRST_PORT = 23_000
SECONDS = 3.0
FAILOVERS = 5
NEWEST = "<!-- the newest run comes here -->\n"
CONNECTIONS = 64
START_DEADLINE_S = 30.0
LOOK_EVERY_S = 0.005
"""How often nodes are asked what they know, which is how exact the times are."""
TOPIC_RESOURCE = 2


@contextmanager
def running(
    nodes: int, folder: Path, output: int = subprocess.DEVNULL
) -> Iterator[tuple[list[LocalNode], list[subprocess.Popen[bytes]]]]:
    """Real nodes, as child processes, killed at the end."""
    port = FIRST_PORT
    members = plan(nodes, folder, port, http=False)
    while taken_ports(members):
        port += 10
        members = plan(nodes, folder, port, http=False)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    children = [
        subprocess.Popen(
            node_command(member, members, (), "error"),
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        for member in members
    ]
    try:
        yield members, children
    finally:
        for child in children:
            child.kill()
            child.wait()


def view(node: LocalNode) -> dict[str, Any] | None:
    """What one node says of the cluster; None while it does not answer."""
    try:
        connection = Connection("127.0.0.1", node.kafka_port)
    except ClientError:
        return None
    try:
        answer = connection.call(AdministerRequest(action="status"), AdministerResponse)
        return None if answer.error_code else msgspec.json.decode(answer.result, type=dict[str, Any])
    except ClientError:
        return None
    finally:
        connection.close()


def wait_until_agreed(nodes: list[LocalNode]) -> float:
    """Seconds until every node names the same controller and the same brokers, all online."""
    started = time.monotonic()
    wanted = [node.node_id for node in nodes]
    while time.monotonic() - started < START_DEADLINE_S:
        views = [view(node) for node in nodes]
        if all(
            found is not None
            and found["controller"]
            and found["controller"] == (views[0] or {}).get("controller")
            and [b["node_id"] for b in found["brokers"] if b["status"] == "online"] == wanted
            for found in views
        ):
            return time.monotonic() - started
        time.sleep(LOOK_EVERY_S)
    raise SystemExit("the nodes did not agree in time; is the machine overloaded?")


def change(number: int) -> IncrementalAlterConfigsRequest:
    setting = IncrementalConfig(name="retention.ms", config_operation=0, value=str(3_600_000 + number))
    resource = IncrementalConfigsResource(resource_type=TOPIC_RESOURCE, resource_name="bench", configs=[setting])
    return IncrementalAlterConfigsRequest(resources=[resource])


def propose(node: LocalNode, connections: int, seconds: float) -> float:
    """Proposals per second by so many connections at once, each with one proposal under way."""
    counts = [0] * connections
    until = time.monotonic() + seconds

    def work(worker: int) -> None:
        connection = Connection("127.0.0.1", node.kafka_port)
        while time.monotonic() < until:
            answer = connection.call(change(worker + counts[worker]), IncrementalAlterConfigsResponse)
            if answer.responses[0].error_code:
                raise SystemExit(f"a proposal failed: {answer.responses[0].error_message}")
            counts[worker] += 1
        connection.close()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(connections)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - started)


class Figures:
    """What was measured, printed as it comes."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def add(self, what: str, figure: str) -> None:
        self.rows.append((what, figure))
        print(f"{what}: {figure}", flush=True)

    def add_times(self, what: str, times: list[float]) -> None:
        listed = f" ({min(times):.2f} to {max(times):.2f} s in {len(times)} runs)" if len(times) > 1 else ""
        self.add(what, f"{statistics.median(times):.2f} s{listed}")


def measure_proposals(nodes: int, seconds: float, figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder, running(nodes, Path(folder)) as (members, _):
        wait_until_agreed(members)
        with Cluster(f"127.0.0.1:{members[0].kafka_port}") as cluster:
            create_topic(cluster, "bench", partitions=1)
        for where, node in (("the controller", _controller(members)), ("another node", _other(members))):
            if node is None:
                continue
            through = f"{nodes} nodes, through {where}" if nodes > 1 else "1 node"
            alone = propose(node, 1, seconds)
            figures.add(f"{through}, one at a time", f"{alone:,.0f} proposals/s ({1000 / alone:.2f} ms each)")
            together = propose(node, CONNECTIONS, seconds)
            figures.add(f"{through}, batched ({CONNECTIONS} connections)", f"{together:,.0f} proposals/s")


def _controller(members: list[LocalNode]) -> LocalNode:
    found = view(members[0]) or {}
    return next(member for member in members if member.node_id == found.get("controller"))


def _other(members: list[LocalNode]) -> LocalNode | None:
    controller = _controller(members)
    return next((member for member in members if member is not controller), None)


def measure_start(times: int, figures: Figures) -> None:
    """A new node alone, from starting its process until it says that it is ready."""
    taken = []
    for _ in range(times):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, running(1, Path(folder), subprocess.PIPE) as (_, (child,)):
            assert child.stdout is not None
            if not any(b"is ready" in line for line in child.stdout):
                raise SystemExit("the node ended before it was ready")
            taken.append(time.monotonic() - started)
    figures.add_times("start of one node until it is ready", taken)


def measure_failover(times: int, figures: Figures) -> None:
    starts: list[float] = []
    controllers: list[float] = []
    writes: list[float] = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            with running(3, Path(folder)) as (members, children):
                wait_until_agreed(members)
                starts.append(time.monotonic() - started)
                controller = _controller(members)
                survivors = [member for member in members if member is not controller]
                os.kill(children[controller.node_id - 1].pid, signal.SIGKILL)
                killed = time.monotonic()
                writing = threading.Thread(target=_until_written, args=(survivors[0], killed, writes))
                writing.start()
                controllers.append(_until_replaced(survivors, controller.node_id, killed))
                writing.join()
    figures.add_times("start of three nodes to the same metadata on all", starts)
    figures.add_times("kill -9 of the controller to a new one, as both survivors say", controllers)
    figures.add_times("kill -9 of the controller to the next metadata write", writes)


def _until_replaced(survivors: list[LocalNode], before: int, killed: float) -> float:
    while time.monotonic() - killed < START_DEADLINE_S:
        named = {(view(node) or {}).get("controller") for node in survivors}
        if len(named) == 1 and not named & {None, 0, before}:
            return time.monotonic() - killed
        time.sleep(LOOK_EVERY_S)
    raise SystemExit("no new controller was elected in time; is the machine overloaded?")


def _until_written(node: LocalNode, killed: float, writes: list[float]) -> None:
    once = ClusterSettings(retry=RetryPolicy(timeout_s=0.05))
    while True:
        try:
            with Cluster(f"127.0.0.1:{node.kafka_port}", once) as cluster:
                create_topic(cluster, f"after-{time.monotonic_ns()}", partitions=1, replication_factor=1)
            writes.append(time.monotonic() - killed)
            return
        except (ClientError, KafkaError):
            if time.monotonic() - killed > START_DEADLINE_S:
                raise


def section(title: str, machine: str, rows: list[tuple[str, str]]) -> str:
    """One run, for a page of results."""
    lines = [f"## {title}", "", f"- Machine: {machine}", f"- Chronik {__version__}", ""]
    lines += ["| What | Figure |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows), ""]
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m chronik.bench.consensus", description="How fast nodes agree.")
    options.add_argument("--seconds", type=float, default=SECONDS, help="for each measurement of proposals")
    options.add_argument("--failovers", type=int, default=FAILOVERS, help="how often the controller is killed")
    options.add_argument("--into", type=Path, help="a Markdown page that gets the figures as its newest section")
    chosen = options.parse_args()
    page = chosen.into.read_text() if chosen.into else NEWEST
    if NEWEST not in page:
        raise SystemExit(f"{chosen.into} has no line '{NEWEST.strip()}' to put the figures after")
    machine, figures = str(this_machine()), Figures()
    print(machine)
    measure_start(chosen.failovers, figures)
    for nodes in (1, 3):
        measure_proposals(nodes, chosen.seconds, figures)
    measure_failover(chosen.failovers, figures)
    if chosen.into:
        title = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        chosen.into.write_text(page.replace(NEWEST, NEWEST + "\n" + section(title, machine, figures.rows), 1))


if __name__ == "__main__":
    main()
