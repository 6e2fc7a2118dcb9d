"""A cluster of many topics: a command costs what it changes, not what there is."""

from __future__ import annotations

import tracemalloc

from chronik.metadata import commands as c
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import BrokerStatus, ResourceType

TOPICS = 10_000
COST_BYTES_MAX = 64 * 1024
"""A copy of a dict of all topics takes several times as much."""
NEW = (TOPICS + 1).to_bytes(16, "big")


def topic_id(number: int) -> bytes:
    return (number + 1).to_bytes(16, "big")


def many_topics() -> MetadataImage:
    made = MetadataImage()
    for node_id in (1, 2, 3):
        made.apply(c.RegisterBroker(node_id, bytes([node_id]) * 16, "host", 9092), made.applied_index + 1)
        made.apply(c.UpdateBrokerStatus(node_id, BrokerStatus.ONLINE), made.applied_index + 1)
    for number in range(TOPICS):
        assignment = tuple((1 + (number + p) % 3, 1 + (number + p + 1) % 3) for p in range(3))
        made.apply(c.CreateTopic(f"topic-{number}", topic_id(number), assignment), made.applied_index + 1)
    return made


def test_no_command_copies_the_world() -> None:
    image = many_topics()
    for command in (
        c.CreateTopic("new", NEW, ((1, 2),)),
        c.SetConfig(ResourceType.TOPIC, "new", [c.ConfigChange(c.ConfigOperation.SET, "retention.ms", "5")]),
        c.AddPartitions(NEW, 1, ((2, 1),)),
        c.SetPartitionLeader([c.LeaderChange(NEW, 0, 2, 0)]),
        c.DeleteTopic(NEW),
        c.AllocateProducerIds(1, 1000),
        c.UpdateBrokerStatus(3, BrokerStatus.ONLINE, maintenance=True),
    ):
        tracemalloc.start()
        try:
            result = image.apply(command, image.applied_index + 1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert result.ok, result
        assert peak < COST_BYTES_MAX, f"{type(command).__name__} took {peak} bytes"
