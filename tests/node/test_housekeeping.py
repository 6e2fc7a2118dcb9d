"""Retention, compaction and deletion on a real node, at intervals a test can wait for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.client.admin.topics import create_topic, delete_topic
from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import EARLIEST, earliest_offsets, end_offsets
from chronik.client.producer import Producer
from harness.node_process import NodeProcess
from harness.waiting import eventually

SETTINGS = {"log.retention.check.interval.ms": "200", "log.cleaner.backoff.ms": "200"}


@pytest.fixture(scope="module")
def tidy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path_factory.mktemp("tidy"), settings=SETTINGS).start()
    yield made
    made.close()


@pytest.fixture
def cluster(tidy: NodeProcess) -> Iterator[Cluster]:
    with Cluster(tidy.bootstrap) as opened:
        yield opened


def fill(cluster: Cluster, topic: str, count: int, keys: int) -> None:
    with Producer(cluster) as producer:
        for number in range(count):
            producer.send(topic, b"v%d" % number * 20, key=b"k%d" % (number % keys), partition=0)
            if number % 50 == 49:
                producer.flush()


def test_old_segments_go_by_size_and_readers_go_on_from_what_is_left(cluster: Cluster, topic: str) -> None:
    configs = {"segment.bytes": "20000", "retention.bytes": "40000", "file.delete.delay.ms": "0"}
    create_topic(cluster, topic, partitions=1, configs=configs)
    fill(cluster, topic, 2000, 10)
    where = TopicPartition(topic, 0)
    start = eventually(lambda: earliest_offsets(cluster, [where])[where], "old segments are removed")
    assert end_offsets(cluster, [where])[where] == 2000
    with Consumer(cluster, {where: EARLIEST}) as consumer:
        first = consumer.poll(10.0)[0]
    assert first.offset >= start > 0


def test_compaction_keeps_the_last_value_of_each_key(cluster: Cluster, topic: str) -> None:
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": "20000",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
    }
    create_topic(cluster, topic, partitions=1, configs=configs)
    fill(cluster, topic, 2000, 10)
    where = TopicPartition(topic, 0)

    def records() -> list[tuple[int, bytes | None, bytes | None]]:
        found = []
        with Consumer(cluster, {where: EARLIEST}) as consumer:
            while consumer.position(where) < 2000:
                found.extend((record.offset, record.key, record.value) for record in consumer.poll(10.0))
        return found

    left = eventually(lambda: found if len(found := records()) < 1000 else None, "the log is compacted", 30)
    latest = {key: value for _, key, value in left}
    assert latest == {b"k%d" % n: b"v%d" % (1990 + n) * 20 for n in range(10)}
    assert [offset for offset, _, _ in left] == sorted(offset for offset, _, _ in left)


def test_deleting_a_topic_frees_its_disk(tidy: NodeProcess, cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, partitions=1, configs={"file.delete.delay.ms": "0"})
    fill(cluster, topic, 500, 10)

    def folders() -> list[Path]:
        return [path for path in tidy.data_dir.rglob(f"{topic}-0*") if path.is_dir()]

    assert folders()
    delete_topic(cluster, topic)
    eventually(lambda: not folders(), "the folder is gone", 30)
