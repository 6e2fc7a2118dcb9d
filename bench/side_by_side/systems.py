"""Kafka and Chronik as local processes: start, wait until a write is taken, measure, kill, stop."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chronik.bench.broker_processes import usage_of
from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster, ClusterSettings
from chronik.client.errors import ClientError
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import end_offsets
from chronik.client.producer import Producer
from chronik.client.retry import RetryPolicy
from chronik.protocol.errors import ErrorCode, KafkaError

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 30.0
POLL_S = 0.01

IMPATIENT = ClusterSettings(retry=RetryPolicy(timeout_s=0.0, unknown_topic_s=0.0, first_contact_s=0.0))
"""A client that says at once what it cannot do, for those who wait for a node."""

KAFKA_HEAP = ("-Xms1g", "-Xmx1g")
KAFKA_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""What Kafka's own start script passes."""


@dataclass(frozen=True, slots=True)
class Environment:
    """How many nodes, and what an acknowledgement promises: `os` (page cache) or `fsync` (on disk)."""

    nodes: int
    durability: str

    @property
    def name(self) -> str:
        return f"{'one node' if self.nodes == 1 else 'three nodes'}, {self.durability}"


class System(ABC):
    """A cluster on this machine. Node ids count from 1."""

    name = ""

    def __init__(self, folder: Path, environment: Environment) -> None:
        self.folder = folder
        self.environment = environment
        self.ports = free_ports(environment.nodes * 2)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.start_s = 0.0

    @property
    def node_ids(self) -> range:
        return range(1, self.environment.nodes + 1)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.client_port(node_id)}" for node_id in self.node_ids)

    @property
    def pids(self) -> set[int]:
        return {process.pid for process in self._processes.values() if process.poll() is None}

    def client_port(self, node_id: int) -> int:
        return self.ports[(node_id - 1) * 2]

    def peer_port(self, node_id: int) -> int:
        return self.ports[(node_id - 1) * 2 + 1]

    def start(self) -> None:
        """Start all nodes and wait until a record is acknowledged; `start_s` is how long that took."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.prepare()
        began = time.monotonic()
        for node_id in self.node_ids:
            self.start_node(node_id)
        self._wait_for_first_write()
        self.start_s = time.monotonic() - began

    def start_node(self, node_id: int) -> None:
        with (self.folder / f"node-{node_id}.log").open("ab") as log:
            self._processes[node_id] = subprocess.Popen(
                self.command(node_id), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def end(self, node_id: int, with_signal: signal.Signals) -> None:
        self._processes[node_id].send_signal(with_signal)

    def bring_back(self, node_id: int) -> bool:
        self._processes[node_id].wait(STOP_DEADLINE_S)
        self.start_node(node_id)
        return True

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for node_id in self._processes:
            self.stop_node(node_id)
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop_node(self, node_id: int) -> None:
        """Stop a node cleanly and wait for it; one that takes too long is killed."""
        process = self._processes[node_id]
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_for_topic(self, topic: str) -> None:
        """Wait until the leader of the topic's first partition tells its end."""
        self._wait_until(f"serve {topic}", lambda cluster: end_offsets(cluster, [TopicPartition(topic, 0)]))

    def memory_mb(self) -> float:
        """Resident memory of the node that uses most."""
        return max((usage.rss_mb for pid in self.pids if (usage := usage_of(pid)) is not None), default=0.0)

    @abstractmethod
    def prepare(self) -> None:
        """What has to be done once before the first start."""

    @abstractmethod
    def command(self, node_id: int) -> list[str]: ...

    def _wait_for_first_write(self) -> None:
        made = False

        def write(cluster: Cluster) -> None:
            nonlocal made
            if not made:
                try:
                    create_topic(cluster, "first", partitions=1, replication_factor=self.environment.nodes)
                except KafkaError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
                made = True
            with Producer(cluster) as producer:
                producer.send("first", b"hello")
                producer.flush()

        self._wait_until("take a write", write)

    def _wait_until(self, what: str, attempt: Callable[[Cluster], object]) -> None:
        """Ask again and again, with a client that is as new as the node, until it does; how often decides how exact
        the time of a start is."""
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                with Cluster(self.bootstrap, IMPATIENT) as cluster:
                    attempt(cluster)
                return
            except (KafkaError, ClientError) as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not {what} within {START_DEADLINE_S:g} s: {error}") from error
            self._check_alive()
            time.sleep(POLL_S)

    def _check_alive(self) -> None:
        for node_id, process in self._processes.items():
            if process.poll() is not None:
                log = (self.folder / f"node-{node_id}.log").read_text(errors="replace")
                raise RuntimeError(
                    f"node {node_id} of {self.name} ended with code {process.returncode}:\n{log[-2000:]}"
                )


class Chronik(System):
    name = "Chronik"

    def prepare(self) -> None:
        """A Chronik node makes its folder itself."""

    def command(self, node_id: int) -> list[str]:
        command = [sys.executable, "-m", "chronik", "start", "--node-id", str(node_id), "--http", "off"]
        command += ["--data-dir", str(self.folder / f"node-{node_id}")]
        command += ["--kafka", f"127.0.0.1:{self.client_port(node_id)}"]
        command += ["--peer", f"127.0.0.1:{self.peer_port(node_id)}", "--log-level", "warning"]
        command += ["--set", f"durability={self.environment.durability}"]
        if self.environment.nodes > 1:
            voters = ",".join(f"{other}@127.0.0.1:{self.peer_port(other)}" for other in self.node_ids)
            command += ["--voters", voters]
        return command


class Kafka(System):
    """Apache Kafka in KRaft mode, every node both broker and controller, with Kafka's default settings."""

    name = "Kafka"
    libs = Path(".build/kafka/libs")

    def prepare(self) -> None:
        voters = ",".join(f"{other}@127.0.0.1:{self.peer_port(other)}" for other in self.node_ids)
        copies = min(self.environment.nodes, 3)
        for node_id in self.node_ids:
            lines = {
                "process.roles": "broker,controller",
                "node.id": node_id,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{self.client_port(node_id)},"
                f"CONTROLLER://127.0.0.1:{self.peer_port(node_id)}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.client_port(node_id)}",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": self.folder / f"node-{node_id}",
                "offsets.topic.replication.factor": copies,
                "transaction.state.log.replication.factor": copies,
                "transaction.state.log.min.isr": min(copies, 2),
                "share.coordinator.state.topic.replication.factor": copies,
                "share.coordinator.state.topic.min.isr": 1,
            }
            if self.environment.durability == "fsync":
                lines["log.flush.interval.messages"] = 1
            text = "".join(f"{name}={value}\n" for name, value in lines.items())
            self._properties(node_id).write_text(text)
        cluster_id = self._tool("random-uuid").strip()
        for node_id in self.node_ids:
            self._tool("format", "-t", cluster_id, "-c", str(self._properties(node_id)))

    def command(self, node_id: int) -> list[str]:
        jvm = ["java", *KAFKA_HEAP, *KAFKA_JVM, "-cp", f"{self.libs}/*"]
        return [*jvm, "kafka.Kafka", str(self._properties(node_id))]

    def _properties(self, node_id: int) -> Path:
        return self.folder / f"node-{node_id}.properties"

    def _tool(self, *arguments: str) -> str:
        command = ["java", "-cp", f"{self.libs}/*", "kafka.tools.StorageTool", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def settle() -> None:
    """Have what the last measurement left in the page cache on disk, so that the next one does not pay for it."""
    os.sync()
