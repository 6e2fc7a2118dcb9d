"""Hundreds of replicated topics, created in three ways through every node, served by all and kept over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import EARLIEST
from chronik.client.producer import Producer
from harness.cluster_view import ask, wait_until_agreed
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


def _create(nodes: list[NodeProcess], way: str, count: int) -> list[str]:
    wait_until_agreed(nodes, brokers=ALL)
    names = [f"{way.replace(' ', '-')}-{number:05}" for number in range(count)]
    assert create_topics(way, [node.bootstrap for node in nodes], names, PARTITIONS, 3) == []
    view = wait_until_agreed(nodes, brokers=ALL, deadline_s=SETTLE_S)
    assert set(names) <= {name for name, _ in view.topics}
    _check_sample(nodes, names, b"before")
    return names


def _restart(nodes: list[NodeProcess], names: list[str]) -> None:
    before = wait_until_agreed(nodes, brokers=ALL, deadline_s=SETTLE_S)
    for node in nodes:
        assert node.stop() == 0
    for node in nodes:
        node.start(wait=False)
    after = wait_until_agreed(nodes, brokers=ALL, deadline_s=SETTLE_S)
    assert after.topics == before.topics
    _check_sample(nodes, names, b"after")


def test_hundreds_of_topics_created_in_three_ways_are_served_and_kept(trio: list[NodeProcess]) -> None:
    """One cluster for all ways and one restart; with thousands each way has its own."""
    names = [name for way in WAYS for name in _create(trio, way, 300)]
    assert len(ask(trio[0]).topics) == len(names) == 300 * len(WAYS)
    _restart(trio, names)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_three_thousand_topics_are_created_and_kept(cluster: list[NodeProcess], way: str) -> None:
    _restart(cluster, _create(cluster, way, 3000))
    for node in cluster:
        status = Path(f"/proc/{node.pid}/status").read_text()
        resident_kb = int(status.split("VmRSS:")[1].split()[0])
        assert resident_kb < 400 * 1024, f"node {node.node_id} uses {resident_kb // 1024} MB"
