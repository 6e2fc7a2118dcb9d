"""Acknowledged writes survive whatever is killed, paused or restarted; replicas end up byte for byte the same."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from harness.cluster_view import wait_until_agreed
from harness.faults import SHORT, Faults
from harness.node_process import NodeProcess
from harness.waiting import eventually
from harness.workload import Workload, differing_replicas

ALL = [1, 2, 3]
PARTITIONS = 3


@pytest.fixture
def workload(cluster: list[NodeProcess]) -> Workload:
    wait_until_agreed(cluster, brokers=ALL)
    admin = AdminClient({"bootstrap.servers": cluster[0].bootstrap, "log_level": 0})
    topic = NewTopic("faults", PARTITIONS, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["faults"].result(20)
    return Workload(cluster, "faults", PARTITIONS)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("faults", [SHORT[:3], SHORT[3:]], ids=["kills", "pause-all-rolling"])
def test_nothing_acknowledged_is_lost_or_doubled(
    cluster: list[NodeProcess], workload: Workload, faults: tuple[str, ...]
) -> None:
    workload.start()
    workload.wait_for_progress(200)
    what = Faults(cluster, workload)
    for fault in faults:
        getattr(what, fault)()
    workload.wait_for_progress(200)
    workload.stop()
    assert workload.count() > 400
    assert workload.verify() == []
    eventually(
        lambda: not differing_replicas(cluster, "faults", PARTITIONS),
        f"the replicas are the same: {differing_replicas(cluster, 'faults', PARTITIONS)}",
    )
