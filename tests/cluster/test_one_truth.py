"""Metadata asked of any node is the same, whatever the start order and whatever was killed."""

from __future__ import annotations

import itertools
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from chronik.client.cluster import Cluster
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from harness.clients.kafka_python import KafkaPython
from harness.clients.legacy import LegacyKafkaPython
from harness.cluster_view import ClusterView, ask, wait_until_agreed
from harness.node_process import NodeProcess
from harness.waiting import eventually

ALL = [1, 2, 3]
ANSWER_LIMIT_S = 1.0
STAGGER_S = 30.0
ATTEMPT_S = 3.0
"""A client that was told of a controller that is gone gives up after this long and asks again."""


def create(node: NodeProcess, *topics: str, replication: int = 3, deadline_s: float = 20.0) -> None:
    """Creates topics through one node, retrying what may be retried."""

    def attempt() -> bool:
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        wanted = [NewTopic(topic, 3, replication) for topic in topics]
        for topic, future in admin.create_topics(
            wanted, request_timeout=ATTEMPT_S, operation_timeout=ATTEMPT_S
        ).items():
            try:
                future.result(2 * ATTEMPT_S)
            except Exception as error:
                if "already exists" not in str(error):
                    raise OSError(f"{topic}: {error}") from error
        return True

    eventually(attempt, f"{topics} are created through node {node.node_id}", deadline_s)


def all_clients_agree(nodes: list[NodeProcess]) -> ClusterView:
    """What every node tells every client, new and old: brokers 1, 2 and 3, and the same controller."""

    def agreed() -> ClusterView:
        view = wait_until_agreed(nodes, brokers=ALL)
        for node, version in itertools.product(nodes, (None, (0, 10, 0))):
            assert KafkaPython(node.bootstrap, version).brokers() == (ALL, view.controller), (node.node_id, version)
        return view

    return eventually(agreed, "kafka-python is told the same as librdkafka, by every node")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_start_order_gives_one_cluster(nodes: list[NodeProcess], order: tuple[int, ...]) -> None:
    for position in order:
        nodes[position].start(wait=False).wait_listening()
    wait_until_agreed(nodes, brokers=ALL)
    create(nodes[order[0]], "orders")
    view = all_clients_agree(nodes)
    assert [name for name, _ in view.topics] == ["orders"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_half_a_minute_between_the_starts_changes_nothing(nodes: list[NodeProcess]) -> None:
    for node in nodes:
        node.start(wait=False).wait_listening()
        if node is not nodes[-1]:
            until = time.monotonic() + STAGGER_S
            eventually(lambda at=until: time.monotonic() >= at, "time passes", STAGGER_S + 5)
    create(nodes[0], "orders")
    view = all_clients_agree(nodes)
    assert [name for name, _ in view.topics] == ["orders"]


def test_a_lonely_node_answers_truthfully_two_of_three_serve_and_the_late_one_catches_up(
    nodes: list[NodeProcess],
) -> None:
    nodes[0].start(wait=False).wait_listening()
    started = time.monotonic()
    client = KafkaPython(nodes[0].bootstrap)
    assert client.topics() == []
    assert time.monotonic() - started < ANSWER_LIMIT_S * 5
    with Cluster(nodes[0].bootstrap) as cluster:
        assert list(cluster.refresh().brokers) == [1]
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name="nowhere", num_partitions=1, replication_factor=1)], timeout_ms=2000
        )
        (refused,) = cluster.call_any(request, CreateTopicsResponse).topics
        assert ErrorCode(refused.error_code).retriable and "quorum" in (refused.error_message or ""), refused
    nodes[1].start(wait=False)
    wait_until_agreed(nodes[:2], brokers=[1, 2])
    create(nodes[1], "early", replication=2)
    nodes[2].start(wait=False)
    view = all_clients_agree(nodes)
    assert [name for name, _ in view.topics] == ["early"]


def names(view: ClusterView, prefix: str) -> list[str]:
    return [name for name, _ in view.topics if name.startswith(prefix)]


def test_old_and_new_clients_see_the_same_cluster_through_every_node(trio: list[NodeProcess]) -> None:
    view = wait_until_agreed(trio, brokers=ALL)
    for node in trio:
        for client in (KafkaPython(node.bootstrap), KafkaPython(node.bootstrap, (0, 10, 0))):
            assert client.brokers() == (ALL, view.controller)
        old = LegacyKafkaPython(node.bootstrap, (0, 10, 0))
        try:
            assert old.brokers() == (ALL, view.controller)
            old.create_topic(f"from-{node.node_id}", 2, 3, {})
            assert f"from-{node.node_id}" in old.topics()
        finally:
            old.close()
    agreed = all_clients_agree(trio)
    assert names(agreed, "from-") == ["from-1", "from-2", "from-3"]


def test_killing_the_controller_again_and_again_loses_no_topic(trio: list[NodeProcess]) -> None:
    kill_controllers(trio, turns=2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killing_the_controller_for_a_long_time_loses_no_topic(cluster: list[NodeProcess]) -> None:
    kill_controllers(cluster, turns=20)


def kill_controllers(cluster: list[NodeProcess], turns: int) -> None:
    wait_until_agreed(cluster, brokers=ALL)
    made: list[str] = []
    for turn in range(turns):
        controller = ask(cluster[0]).controller
        for node in cluster:
            create(node, f"kept-{turn}-before-{node.node_id}")
            made.append(f"kept-{turn}-before-{node.node_id}")
        cluster[controller - 1].kill()
        survivors = [node for node in cluster if node.node_id != controller]
        for node in survivors:
            create(node, f"kept-{turn}-during-{node.node_id}", replication=2)
            made.append(f"kept-{turn}-during-{node.node_id}")
        cluster[controller - 1].start(wait=False)
        view = all_clients_agree(cluster)
        assert names(view, "kept-") == sorted(made)


def test_all_killed_at_once_come_back_with_everything(trio: list[NodeProcess]) -> None:
    wait_until_agreed(trio, brokers=ALL)
    create(trio[2], "one", "two", "three")
    before = wait_until_agreed(trio, brokers=ALL)
    for node in trio:
        node.kill()
    for node in trio:
        node.start(wait=False)
    after = all_clients_agree(trio)
    assert after.topics == before.topics


def test_a_paused_controller_is_replaced_and_steps_down_when_it_wakes(trio: list[NodeProcess]) -> None:
    view = wait_until_agreed(trio, brokers=ALL)
    paused = trio[view.controller - 1]
    others = [node for node in trio if node is not paused]
    paused.pause()
    try:
        create(others[0], "while-paused", replication=2)
        replaced = wait_until_agreed(others, brokers=[node.node_id for node in others])
        assert replaced.controller != paused.node_id
    finally:
        paused.resume()
    final = all_clients_agree(trio)
    assert names(final, "while-paused") == ["while-paused"]


def test_concurrent_creates_of_one_name_make_one_topic(trio: list[NodeProcess]) -> None:
    wait_until_agreed(trio, brokers=ALL)
    admins = [AdminClient({"bootstrap.servers": node.bootstrap}) for node in trio]
    futures = [admin.create_topics([NewTopic("same", 3, 3)])["same"] for admin in admins]
    outcomes = [future.exception(20) for future in futures]
    assert sum(outcome is None for outcome in outcomes) == 1, outcomes
    assert all("already exists" in str(outcome) for outcome in outcomes if outcome is not None), outcomes
    assert names(wait_until_agreed(trio, brokers=ALL), "same") == ["same"]
