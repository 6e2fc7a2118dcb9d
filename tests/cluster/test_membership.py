"""Nodes come, go, die and lose their disks; the cluster and everything acknowledged stay."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from chronik.client.cluster import Cluster
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from harness.cluster_view import ask, wait_until_agreed
from harness.faults import Faults
from harness.node_process import NodeProcess
from harness.operator import (
    administer_at,
    chronik_cluster,
    chronik_cluster_json,
    drain,
    members,
    reassign,
    reassignments,
    wait_for_voters,
    wait_until_reassigned,
)
from harness.waiting import eventually
from harness.workload import Workload, differing_replicas

ALL = [1, 2, 3]
PARTITIONS = 4
pytestmark = pytest.mark.timeout(240)
_new_ids = itertools.count(4)
_topics = itertools.count(1)


@pytest.fixture
def joined(trio: list[NodeProcess], tmp_path: Path) -> Iterator[NodeProcess]:
    """A fourth node that was started to join the three; it is made to leave when the test is over."""
    node = NodeProcess(tmp_path, node_id=next(_new_ids), join=trio[1].peer).start()
    yield node
    node.close()
    administer_at(trio[0], "remove-node", {"node_id": node.node_id, "force": True})
    wait_for_voters(trio, ALL)


def topic_of(node: NodeProcess, replication: int = 3, **config: str) -> str:
    name = f"moved-{next(_topics)}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    settings = {"min.insync.replicas": "2", **config}
    admin.create_topics([NewTopic(name, PARTITIONS, replication, config=settings)])[name].result(20)
    return name


def replicas(node: NodeProcess, topic: str) -> dict[int, tuple[int, ...]]:
    return {p[1]: p[3] for p in ask(node).partitions if p[0] == topic}


def check(workload: Workload, nodes: list[NodeProcess]) -> None:
    """Stops the workload; nothing acknowledged is missing, and every replica holds the same bytes."""
    workload.wait_for_progress()
    workload.stop()
    assert workload.verify() == []
    placed = replicas(nodes[0], workload.topic)

    def same() -> bool:
        for partition, ids in placed.items():
            holders = [node for node in nodes if node.node_id in ids]
            assert len(holders) == len(ids), (partition, ids)
            found = differing_replicas(holders, workload.topic, PARTITIONS, only=partition)
            assert not found, found
        return True

    eventually(same, "all replicas are the same")


def try_to_create(node: NodeProcess, name: str) -> CreatableTopicResult:
    """What one node answers to CreateTopics within three seconds."""
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    with Cluster(node.bootstrap) as cluster:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=3000)
        (answer,) = cluster.call_any(request, CreateTopicsResponse).topics
    return answer


def test_a_node_started_to_join_becomes_a_voter_by_itself(trio: list[NodeProcess], joined: NodeProcess) -> None:
    everybody = [*trio, joined]
    wait_for_voters(everybody, [*ALL, joined.node_id])
    view = wait_until_agreed(everybody, brokers=[*ALL, joined.node_id])
    status = chronik_cluster_json(joined, "status")
    assert status["unreachable"] == []
    assert {node["node_id"]: node["voter"] for node in status["nodes"]} == {node.node_id: True for node in everybody}
    assert {node["controller"] for node in status["nodes"]} == {view.controller}
    described = chronik_cluster_json(trio[2], "describe")
    assert described["voters"] == [*ALL, joined.node_id] and described["controller"] == view.controller
    assert [broker["status"] for broker in described["brokers"]] == ["online"] * 4
    again = chronik_cluster(trio[0], "add-node", str(joined.node_id))
    assert f"node {joined.node_id} is a voter" in again, "adding a voter again changes nothing"


def test_a_node_is_filled_then_drained_and_removed_under_load(trio: list[NodeProcess], joined: NodeProcess) -> None:
    everybody = [*trio, joined]
    wait_until_agreed(everybody, brokers=[*ALL, joined.node_id])
    topic = topic_of(trio[0])
    assert all(set(ids) <= {*ALL, joined.node_id} for ids in replicas(trio[0], topic).values())
    workload = Workload(trio, topic, PARTITIONS).start()
    workload.wait_for_progress()
    reassign(trio[0], topic, {0: [joined.node_id, 1, 2], 1: [2, 3, joined.node_id], 2: [1, 2, 3], 3: [3, 2, 1]})
    wait_until_reassigned(trio[0])
    refused = chronik_cluster(trio[1], "remove-node", str(joined.node_id), code=1)
    assert "still holds" in refused and f"drain {joined.node_id}" in refused

    wait_until_agreed(everybody, brokers=[*ALL, joined.node_id])
    plan = administer_at(trio[1], "drain", {"node_id": joined.node_id})
    assert plan["moves"] >= 2 and plan["stuck"] == []
    assert joined.node_id in replicas(trio[0], topic)[0], "without --yes nothing is moved"
    done = chronik_cluster_json(trio[1], "drain", str(joined.node_id), "--yes", "--throttle", "50000000")
    assert done["outcome"]["failed"] == 0 and done["outcome"]["done"] == done["moves"]
    eventually(
        lambda: all(joined.node_id not in ids for ids in replicas(trio[0], topic).values()), "nothing is left there"
    )

    assert "is removed" in chronik_cluster(trio[2], "remove-node", str(joined.node_id))
    wait_for_voters(trio, ALL)
    wait_until_agreed(trio, brokers=ALL)
    check(workload, trio)


def test_a_dead_node_is_removed_by_force_and_its_replicas_are_made_anew(
    trio: list[NodeProcess], joined: NodeProcess
) -> None:
    wait_for_voters([*trio, joined], [*ALL, joined.node_id])
    wait_until_agreed([*trio, joined], brokers=[*ALL, joined.node_id])
    topic = topic_of(trio[0])
    targets = {index: [joined.node_id, 1 + index % 2, 3] for index in range(PARTITIONS)}
    reassign(trio[0], topic, targets)
    wait_until_reassigned(trio[0])
    workload = Workload(trio, topic, PARTITIONS).start()
    workload.wait_for_progress()
    joined.kill()
    workload.wait_for_progress()
    chronik_cluster(trio[0], "remove-node", str(joined.node_id), "--force")
    wait_for_voters(trio, ALL)
    wait_until_agreed(trio, brokers=ALL)
    drain(trio[0], joined.node_id)
    assert all(sorted(ids) == ALL for ids in replicas(trio[0], topic).values())
    check(workload, trio)


def test_the_controller_can_be_removed(trio: list[NodeProcess], joined: NodeProcess, tmp_path: Path) -> None:
    """The joined node takes the place of whoever leads, and then that one comes back with an empty folder."""
    everybody = [*trio, joined]
    wait_for_voters(everybody, [*ALL, joined.node_id])
    controller = ask(trio[0]).controller
    removed = next(node for node in everybody if node.node_id == controller)
    rest = [node for node in everybody if node is not removed]
    drain(rest[0], controller)
    chronik_cluster(removed, "remove-node", str(controller))
    wait_for_voters(rest, sorted(node.node_id for node in rest))
    view = wait_until_agreed(rest, brokers=sorted(node.node_id for node in rest))
    assert view.controller != controller
    assert all(controller not in partition[3] for partition in view.partitions)
    if removed is joined:
        return
    removed.stop()
    removed.wipe()
    removed.restart_with(join=rest[0].peer)
    removed.start()
    wait_for_voters(everybody, [*ALL, joined.node_id])
    wait_until_agreed(everybody, brokers=[*ALL, joined.node_id])
    drain(rest[0], joined.node_id)


def test_the_replication_factor_grows_and_shrinks_under_load(trio: list[NodeProcess]) -> None:
    topic = topic_of(trio[0], 1, **{"min.insync.replicas": "1"})
    workload = Workload(trio, topic, PARTITIONS).start()
    workload.wait_for_progress()
    reassign(trio[1], topic, {index: [1 + index % 3, 1 + (index + 1) % 3, 1 + (index + 2) % 3] for index in range(4)})
    wait_until_reassigned(trio[1])
    eventually(lambda: all(len(ids) == 3 for ids in replicas(trio[2], topic).values()), "every node knows")
    workload.wait_for_progress()
    reassign(trio[2], topic, {index: [1 + (index + 1) % 3, 1 + index % 3] for index in range(4)})
    wait_until_reassigned(trio[2])
    eventually(lambda: all(len(ids) == 2 for ids in replicas(trio[0], topic).values()), "every node knows")
    check(workload, trio)


def test_a_reassignment_survives_the_death_of_a_node_in_the_middle(trio: list[NodeProcess]) -> None:
    """Its target dies before anything is copied, and then the leader it copies from."""
    topic = topic_of(trio[0], 2, **{"min.insync.replicas": "1"})
    reassign(trio[0], topic, {index: [1, 2] for index in range(PARTITIONS)})
    wait_until_reassigned(trio[0])
    workload = Workload(trio, topic, PARTITIONS).start()
    workload.wait_for_progress(500)
    trio[2].pause()
    try:
        reassign(trio[0], topic, {index: [3, 2] for index in range(PARTITIONS)})
        assert len(reassignments(trio[0])) == PARTITIONS, "a replica that does not answer cannot be in sync"
    finally:
        trio[2].kill()
    workload.wait_for_progress()
    trio[0].kill()
    trio[0].start(wait=False)
    trio[2].start()
    wait_until_reassigned(trio[1])
    assert all(ids == (3, 2) for ids in replicas(trio[1], topic).values())
    wait_until_agreed(trio, brokers=ALL)
    check(workload, trio)


def test_a_wiped_node_does_not_vote_until_it_is_taken_back(trio: list[NodeProcess]) -> None:
    wait_until_agreed(trio, brokers=ALL)
    topic = topic_of(trio[0])
    workload = Workload(trio, topic, PARTITIONS).start()
    workload.wait_for_progress()
    wiped, kept, other = trio[2], trio[0], trio[1]
    wiped.kill()
    wiped.wipe()
    # As it was first started, also where an earlier test had it join: who is told to join asks to be a voter again.
    wiped.restart_with(voters=",".join(f"{node.node_id}@{node.peer}" for node in trio))
    wiped.start()
    workload.wait_for_progress()
    other.kill()
    eventually(lambda: members(kept)["controller"] is None, "one voter and one that forgot its votes are no majority")
    refused = try_to_create(kept, "without-majority")
    assert refused.error_code and ErrorCode(refused.error_code).retriable, refused
    other.start()
    workload.wait_for_progress(deadline_s=60.0)
    assert "node 3 is a voter" in chronik_cluster(kept, "add-node", "3")
    Faults(trio, workload).wait_until_whole()
    other.kill()
    workload.wait_for_progress()
    other.start(wait=False)
    Faults(trio, workload).wait_until_whole()
    check(workload, trio)
