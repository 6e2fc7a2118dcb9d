"""Finding brokers, leaders and topics, and finding them again when they moved."""

from __future__ import annotations

import time

import pytest

from chronik.client import Cluster, GaveUp, NoBrokerReachable, TopicPartition
from chronik.client.addresses import parse_address, parse_bootstrap
from chronik.client.offsets import end_offsets, partitions_of
from chronik.protocol.api import ApiKey
from chronik.protocol.errors import ErrorCode, KafkaError
from harness.fake_cluster import FakeCluster
from harness.ports import free_port

from .conftest import IMPATIENT


def test_addresses_are_read_as_people_write_them() -> None:
    assert parse_bootstrap("a:1, b ,[::1]:3") == [("a", 1), ("b", 9092), ("::1", 3)]
    assert parse_bootstrap(["a:1", "b:2,c:3"]) == [("a", 1), ("b", 2), ("c", 3)]
    assert parse_address("fe80::1") == ("fe80::1", 9092)


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:65536", ":9092", "[::1", "[::1]9092", "a:-1", "a:¹"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="9092"):
        parse_bootstrap(text)


def test_one_live_address_among_dead_ones_is_enough(fake: FakeCluster) -> None:
    with Cluster(f"127.0.0.1:{free_port()},127.0.0.1:{fake.nodes[2].port}", IMPATIENT) as cluster:
        assert [broker.node_id for broker in cluster.brokers()] == [1, 2, 3]


def test_when_nobody_answers_every_address_is_named_with_its_reason() -> None:
    first, second = free_port(), free_port()
    with Cluster(f"127.0.0.1:{first},127.0.0.1:{second}", IMPATIENT) as cluster:
        with pytest.raises(NoBrokerReachable) as caught:
            cluster.brokers()
    assert f"127.0.0.1:{first}" in str(caught.value) and f"127.0.0.1:{second}" in str(caught.value)
    assert "Check that it runs" in str(caught.value)


def test_looking_for_a_topic_in_an_unreachable_cluster_gives_up_soon() -> None:
    with Cluster(f"127.0.0.1:{free_port()}", IMPATIENT) as cluster:
        with pytest.raises((GaveUp, NoBrokerReachable), match="no broker"):
            cluster.topic("t")


def test_an_unknown_topic_is_waited_for_a_moment_and_then_refused_with_advice(
    fake: FakeCluster, cluster: Cluster
) -> None:
    started = time.monotonic()
    with pytest.raises(KafkaError, match="chronik topic create absent") as caught:
        cluster.topic("absent")
    assert time.monotonic() - started < IMPATIENT.retry.timeout_s / 2
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(fake.asked(ApiKey.METADATA)) > 1


def test_a_topic_that_appears_while_it_is_waited_for_is_found(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("late")
    fake.fail(ApiKey.METADATA, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, times=2)
    assert len(cluster.topic("late").partitions) == 1


def test_a_topic_created_on_demand_is_found(fake: FakeCluster, cluster: Cluster) -> None:
    fake.auto_create = True
    with pytest.raises(KafkaError):
        cluster.topic("fresh")
    assert cluster.topic("fresh", auto_create=True).name == "fresh"


def test_what_is_known_is_not_asked_again_until_it_is_doubted(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    leaders = [cluster.leader(TopicPartition("t", index)).node_id for index in range(3)]
    assert leaders == [1, 2, 3]
    assert len(fake.asked(ApiKey.METADATA)) == 1
    fake.move_leader("t", 0, 3)
    assert cluster.leader(TopicPartition("t", 0)).node_id == 1
    cluster.doubt("t")
    assert cluster.leader(TopicPartition("t", 0)).node_id == 3
    assert len(fake.asked(ApiKey.METADATA)) == 2


def test_many_unknown_topics_are_asked_for_at_once_and_known_ones_are_left_alone(
    fake: FakeCluster, cluster: Cluster
) -> None:
    for name in ("a", "b", "c", "d"):
        fake.create(name)
    cluster.look_up(["a"])
    cluster.look_up(["a", "b", "c"])
    cluster.look_up(["c", "b"])
    cluster.doubt("c")
    cluster.look_up(["d"])
    names = [[topic.name for topic in message.topics or ()] for message in fake.asked(ApiKey.METADATA)]  # type: ignore[attr-defined]
    assert names == [["a"], ["b", "c"], ["c", "d"]]
    cluster.refresh()
    assert len(fake.asked(ApiKey.METADATA)[-1].topics) == 4  # type: ignore[attr-defined]


def test_a_partition_that_does_not_exist_is_refused_with_the_count(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with pytest.raises(KafkaError, match="has no partition 7; it has 2"):
        cluster.leader(TopicPartition("t", 7))


def test_a_partition_without_a_leader_is_waited_for_and_then_refused(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.topics["t"].partitions[0].leader = -1
    with pytest.raises(KafkaError, match="no leader") as caught:
        cluster.leader(TopicPartition("t", 0))
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    fake.move_leader("t", 0, 2)
    assert cluster.leader(TopicPartition("t", 0)).node_id == 2


def test_one_connection_to_a_broker_serves_all_questions(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    for _ in range(5):
        cluster.refresh()
        end_offsets(cluster, partitions_of(cluster, "t"))
    assert sum(node.accepted for node in fake.nodes.values()) <= 4  # one of them was the first contact


def test_a_question_to_a_dead_leader_goes_to_the_new_one(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    places = partitions_of(cluster, "t")
    end_offsets(cluster, places)
    fake.nodes[2].stop()
    fake.move_leader("t", 1, 3)
    assert end_offsets(cluster, places) == dict.fromkeys(places, 0)


def test_a_connection_that_the_broker_closed_while_idle_is_replaced(fake: FakeCluster, cluster: Cluster) -> None:
    cluster.refresh()
    for node in fake.nodes.values():
        node.cut_connections()
    assert len(cluster.refresh().brokers) == 3


def test_when_the_known_brokers_are_gone_the_bootstrap_list_is_tried_again(fake: FakeCluster) -> None:
    with Cluster(fake.bootstrap, IMPATIENT) as cluster:
        fake.nodes[1].advertised = False
        fake.nodes[3].advertised = False
        assert [broker.node_id for broker in cluster.brokers()] == [2]
        fake.nodes[2].stop()
        fake.nodes[1].advertised = True
        assert 1 in cluster.refresh().brokers


def test_an_advertised_address_that_cannot_be_reached_is_named(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    broker = cluster.leader(TopicPartition("t", 1))
    fake.nodes[2].stop()
    with pytest.raises(Exception, match="broker 2 advertises"):
        cluster.connection(broker)
