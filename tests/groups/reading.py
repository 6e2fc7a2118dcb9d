"""What the tests of groups write and look up: records in partitions, committed offsets, topics."""

from __future__ import annotations

import contextlib

from chronik.client.admin.groups import committed_offsets
from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster
from chronik.client.errors import ClientError
from chronik.client.producer import Producer
from chronik.protocol.errors import KafkaError
from harness.clients.group_member import GroupMember
from harness.waiting import eventually


def make_topic(bootstrap: str, topic: str, partitions: int, replicas: int = 1) -> None:
    with Cluster(bootstrap) as cluster:
        create_topic(cluster, topic, partitions=partitions, replication_factor=replicas)


def write(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """So many records in each partition."""
    with Cluster(bootstrap) as cluster, Producer(cluster) as producer:
        for partition in range(partitions):
            for number in range(count):
                producer.send(topic, str(number).encode(), partition=partition)


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """The committed offsets of a group, by partition, as this node tells them."""
    with Cluster(bootstrap) as cluster:
        return {place.partition: found.offset for place, found in committed_offsets(cluster, group).items()}


def wait_committed(bootstrap: str, group: str, expected: dict[int, int], deadline_s: float = 30.0) -> None:
    last: list[object] = []

    def reached() -> bool:
        with contextlib.suppress(KafkaError, ClientError):
            last[:] = [committed(bootstrap, group)]
            return last[0] == expected
        return False

    try:
        eventually(reached, f"group {group} has committed {expected}", deadline_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; it has {last}") from None


def all_read(members: list[GroupMember]) -> list[tuple[int, int]]:
    return sorted(record for member in members for record in member.records)


def expected_records(partitions: int, start: int, end: int) -> list[tuple[int, int]]:
    return sorted((partition, offset) for partition in range(partitions) for offset in range(start, end))
