"""How fast the cluster agrees: `python -m chronik.bench.consensus` starts real nodes on loopback and prints figures.

Proposals are changes of a topic's settings, sent over Kafka connections: one at a time on one connection, then by many
connections at once, on one node and on three. Then: how long three nodes take from their start to the same metadata on
all of them, and how long metadata cannot be written after kill -9 of the controller. Nothing here is a test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

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
CONNECTIONS = 64
START_DEADLINE_S = 30.0
TOPIC_RESOURCE = 2


@contextmanager
def running(nodes: int, folder: Path) -> Iterator[tuple[list[LocalNode], list[subprocess.Popen[bytes]]]]:
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
            stdout=subprocess.DEVNULL,
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
        time.sleep(0.01)
    raise SystemExit("the nodes did not agree in time; is the machine overloaded?")


def change(number: int) -> IncrementalAlterConfigsRequest:
    setting = IncrementalConfig(name="retention.ms", config_operation=0, value=str(3_600_000 + number))
    resource = IncrementalConfigsResource(resource_type=TOPIC_RESOURCE, resource_name="bench", configs=[setting])
    return IncrementalAlterConfigsRequest(resources=[resource])


def propose(node: LocalNode, connections: int) -> float:
    """Proposals per second by so many connections at once, each with one proposal under way."""
    counts = [0] * connections
    until = time.monotonic() + SECONDS

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


def measure_proposals(nodes: int) -> None:
    with tempfile.TemporaryDirectory() as folder, running(nodes, Path(folder)) as (members, _):
        wait_until_agreed(members)
        with Cluster(f"127.0.0.1:{members[0].kafka_port}") as cluster:
            create_topic(cluster, "bench", partitions=1)
        for where, node in (("the controller", _controller(members)), ("another node", _other(members))):
            if node is None:
                continue
            alone, together = propose(node, 1), propose(node, CONNECTIONS)
            text = (
                f"{nodes} node(s), through {where}: {alone:,.0f} proposals/s one at a time ({1000 / alone:.2f} ms each)"
            )
            print(f"{text}, {together:,.0f} proposals/s by {CONNECTIONS} connections")


def _controller(members: list[LocalNode]) -> LocalNode:
    found = view(members[0]) or {}
    return next(member for member in members if member.node_id == found.get("controller"))


def _other(members: list[LocalNode]) -> LocalNode | None:
    controller = _controller(members)
    return next((member for member in members if member is not controller), None)


def measure_failover() -> None:
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        with running(3, Path(folder)) as (members, children):
            wait_until_agreed(members)
            print(f"start of three nodes to the same metadata on all: {time.monotonic() - started:.2f} s")
            controller, other = _controller(members), _other(members)
            assert other is not None
            once = ClusterSettings(retry=RetryPolicy(timeout_s=0.05))
            os.kill(children[controller.node_id - 1].pid, signal.SIGKILL)
            killed = time.monotonic()
            while True:
                try:
                    with Cluster(f"127.0.0.1:{other.kafka_port}", once) as cluster:
                        create_topic(cluster, f"after-{time.monotonic_ns()}", partitions=1, replication_factor=1)
                    break
                except (ClientError, KafkaError):
                    if time.monotonic() - killed > START_DEADLINE_S:
                        raise
            print(f"kill -9 of the controller to the next metadata write: {time.monotonic() - killed:.2f} s")


def main() -> None:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?: ?")
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, {model.split(':')[1].strip()}, python {sys.version.split()[0]}, load {load:.1f}")
    for nodes in (1, 3):
        measure_proposals(nodes)
    for _ in range(3):
        measure_failover()


if __name__ == "__main__":
    main()
