"""Acknowledged writes survive whatever is killed, paused or restarted; replicas end up byte for byte the same."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from harness.faults import SHORT, Faults
from harness.node_process import NodeProcess
from harness.waiting import eventually
from harness.workload import Workload, differing_replicas

PARTITIONS = 3


@pytest.mark.timeout(240)
@pytest.mark.parametrize("faults", [SHORT[:3], SHORT[3:]], ids=["kills", "pause-all-rolling"])
def test_nothing_acknowledged_is_lost_or_doubled(trio: list[NodeProcess], faults: tuple[str, ...]) -> None:
    topic = f"faults-{faults[0].replace('_', '-')}"
    admin = AdminClient({"bootstrap.servers": trio[0].bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[topic].result(20)
    workload = Workload(trio, topic, PARTITIONS).start()
    workload.wait_for_progress(200)
    what = Faults(trio, workload)
    for fault in faults:
        getattr(what, fault)()
    workload.wait_for_progress(200)
    workload.stop()
    assert workload.count() > 400
    assert workload.verify() == []
    eventually(
        lambda: not differing_replicas(trio, topic, PARTITIONS),
        f"the replicas are the same: {differing_replicas(trio, topic, PARTITIONS)}",
    )
