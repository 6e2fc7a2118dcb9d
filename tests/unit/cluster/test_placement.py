"""Replicas are spread evenly, over racks and hosts first, whatever the sizes of the topics."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.cluster.placement import Cursor, explicit, place
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import BrokerInfo, BrokerStatus
from chronik.protocol.errors import ErrorCode, KafkaError


def broker(
    node_id: int, *, rack: str | None = None, host: str | None = None, status: BrokerStatus = BrokerStatus.ONLINE
) -> BrokerInfo:
    name = host or f"machine-{node_id}"
    return BrokerInfo(node_id, name, 9092, name, 9192, rack, name, bytes(16), bytes(16), node_id, status, {})


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 7), st.integers(1, 60), st.integers(1, 5), st.integers(0, 1000))
def test_leaders_differ_by_at_most_one_and_no_partition_has_a_broker_twice(
    brokers: int, partitions: int, factor: int, start: int
) -> None:
    factor = min(factor, brokers)
    placed = place([broker(n + 1) for n in range(brokers)], partitions, factor, start=start).assignments
    assert len(placed) == partitions
    assert all(len(replicas) == len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(n + 1, 0) for n in range(brokers)) <= 1


@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_thousands_of_small_topics_are_as_even_as_one_large_one(partitions: int) -> None:
    brokers, cursor = [broker(n) for n in range(1, 6)], Cursor(3)
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    for _ in range(1000):
        for assigned in place(brokers, partitions, 3, start=cursor.take(partitions)).assignments:
            leaders[assigned[0]] += 1
            replicas.update(assigned)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert max(replicas.values()) - min(replicas.values()) <= 0.02 * max(replicas.values())


def test_the_followers_of_one_leader_are_spread_over_all_other_brokers() -> None:
    placed = place([broker(n) for n in range(1, 6)], 100, 2, start=0).assignments
    followers = Counter(replicas[1] for replicas in placed if replicas[0] == 1)
    assert followers == {2: 5, 3: 5, 4: 5, 5: 5}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=4), st.integers(1, 30), st.integers(0, 500))
def test_replicas_stand_in_different_racks_as_far_as_there_are_racks(
    sizes: list[int], partitions: int, start: int
) -> None:
    racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    brokers = [broker(n + 1, rack=f"rack-{rack}") for n, rack in enumerate(racks)]
    factor = min(3, len(brokers))
    placement = place(brokers, partitions, factor, start=start)
    for replicas in placement.assignments:
        used = {racks[replica - 1] for replica in replicas}
        assert len(used) == min(factor, len(sizes))
    assert (placement.warning is not None) == (len(sizes) < factor)


def test_without_racks_different_hosts_are_preferred_and_sharing_one_is_a_warning() -> None:
    two_hosts = [broker(1, host="a"), broker(2, host="a"), broker(3, host="b"), broker(4, host="b")]
    apart = place(two_hosts, 12, 2, start=0)
    assert apart.warning is None
    assert all({1, 2} & set(replicas) and {3, 4} & set(replicas) for replicas in apart.assignments)
    shared = place(two_hosts, 12, 3, start=0)
    assert shared.warning is not None and "host" in shared.warning


def test_brokers_that_are_away_are_used_only_when_the_others_are_too_few() -> None:
    brokers = [
        broker(1),
        broker(2),
        broker(3, status=BrokerStatus.OFFLINE),
        broker(4, status=BrokerStatus.MAINTENANCE),
    ]
    enough = place(brokers, 20, 2, start=0)
    assert {replica for replicas in enough.assignments for replica in replicas} == {1, 2}
    too_few = place(brokers, 20, 3, start=0)
    assert too_few.warning is not None and "online" in too_few.warning
    assert all({1, 2} <= set(replicas) and replicas[0] in (1, 2) for replicas in too_few.assignments)


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor", "error"),
    [
        ([broker(1)], 1, 3, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([broker(1, status=BrokerStatus.OFFLINE)], 1, 1, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([], 1, 1, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([broker(1)], 0, 1, ErrorCode.INVALID_PARTITIONS),
        ([broker(1)], 10_001, 1, ErrorCode.INVALID_PARTITIONS),
        ([broker(1)], 1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_what_cannot_be_placed_is_refused_as_kafka_does(
    brokers: list[BrokerInfo], partitions: int, factor: int, error: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as raised:
        place(brokers, partitions, factor, start=0)
    assert raised.value.code == error


def test_an_assignment_by_the_client_is_kept_as_it_is_or_refused() -> None:
    image = MetadataImage()
    image.brokers = {n: broker(n) for n in (1, 2, 3)}
    assert explicit(image, {1: [3, 1], 0: [2, 3]}) == ((2, 3), (3, 1))
    assert explicit(image, {4: [2]}, first=4) == ((2,),)
    for bad in ({1: [1]}, {0: []}, {0: [1, 1]}, {0: [9]}, {0: [1], 1: [1, 2]}):
        with pytest.raises(KafkaError) as raised:
            explicit(image, bad)
        assert raised.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
