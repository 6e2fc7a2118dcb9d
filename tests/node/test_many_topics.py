"""Many topics on one node, created in three ways, and all served after a restart."""

from __future__ import annotations

import pytest

from chronik.client.admin.topics import list_topics
from chronik.client.cluster import Cluster
from harness.many_topics import WAYS, create_topics
from harness.node_process import NodeProcess


def _run(node: NodeProcess, way: str, count: int) -> None:
    node.start()
    names = [f"topic-{number:05}" for number in range(count)]
    assert create_topics(way, [node.bootstrap], names, 3, 1) == []
    node.kill()
    node.start()
    with Cluster(node.bootstrap) as cluster:
        topics = {topic.name: topic for topic in list_topics(cluster)}
        assert sorted(topics) == names
        assert all(partition.leader == 1 for topic in topics.values() for partition in topic.partitions.values())


@pytest.mark.parametrize("way", WAYS)
def test_three_hundred_topics_are_created_and_served_after_a_restart(fresh_node: NodeProcess, way: str) -> None:
    _run(fresh_node, way, 300)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_three_thousand_topics_are_created_and_served_after_a_restart(fresh_node: NodeProcess, way: str) -> None:
    _run(fresh_node, way, 3000)
