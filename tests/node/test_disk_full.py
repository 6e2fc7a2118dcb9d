"""A node whose disk is full: writes are refused with an error, reads go on, and writes resume when there is space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster
from chronik.protocol.errors import ErrorCode
from harness.node_process import NodeProcess, need_private_mounts
from harness.one_node import OneNode

DISK_BYTES = 8 << 20
VALUE = b"." * 50_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[NodeProcess]:
    need_private_mounts()
    made = NodeProcess(tmp_path, disk_bytes=DISK_BYTES).start()
    yield made
    made.close()


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_without_a_restart(small: NodeProcess, topic: str) -> None:
    with Cluster(small.bootstrap) as cluster, OneNode(small) as at:
        create_topic(cluster, topic, partitions=1)
        offsets = [at.produce(topic, 0, VALUE).offset for _ in range(3)]
        small.fill_disk()
        assert [at.produce(topic, 0, VALUE).error for _ in range(2)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        fetched = at.fetch(topic, 0)
        assert (fetched.high_watermark, set(fetched.values)) == (3, {VALUE}), "reads go on, nothing was half written"
        small.free_disk()
        offsets += [at.produce(topic, 0, VALUE).offset for _ in range(3)]
        assert offsets == list(range(6))
        create_topic(cluster, f"{topic}-later", partitions=1)
