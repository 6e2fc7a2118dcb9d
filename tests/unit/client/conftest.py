"""A fake cluster and a client of it, impatient enough for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chronik.client import Cluster, ClusterSettings, ConnectionSettings, RetryPolicy
from harness.fake_cluster import FakeCluster

IMPATIENT = ClusterSettings(
    connection=ConnectionSettings(connect_timeout_s=2.0, request_timeout_s=2.0),
    retry=RetryPolicy(
        timeout_s=1.0, unknown_topic_s=0.1, first_contact_s=0.1, first_pause_s=0.005, longest_pause_s=0.02
    ),
)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(size=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Cluster]:
    with Cluster(fake.bootstrap, IMPATIENT) as client:
        yield client
