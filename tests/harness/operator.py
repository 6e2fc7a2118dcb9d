"""What an operator does to a cluster: `chronik cluster …` as a real command, and Kafka's reassignments."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from chronik.cli.cluster import administer
from chronik.client.cluster import Cluster
from chronik.client.errors import ClientError
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from harness.node_process import NodeProcess
from harness.waiting import eventually

COMMAND_DEADLINE_S = 90.0


def chronik_cluster(node: NodeProcess, *arguments: str, code: int = 0) -> str:
    """Runs `chronik cluster …` against one node; returns what it printed, and on an expected failure the reason."""
    command = [sys.executable, "-m", "chronik", "cluster", *arguments, "--bootstrap", node.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S, check=False)
    assert done.returncode == code, f"{' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stderr if code else done.stdout


def chronik_cluster_json(node: NodeProcess, *arguments: str) -> Any:
    return json.loads(chronik_cluster(node, *arguments, "--json"))


def administer_at(node: NodeProcess, action: str, arguments: dict[str, Any], deadline_s: float = 60.0) -> Any:
    """Asks a node for one of Chronik's own actions, again for as long as the answer is to try again."""

    def asked() -> Any:
        with Cluster(node.bootstrap) as cluster:
            try:
                return administer(cluster, action, arguments, COMMAND_DEADLINE_S / 3) or True
            except ClientError as error:
                raise OSError(str(error)) from error
            except KafkaError as error:
                if not error.retriable:
                    raise
                raise OSError(str(error)) from error

    return eventually(asked, f"{action} {arguments}", deadline_s)


def drain(node: NodeProcess, node_id: int, deadline_s: float = 60.0) -> None:
    """Moves everything off a node and waits until that is done."""
    administer_at(node, "drain", {"node_id": node_id, "execute": True})

    def done() -> bool:
        progress = administer_at(node, "progress", {})
        assert progress["failure"] is None, progress
        return not progress["running"]

    eventually(done, f"node {node_id} is drained", deadline_s)


def members(node: NodeProcess) -> dict[str, Any]:
    """A node's own view of the members, as `chronik cluster describe` shows it, without the cost of a process."""
    with Cluster(node.bootstrap) as cluster:
        try:
            found: dict[str, Any] = administer(cluster, "status")
        except ClientError as error:
            raise OSError(str(error)) from error
    return found


def wait_for_voters(nodes: Sequence[NodeProcess], voters: list[int], deadline_s: float = 40.0) -> None:
    """Waits until every given node says that these, and no others, vote, and that nobody only observes."""

    def agreed() -> bool:
        found = [members(node) for node in nodes]
        assert all(view["voters"] == voters and not view["observers"] for view in found), found
        return True

    eventually(agreed, f"the voters are {voters}", deadline_s)


def reassign(node: NodeProcess, topic: str, targets: Mapping[int, Sequence[int] | None]) -> None:
    """Starts a reassignment of each partition, or cancels the one under way where the target is None."""
    partitions = [
        ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas))
        for index, replicas in targets.items()
    ]
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=10_000, topics=[ReassignableTopic(name=topic, partitions=partitions)]
    )
    with Cluster(node.bootstrap) as cluster:

        def accepted() -> bool:
            try:
                answer = cluster.call_any(request, AlterPartitionReassignmentsResponse)
            except ClientError as error:
                raise OSError(str(error)) from error
            codes = [answer.error_code, *(p.error_code for t in answer.responses for p in t.partitions)]
            for code in map(ErrorCode, codes):
                if code is not ErrorCode.NONE and not code.retriable:
                    raise KafkaError(code, str(answer))
            return not any(codes)

        eventually(accepted, f"the reassignment of {topic} is accepted")


def reassignments(node: NodeProcess) -> list[tuple[str, int]]:
    """The partitions that are being reassigned."""
    with Cluster(node.bootstrap) as cluster:
        try:
            answer = cluster.call_any(
                ListPartitionReassignmentsRequest(timeout_ms=5_000), ListPartitionReassignmentsResponse
            )
        except ClientError as error:
            raise OSError(str(error)) from error
    if answer.error_code:
        raise OSError(f"{ErrorCode(answer.error_code).name}: {answer.error_message}")
    return [(topic.name, partition.partition_index) for topic in answer.topics for partition in topic.partitions]


def wait_until_reassigned(node: NodeProcess, deadline_s: float = 60.0) -> None:
    eventually(lambda: not reassignments(node), "every reassignment is over", deadline_s)
