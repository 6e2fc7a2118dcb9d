"""Failover: kill or restart the node that leads, and measure how long writes pause.

Who is killed, and how a node comes back, is the caller's business (`Nodes`); the command line finds the processes of a
local cluster by their pid files and relies on `chronik cluster start --restart` to bring them back.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path
from typing import Protocol

import msgspec

from chronik.bench.probes import MetadataProbe, WriteProbe
from chronik.bench.runs import TOPIC_PREFIX
from chronik.client.admin.topics import create_topic, delete_topics, list_topics
from chronik.client.cluster import Cluster
from chronik.client.errors import ClientError, raise_for_code
from chronik.client.metadata import TopicPartition
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumTopic,
)

RESUME_DEADLINE_S = 60.0
RETURN_DEADLINE_S = 180.0
SETTLE_S = 0.5
POLL_S = 0.05
PARTITIONS = 12
METADATA_TOPIC = "__cluster_metadata"
PID_FILE = "chronik.pid"


class Nodes(Protocol):
    """The node processes of the cluster."""

    def end(self, node_id: int, with_signal: signal.Signals) -> None:
        """Send a signal that ends a node."""

    def bring_back(self, node_id: int) -> bool:
        """Start a node again, or see to it that somebody does; False when it stays down."""


class Gap(msgspec.Struct, frozen=True):
    """What one kill cost, in seconds."""

    what: str
    node_id: int
    write_gap_s: float
    metadata_gap_s: float | None = None


class PidFolder:
    """Nodes of `chronik cluster start --restart`: DIR/node-N/chronik.pid names the process of node N."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: dict[int, int] = {}
        if not any(folder.glob(f"node-*/{PID_FILE}")):
            raise ValueError(f"{folder} has no node-N/{PID_FILE}; give the data folder of `chronik cluster start`")

    def pid(self, node_id: int) -> int | None:
        try:
            return int((self._folder / f"node-{node_id}" / PID_FILE).read_text())
        except (OSError, ValueError):
            return None

    def end(self, node_id: int, with_signal: signal.Signals) -> None:
        pid = self.pid(node_id)
        if pid is None:
            raise ValueError(f"node {node_id} has no pid file under {self._folder}; is it part of this cluster?")
        self._ended[node_id] = pid
        os.kill(pid, with_signal)

    def bring_back(self, node_id: int) -> bool:
        deadline = time.monotonic() + RETURN_DEADLINE_S
        while time.monotonic() < deadline:
            pid = self.pid(node_id)
            if pid is not None and pid != self._ended.get(node_id) and Path(f"/proc/{pid}").exists():
                return True
            time.sleep(POLL_S)
        return False


def controller_of(cluster: Cluster) -> int:
    """The node that leads the metadata quorum."""
    request = DescribeQuorumRequest(
        topics=[QuorumTopic(topic_name=METADATA_TOPIC, partitions=[QuorumPartition(partition_index=0)])]
    )
    answer = cluster.call_any(request, DescribeQuorumResponse)
    raise_for_code(answer.error_code, "describing the quorum")
    partition = answer.topics[0].partitions[0]
    raise_for_code(partition.error_code, "describing the quorum")
    return partition.leader_id


class Failover:
    """Kills leaders of one topic's partitions, one after the other, waiting for all to be well in between."""

    def __init__(self, bootstrap: str, nodes: Nodes) -> None:
        self._bootstrap = bootstrap
        self._nodes = nodes
        self._cluster = Cluster(bootstrap)
        self._prefix = f"{TOPIC_PREFIX}{uuid.uuid4().hex[:8]}-"
        self._topic = f"{self._prefix}failover"

    def prepare(self) -> None:
        create_topic(self._cluster, self._topic, partitions=PARTITIONS, replication_factor=3)
        self.wait_all_in_sync()

    def close(self) -> None:
        try:
            made = [topic.name for topic in list_topics(self._cluster) if topic.name.startswith(self._prefix)]
            delete_topics(self._cluster, made)
        finally:
            self._cluster.close()

    def leader_gap(self, *, of_controller: bool, with_signal: signal.Signals = signal.SIGKILL) -> Gap | None:
        """End the leader of a partition; None when no partition is led by a node of the kind that is wanted.

        `of_controller` chooses a partition that the controller leads, and then metadata writes are watched too.
        """
        place, node_id = self._choose(of_controller)
        if place is None:
            return None
        verb = "kill -9" if with_signal == signal.SIGKILL else "restart"
        what = f"{verb} of the {'controller' if of_controller else 'leader'}"
        with WriteProbe(self._bootstrap, place) as writes, MetadataProbe(self._bootstrap, self._prefix) as metadata:
            began = time.monotonic()
            writes.wait_success_after(began, RESUME_DEADLINE_S)
            metadata.wait_success_after(began, RESUME_DEADLINE_S)
            time.sleep(SETTLE_S)
            ended_at = time.monotonic()
            self._nodes.end(node_id, with_signal)
            self._wait_moved(place, node_id)
            moved_at = time.monotonic()
            writes.wait_success_after(moved_at, RESUME_DEADLINE_S)
            metadata.wait_success_after(moved_at, RESUME_DEADLINE_S)
            gap = Gap(
                what,
                node_id,
                round(writes.longest_gap_s(ended_at), 3),
                round(metadata.longest_gap_s(ended_at), 3) if of_controller else None,
            )
        return gap

    def recover(self, node_id: int) -> bool:
        """Wait until a node is back and in sync; False when it stays down."""
        if not self._nodes.bring_back(node_id):
            return False
        self.wait_all_in_sync()
        return True

    def wait_all_in_sync(self) -> None:
        """Until every partition of the topic has a leader and all of its replicas in sync."""
        deadline = time.monotonic() + RETURN_DEADLINE_S
        while True:
            try:
                known = self._cluster.refresh([self._topic]).topic(self._topic).partitions.values()
                if all(p.leader >= 0 and len(p.isr) == len(p.replicas) for p in known):
                    return
            except (KafkaError, ClientError) as error:
                if time.monotonic() > deadline:
                    raise error
            if time.monotonic() > deadline:
                raise ValueError(f"the replicas of {self._topic} were not in sync within {RETURN_DEADLINE_S:g} s")
            time.sleep(POLL_S)

    def _choose(self, of_controller: bool) -> tuple[TopicPartition | None, int]:
        controller = controller_of(self._cluster)
        for index, partition in self._cluster.refresh([self._topic]).topic(self._topic).partitions.items():
            if (partition.leader == controller) == of_controller:
                return TopicPartition(self._topic, index), partition.leader
        return None, -1

    def _wait_moved(self, place: TopicPartition, from_node: int) -> None:
        """Until the partition is led by another node, so that a success afterwards is one after the failover."""
        deadline = time.monotonic() + RESUME_DEADLINE_S
        while time.monotonic() < deadline:
            try:
                leader = self._cluster.refresh([place.topic]).topic(place.topic).partitions[place.partition].leader
                if leader not in (-1, from_node):
                    return
            except (KafkaError, ClientError):
                pass  # the broker that was asked may be the one that is gone; the next one is asked then
            time.sleep(POLL_S)
        raise ValueError(f"{place} had no new leader within {RESUME_DEADLINE_S:g} s")
