"""Topics are created, found and written through whichever node a client happens to reach, also while leaders change."""

from __future__ import annotations

import threading
import time

import pytest
from kafka import KafkaProducer

from chronik.protocol.errors import ErrorCode
from harness.cluster_view import ask, wait_until_agreed
from harness.node_process import NodeProcess
from harness.one_node import OneNode
from harness.waiting import eventually
from harness.workload import differing_replicas, replica_bytes

ALL = [1, 2, 3]
ANSWER_MAX_S = 5.0
CREATES_PER_NODE = 8
APART_S = 0.1


def followers(nodes: list[NodeProcess]) -> list[NodeProcess]:
    controller = ask(nodes[0]).controller
    return [node for node in nodes if node.node_id != controller]


def test_a_topic_created_at_a_follower_is_readable_there_when_the_answer_comes(trio: list[NodeProcess]) -> None:
    for node in followers(trio):
        with OneNode(node) as at:
            for number in range(20):
                name = f"created-{node.node_id}-{number}"
                assert at.create(name, partitions=2).error_code == 0
                assert at.partition(name, 1).error in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
                assert at.partition(name, 1).replicas


def test_a_topic_that_a_metadata_request_creates_at_a_follower_is_known_there_at_once(
    trio: list[NodeProcess],
) -> None:
    for node in followers(trio):
        with OneNode(node) as at:
            name = f"asked-for-{node.node_id}"
            assert at.partition(name).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "asking alone creates nothing"
            at.partition(name, create=True)
            assert len(at.partition(name).replicas) == 3, "three nodes, three replicas"


@pytest.mark.parametrize("number", [0, 1])
def test_a_record_sent_to_a_topic_that_does_not_exist_lands_on_all_three_nodes(
    trio: list[NodeProcess], number: int
) -> None:
    node = followers(trio)[number]
    topic = f"auto-{node.node_id}"
    producer = KafkaProducer(bootstrap_servers=node.bootstrap, acks="all")
    try:
        sent = producer.send(topic, b"hello").get(20)
    finally:
        producer.close()
    eventually(lambda: all(replica_bytes(each, topic, sent.partition) for each in trio), "the record is on all nodes")
    eventually(lambda: not differing_replicas(trio, topic, 1, only=sent.partition), "byte for byte")


def test_a_create_that_meets_a_change_of_leader_succeeds_or_may_be_retried_and_leaves_no_half_topic(
    trio: list[NodeProcess],
) -> None:
    wait_until_agreed(trio, brokers=ALL)
    controller = trio[ask(trio[0]).controller - 1]
    survivors = [node for node in trio if node is not controller]
    answers: dict[str, tuple[int, float]] = {}

    def create(node: NodeProcess, name: str) -> None:
        with OneNode(node, timeout_s=20.0) as at:
            started = time.monotonic()
            answer = at.create(name, partitions=3, replication=2, timeout_ms=4500)
            answers[name] = (answer.error_code, time.monotonic() - started)

    # Begun one after the other, so that some are under way at every moment of the change.
    threads = [
        threading.Timer(number * APART_S, create, (node, f"during-{node.node_id}-{number}"))
        for node in survivors
        for number in range(CREATES_PER_NODE)
    ]
    for thread in threads:
        thread.start()
    controller.kill()
    for thread in threads:
        thread.join(30)
    assert len(answers) == len(threads), "every create was answered"
    assert max(took for _, took in answers.values()) < ANSWER_MAX_S, answers
    assert all(not code or ErrorCode(code).retriable for code, _ in answers.values()), answers
    controller.start(wait=False)
    view = wait_until_agreed(trio, brokers=ALL)
    found = {name for name, _ in view.topics if name.startswith("during-")}
    assert {name for name, (code, _) in answers.items() if not code} <= found, "what was promised is there"
    placed = [partition for partition in view.partitions if partition[0] in found]
    assert len(placed) == 3 * len(found) and all(leader > 0 for _, _, leader, _, _ in placed), "no half topic"
