"""Groups on three nodes: coordinators everywhere, killed in mid-rebalance; the same offsets from whoever is asked."""

from __future__ import annotations

import pytest

from chronik.client.cluster import GROUP, Cluster
from chronik.coordination.topic_access import partition_for
from groups.conftest import QUICK, StartMember
from groups.reading import committed, expected_records, make_topic, wait_committed, write
from harness.cluster_view import wait_until_agreed
from harness.node_process import NodeProcess
from harness.waiting import eventually

PARTITIONS = 4
FIRST = 10
SECOND = 10
STABLE_AGAIN_S = 30.0


def coordinator_of(bootstrap: str, group: str) -> int:
    with Cluster(bootstrap) as cluster:
        return cluster.coordinator(GROUP, group).node_id


def everywhere(nodes: list[NodeProcess]) -> str:
    return ",".join(node.bootstrap for node in nodes)


def wait_replicated(nodes: list[NodeProcess], topic: str) -> None:
    """Every partition of a topic has all three nodes in sync."""

    def in_sync() -> bool:
        with Cluster(nodes[0].bootstrap) as cluster:
            return all(len(p.isr) == len(nodes) for p in cluster.topic(topic).partitions.values())

    eventually(in_sync, f"{topic} is on all nodes", 40)


def test_every_node_coordinates_and_every_node_tells_the_same_offsets(
    cluster: list[NodeProcess], start_member: StartMember, name: str
) -> None:
    wait_until_agreed(cluster, brokers=[1, 2, 3])
    make_topic(cluster[0].bootstrap, name, PARTITIONS, 3)
    write(everywhere(cluster), name, PARTITIONS, FIRST)
    count = int(QUICK["offsets.topic.num.partitions"])
    groups = {partition_for(f"{name}-{n}", count): f"{name}-{n}" for n in range(60)}
    coordinators = {group: coordinator_of(cluster[0].bootstrap, group) for group in groups.values()}
    assert set(coordinators.values()) == {1, 2, 3}, "coordination must be spread"
    chosen = {node_id: group for group, node_id in coordinators.items()}
    for node in cluster:
        for node_id, group in chosen.items():
            assert coordinator_of(node.bootstrap, group) == node_id
    members = [
        start_member("confluent-kafka", node.bootstrap, chosen[node_id], name)
        for node, node_id in zip(cluster, (2, 3, 1), strict=True)
    ]
    expected = dict.fromkeys(range(PARTITIONS), FIRST)
    for node in cluster:
        for group in chosen.values():
            wait_committed(node.bootstrap, group, expected)
    for member in members:
        member.leave()

    wait_replicated(cluster, "__consumer_offsets")
    for node in cluster:
        node.kill()
    for node in cluster:
        node.start(wait=False)
    for node in cluster:
        node.wait_ready()
    for node in cluster:
        for group in chosen.values():
            wait_committed(node.bootstrap, group, expected)


@pytest.mark.parametrize("library", ["confluent-kafka", "confluent-kafka-consumer"])
def test_a_group_is_stable_again_after_its_coordinator_is_killed_in_mid_rebalance(
    library: str, cluster: list[NodeProcess], start_member: StartMember, name: str
) -> None:
    wait_until_agreed(cluster, brokers=[1, 2, 3])
    make_topic(cluster[0].bootstrap, name, PARTITIONS, 3)
    write(everywhere(cluster), name, PARTITIONS, FIRST)
    one = start_member(library, everywhere(cluster), name, name)
    one.wait_assigned(PARTITIONS)
    wait_committed(cluster[0].bootstrap, name, dict.fromkeys(range(PARTITIONS), FIRST))
    wait_replicated(cluster, "__consumer_offsets")
    wait_replicated(cluster, name)

    victim = next(n for n in cluster if n.node_id == coordinator_of(cluster[0].bootstrap, name))
    rest = [node for node in cluster if node is not victim]
    two = start_member(library, everywhere(rest), name, name)
    seen = one.generations
    eventually(lambda: two.assigned is not None or one.generations > seen, "the rebalance has begun", 20)
    victim.kill()
    one.wait_assigned(PARTITIONS // 2, STABLE_AGAIN_S)
    two.wait_assigned(PARTITIONS // 2, STABLE_AGAIN_S)
    assert not set(one.assigned or ()) & set(two.assigned or ())
    for node in rest:
        found = committed(node.bootstrap, name)
        assert found == dict.fromkeys(range(PARTITIONS), FIRST), "nothing that was committed may be lost"

    write(everywhere(rest), name, PARTITIONS, SECOND)
    wait_committed(rest[0].bootstrap, name, dict.fromkeys(range(PARTITIONS), FIRST + SECOND))
    one.leave()
    two.leave()
    assert set(one.records + two.records) == set(expected_records(PARTITIONS, 0, FIRST + SECOND))
