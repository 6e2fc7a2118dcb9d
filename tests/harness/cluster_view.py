"""What a node says about the cluster, as real clients see it, in a form that can be compared between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from harness.node_process import NodeProcess
from harness.waiting import eventually

ASK_DEADLINE_S = 5.0


@dataclass(frozen=True)
class ClusterView:
    brokers: tuple[tuple[int, str, int], ...]
    controller: int
    topics: tuple[tuple[str, str], ...]
    """(name, topic id)"""
    partitions: tuple[tuple[str, int, int, tuple[int, ...], tuple[int, ...]], ...]
    """(topic, partition, leader, replicas, ISR)"""


def ask(node: NodeProcess) -> ClusterView:
    """The answer of this node alone: the client knows no other address when it asks. OSError when it has none."""
    try:
        return _ask(node)
    except KafkaException as error:
        raise OSError(f"node {node.node_id}: {error}") from error


def _ask(node: NodeProcess) -> ClusterView:
    admin = AdminClient(
        {"bootstrap.servers": node.bootstrap, "socket.timeout.ms": int(ASK_DEADLINE_S * 1000), "log_level": 0}
    )
    metadata: Any = admin.list_topics(timeout=ASK_DEADLINE_S)
    names = sorted(name for name in metadata.topics if not name.startswith("__"))
    ids: list[tuple[str, str]] = []
    if names:
        described = admin.describe_topics(TopicCollection(names), request_timeout=ASK_DEADLINE_S)
        ids = [(name, str(described[name].result(ASK_DEADLINE_S).topic_id)) for name in names]
    partitions = [
        (name, index, found.leader, tuple(found.replicas), tuple(sorted(found.isrs)))
        for name in names
        for index, found in sorted(metadata.topics[name].partitions.items())
    ]
    brokers = sorted((broker.id, broker.host, broker.port) for broker in metadata.brokers.values())
    return ClusterView(tuple(brokers), metadata.controller_id, tuple(ids), tuple(partitions))


def wait_until_agreed(nodes: list[NodeProcess], *, brokers: list[int], deadline_s: float = 30.0) -> ClusterView:
    """Waits until every given node gives the same answer with exactly these brokers and one of them as controller."""

    def agreed() -> ClusterView | None:
        views = [ask(node) for node in nodes]
        first = views[0]
        assert all(view == first for view in views[1:]), views
        assert [broker[0] for broker in first.brokers] == brokers, first
        assert first.controller in brokers, first
        return first

    view = eventually(agreed, f"nodes {[node.node_id for node in nodes]} agree on brokers {brokers}", deadline_s)
    assert view is not None
    return view
