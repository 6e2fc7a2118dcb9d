"""Hundreds of replicated topics, created in three ways through every node, served by all and kept over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import EARLIEST
from chronik.client.producer import Producer
from harness.cluster_view import wait_until_agreed
from harness.many_topics import WAYS, create_topics
from harness.node_process import NodeProcess

ALL = [1, 2, 3]
PARTITIONS = 3
SAMPLE = 20
SETTLE_S = 60.0


def _check_sample(nodes: list[NodeProcess], names: list[str], text: bytes) -> None:
    """Writes through one node and reads through another, for a sample of the topics."""
    for number, name in enumerate(names[:: max(1, len(names) // SAMPLE)]):
        where = TopicPartition(name, number % PARTITIONS)
        with Cluster(nodes[number % 3].bootstrap) as cluster, Producer(cluster) as producer:
            sent = producer.send(name, text, partition=where.partition)
            producer.flush()
        with Cluster(nodes[(number + 1) % 3].bootstrap) as cluster, Consumer(cluster, {where: EARLIEST}) as consumer:
            found: list[bytes | None] = []
            while len(found) <= sent.offset:
                found.extend(record.value for record in consumer.poll(5.0))
            assert found[sent.offset] == text


def _run(nodes: list[NodeProcess], way: str, count: int) -> None:
    wait_until_agreed(nodes, brokers=ALL)
    names = [f"topic-{number:05}" for number in range(count)]
    assert create_topics(way, [node.bootstrap for node in nodes], names, PARTITIONS, 3) == []
    before = wait_until_agreed(nodes, brokers=ALL, deadline_s=SETTLE_S)
    assert [name for name, _ in before.topics] == names
    _check_sample(nodes, names, b"before")
    for node in nodes:
        assert node.stop() == 0
    for node in nodes:
        node.start(wait=False)
    after = wait_until_agreed(nodes, brokers=ALL, deadline_s=SETTLE_S)
    assert after.topics == before.topics
    _check_sample(nodes, names, b"after")


@pytest.mark.parametrize("way", WAYS)
def test_three_hundred_topics_are_created_and_kept(cluster: list[NodeProcess], way: str) -> None:
    _run(cluster, way, 300)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_three_thousand_topics_are_created_and_kept(cluster: list[NodeProcess], way: str) -> None:
    _run(cluster, way, 3000)
    for node in cluster:
        status = Path(f"/proc/{node.pid}/status").read_text()
        resident_kb = int(status.split("VmRSS:")[1].split()[0])
        assert resident_kb < 400 * 1024, f"node {node.node_id} uses {resident_kb // 1024} MB"
