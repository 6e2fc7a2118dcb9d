"""Nodes that cannot talk to each other: who is cut off acknowledges nothing, and everything heals by itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from chronik.protocol.errors import ErrorCode
from harness.cluster_view import ask, wait_until_agreed
from harness.fault_proxy import FaultProxy
from harness.faults import CUTS, Faults
from harness.node_process import NodeProcess, three_nodes
from harness.one_node import OneNode
from harness.waiting import eventually
from harness.workload import Workload, differing_replicas

ALL = [1, 2, 3]
REFUSALS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
}
LEASE_IS_OVER_S = 5.0
LAG_LIMIT_MS = 3000  # a leader cut off from one follower waits this long for it, when nobody is dead
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def network() -> Iterator[FaultProxy]:
    made = FaultProxy()
    yield made
    made.close()


@pytest.fixture(scope="module")
def trio(network: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    made = three_nodes(tmp_path_factory.mktemp("trio"), {"replica.lag.time.max.ms": str(LAG_LIMIT_MS)}, network=network)
    for node in made:
        node.start(wait=False)
    wait_until_agreed(made, brokers=ALL)
    yield made
    for node in made:
        node.close()


@pytest.fixture
def whole(trio: list[NodeProcess], network: FaultProxy) -> Iterator[list[NodeProcess]]:
    """The three, in agreement before and after the test."""
    wait_until_agreed(trio, brokers=ALL)
    yield trio
    network.heal()
    wait_until_agreed(trio, brokers=ALL)


def new_topic(node: NodeProcess, leader: int) -> str:
    """A topic of one partition that this node leads, replicated to all."""
    name = f"cut-{next(_numbers)}"
    with OneNode(node) as at:
        replicas = [leader, *(other for other in ALL if other != leader)]
        assert at.create(name, replicas=replicas, min_insync_replicas="2").error_code == 0
        eventually(lambda: at.partition(name).leader == leader, "the first replica leads")
        eventually(lambda: at.partition(name).isr == (1, 2, 3), "all are in sync")
    return name


@pytest.mark.parametrize("role", ["controller", "other"])
@pytest.mark.parametrize("how", ["isolate", "mute"])
def test_a_leader_that_is_cut_off_acknowledges_nothing_once_another_is_elected(
    whole: list[NodeProcess], network: FaultProxy, how: str, role: str
) -> None:
    controller = ask(whole[0]).controller
    leader = controller if role == "controller" else next(node_id for node_id in ALL if node_id != controller)
    others = [node for node in whole if node.node_id != leader]
    topic = new_topic(whole[0], leader)
    with OneNode(whole[leader - 1]) as cut_off, OneNode(others[0]) as one:
        assert cut_off.produce(topic, 0, b"before").error is ErrorCode.NONE
        getattr(network, how)(leader, [node.node_id for node in others])
        eventually(lambda: one.partition(topic).leader not in (leader, -1), "another node leads")
        for acks in (1, -1):
            assert cut_off.produce(topic, 0, b"stale", acks=acks, timeout_ms=1000).error in REFUSALS
        successor = one.partition(topic)
        assert successor.leader != leader
    with OneNode(whole[successor.leader - 1]) as new:
        eventually(lambda: new.produce(topic, 0, b"after").error is ErrorCode.NONE, "the new leader acknowledges")
        network.heal()
        eventually(lambda: new.partition(topic).isr == (1, 2, 3), "the old leader follows, without an operator", 30.0)
        assert new.fetch(topic, 0).values == [b"before", b"after"]
    assert differing_replicas(whole, topic, 1) == []


def test_a_leader_that_hears_nobody_acknowledges_nothing(whole: list[NodeProcess], network: FaultProxy) -> None:
    """It is heard, so nobody takes its place at once; but its lease is not renewed, and nothing is replicated."""
    controller = ask(whole[0]).controller
    leader = next(node_id for node_id in ALL if node_id != controller)
    topic = new_topic(whole[0], leader)
    others = [node_id for node_id in ALL if node_id != leader]
    with OneNode(whole[leader - 1]) as deaf:
        assert deaf.produce(topic, 0, b"before").error is ErrorCode.NONE
        network.deafen(leader, others)
        started = time.monotonic()
        assert deaf.produce(topic, 0, b"alone", timeout_ms=1000).error in REFUSALS, "nobody else has it"
        eventually(
            lambda: deaf.produce(topic, 0, b"stale", acks=1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "its lease is over",
        )
        assert time.monotonic() - started < LEASE_IS_OVER_S
    with OneNode(whole[others[0] - 1]) as one:
        eventually(lambda: one.partition(topic).leader not in (leader, -1), "another node leads in the end", 30.0)
        network.heal()
        eventually(lambda: one.partition(topic).isr == (1, 2, 3), "all are in sync again", 30.0)


def test_a_producer_that_knows_only_the_leader_that_is_cut_off_finds_the_new_one(
    whole: list[NodeProcess], network: FaultProxy
) -> None:
    """The old leader believes that it leads, and librdkafka asks whom it is connected to: it must be sent away."""
    controller = ask(whole[0]).controller
    leader = next(node_id for node_id in ALL if node_id != controller)
    topic = new_topic(whole[0], leader)
    producer = Producer({"bootstrap.servers": whole[leader - 1].bootstrap, "acks": "all", "log_level": 0})
    delivered: list[object] = []
    producer.produce(topic, b"before", on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(20) == 0
    network.isolate(leader, [node_id for node_id in ALL if node_id != leader])
    producer.produce(topic, b"after", on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(30) == 0, "it never finds the new leader"
    assert delivered == [None, None]


def test_a_consumer_that_waits_at_the_leader_that_is_cut_off_goes_on_at_the_new_one(
    whole: list[NodeProcess], network: FaultProxy
) -> None:
    """What is committed can be read there, but nobody is kept waiting for what comes elsewhere."""
    controller = ask(whole[0]).controller
    leader = next(node_id for node_id in ALL if node_id != controller)
    others = [node for node in whole if node.node_id != leader]
    topic = new_topic(whole[0], leader)
    seen: list[bytes | None] = []
    consumer = Consumer({"bootstrap.servers": whole[leader - 1].bootstrap, "group.id": "cut-off", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])

    def read(until: list[bytes]) -> bool:
        for message in consumer.consume(10, timeout=0.2):
            if message.error() is None:
                seen.append(message.value())
        return seen == until

    with OneNode(whole[leader - 1]) as cut_off, OneNode(others[0]) as one:
        assert cut_off.produce(topic, 0, b"before").error is ErrorCode.NONE
        eventually(lambda: read([b"before"]), "it reads")
        network.isolate(leader, [node.node_id for node in others])
        eventually(lambda: one.partition(topic).leader not in (leader, -1), "another node leads")
        assert cut_off.fetch(topic, 0).values == [b"before"]
        assert cut_off.fetch(topic, 0, 1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with OneNode(whole[one.partition(topic).leader - 1]) as new:
            eventually(lambda: new.produce(topic, 0, b"after").error is ErrorCode.NONE, "the new one takes records")
    eventually(lambda: read([b"before", b"after"]), "it finds the new leader while the old one is still cut off", 30.0)
    consumer.close()


def test_a_minority_decides_nothing(whole: list[NodeProcess], network: FaultProxy) -> None:
    controller = ask(whole[0]).controller
    for cut_off in (controller, next(node_id for node_id in ALL if node_id != controller)):
        others = [node for node in whole if node.node_id != cut_off]
        network.isolate(cut_off, [node.node_id for node in others])
        name = f"minority-{cut_off}"
        with OneNode(whole[cut_off - 1]) as alone, OneNode(others[0]) as majority:
            started = time.monotonic()
            refused = alone.create(name, timeout_ms=2000)
            assert ErrorCode(refused.error_code).retriable, refused
            assert time.monotonic() - started < 5
            eventually(lambda at=majority, n=name: at.create(f"{n}-not", replication=2).error_code == 0, "others go on")
            assert alone.partition(name).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert majority.partition(name).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert alone.partition(f"{name}-not").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            network.heal()
            eventually(lambda at=alone, n=name: at.partition(f"{n}-not").leader > 0, "it catches up", 30.0)
        # What was asked for may have been on its way and arrive late; then it holds for all.
        wait_until_agreed(whole, brokers=ALL)


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_or_doubled_when_the_network_is_cut(
    whole: list[NodeProcess], network: FaultProxy
) -> None:
    with OneNode(whole[0]) as at:
        assert at.create("cuts", partitions=3, min_insync_replicas="2").error_code == 0
    workload = Workload(whole, "cuts", 3).start()
    workload.wait_for_progress(200)
    faults = Faults(whole, workload, network)
    for cut in CUTS:
        getattr(faults, cut)()
    workload.wait_for_progress(200)
    workload.stop()
    assert workload.verify() == []
    eventually(
        lambda: not differing_replicas(whole, "cuts", 3),
        f"the replicas are the same: {differing_replicas(whole, 'cuts', 3)}",
    )
