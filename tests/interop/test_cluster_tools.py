"""Kafka's tools for clusters against three real nodes: the quorum, reassignments, elections, Java's client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chronik.client.admin.topics import create_topic, describe_topics
from chronik.client.cluster import Cluster
from harness.cluster_view import wait_until_agreed
from harness.node_process import NodeProcess, three_nodes
from harness.rolling_restart import rolling_restart
from harness.waiting import eventually

TOOLS = "org.apache.kafka.tools"
ALL = [1, 2, 3]
APPLICATION_ENDS_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    nodes = three_nodes(tmp_path_factory.mktemp("cluster"))
    for node in nodes:
        node.start(wait=False)
    wait_until_agreed(nodes, brokers=ALL)
    yield nodes
    for node in nodes:
        node.close()


def test_metadata_quorum_describes_the_voters(cluster: list[NodeProcess], java: Callable[..., str]) -> None:
    controller = wait_until_agreed(cluster, brokers=ALL).controller
    for node in cluster:
        tool = (f"{TOOLS}.MetadataQuorumCommand", "--bootstrap-server", node.bootstrap, "describe")
        status = java(*tool, "--status")
        assert dict(line.split(":", 1) for line in status.splitlines() if ":" in line)["LeaderId"].strip() == str(
            controller
        )
        rows = java(*tool, "--replication").splitlines()[1:]
        assert sorted(int(row.split()[0]) for row in rows if row.strip()) == ALL


def test_the_java_client_works_through_every_node(
    cluster: list[NodeProcess], java: Callable[..., str], topic: str
) -> None:
    controller = wait_until_agreed(cluster, brokers=ALL).controller
    for node in cluster:
        printed = java("JavaClient", node.bootstrap, f"{topic}-{node.node_id}", "200", "3")
        seen = dict(line.split("=", 1) for line in printed.splitlines())
        assert (seen["brokers"], seen["controller"], seen["consumed"]) == ("[1, 2, 3]", str(controller), "1000")


def test_no_error_of_a_rolling_restart_reaches_a_java_application(
    cluster: list[NodeProcess], java_command: Callable[..., list[str]], topic: str
) -> None:
    bootstrap = ",".join(node.bootstrap for node in cluster)
    with Cluster(bootstrap) as client:
        create_topic(client, topic, partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
    application = subprocess.Popen(
        java_command("SteadyClient", bootstrap, topic), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert application.stdout is not None and application.stdout.readline() == "reading\n"
        assert len(list(rolling_restart(cluster))) == 3
        printed, _ = application.communicate(timeout=APPLICATION_ENDS_S)
    finally:
        application.kill()
        application.wait()
    seen = dict(line.split("=", 1) for line in printed.splitlines())
    assert int(seen.pop("written")) > 100
    assert seen == {"missing": "0", "twice": "0", "errors": "[]"}


def _replicas(node: NodeProcess, topic: str) -> tuple[int, ...]:
    with Cluster(node.bootstrap) as cluster:
        return describe_topics(cluster, [topic])[0].partitions[0].replicas


def test_reassign_partitions_moves_and_verifies(
    cluster: list[NodeProcess], java: Callable[..., str], topic: str, tmp_path: Path
) -> None:
    with Cluster(cluster[0].bootstrap) as client:
        create_topic(client, topic, partitions=1, replication_factor=2)
    before = _replicas(cluster[0], topic)
    target = [next(node_id for node_id in ALL if node_id not in before), before[0]]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": target}]}))
    tool = (f"{TOOLS}.reassign.ReassignPartitionsCommand", "--bootstrap-server", cluster[1].bootstrap)
    arguments = ("--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignment" in java(*tool, *arguments, "--execute")
    eventually(lambda: _replicas(cluster[2], topic) == tuple(target), "the replicas have moved", 30)
    assert f"Reassignment of partition {topic}-0 is completed" in java(*tool, *arguments, "--verify")


def test_leader_election_brings_the_preferred_leader_back(
    cluster: list[NodeProcess], java: Callable[..., str], topic: str
) -> None:
    with Cluster(cluster[0].bootstrap) as client:
        create_topic(client, topic, partitions=1, replication_factor=3)
    tool = (f"{TOOLS}.LeaderElectionCommand", "--bootstrap-server", cluster[0].bootstrap)
    printed = java(*tool, "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "Valid replica already elected" in printed or "Successfully completed" in printed
