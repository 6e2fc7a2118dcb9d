"""Reassignments, elections, the quorum, features and unregistering, through any node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chronik.broker.quorum import MemberState, Quorum, QuorumState
from chronik.metadata import commands
from chronik.metadata.model import BrokerStatus
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.cluster import FeatureUpdateKey, UnregisterBrokerRequest, UpdateFeaturesRequest
from chronik.protocol.messages.elections import ElectLeadersRequest, TopicPartitions
from chronik.protocol.messages.quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from chronik.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from harness.metadata_double import bring_up
from unit.broker.serving import ServedNode

StartNode = Callable[..., Awaitable[ServedNode]]


def moves(topic: str, *targets: list[int] | None, **more: Any) -> AlterPartitionReassignmentsRequest:
    wishes = [ReassignablePartition(partition_index=index, replicas=target) for index, target in enumerate(targets)]
    return AlterPartitionReassignmentsRequest(
        timeout_ms=5000, topics=[ReassignableTopic(name=topic, partitions=wishes)], **more
    )


async def test_a_reassignment_is_taken_listed_and_cancelled(start_node: StartNode) -> None:
    node = await start_node(brokers=3)
    await node.create_topic("t", partitions=2)
    client = await node.connect()
    answer = await client.ask(moves("t", [2, 3]), 0)
    assert [(p.partition_index, p.error_code) for p in answer.responses[0].partitions] == [(0, 0)]
    listed = await client.ask(ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None), 0)
    (moving,) = listed.topics[0].partitions
    assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == ([2, 3, 1], [2, 3], [1])
    elsewhere = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[1, 7])]
    assert (await client.ask(ListPartitionReassignmentsRequest(topics=elsewhere), 0)).topics == []
    assert (await client.ask(moves("t", None), 0)).responses[0].partitions[0].error_code == 0
    assert node.store.image.topics["t"].partitions[0].replicas == (1,)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (moves("missing", [1]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (moves("t", None), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (moves("t", []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (moves("t", [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (moves("t", [9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (moves("t", [1, 2], allow_replication_factor_change=False), ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
async def test_a_reassignment_that_cannot_be_is_refused(
    start_node: StartNode, request_: AlterPartitionReassignmentsRequest, code: ErrorCode
) -> None:
    node = await start_node(brokers=2)
    await node.create_topic("t")
    answer = (await (await node.connect()).ask(request_, 1)).responses[0].partitions[0]
    assert (answer.error_code, bool(answer.error_message)) == (code, True)


class ScriptedController:
    def __init__(self) -> None:
        self.asked: list[tuple[list[tuple[str, int]] | None, bool]] = []
        self.error: KafkaError | None = None

    async def elect_leaders(
        self, partitions: list[tuple[str, int]] | None, *, unclean: bool, timeout_s: float
    ) -> list[tuple[str, int, ErrorCode, str]]:
        self.asked.append((partitions, unclean))
        if self.error is not None:
            raise self.error
        return [(name, number, ErrorCode.NONE, "") for name, number in partitions or [("t", 0), ("t", 1)]]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_elections_are_asked_of_the_controller(start_node: StartNode, version: int) -> None:
    controller = ScriptedController()
    node = await start_node(coordinators={"controller": controller})
    client = await node.connect()
    named = [TopicPartitions(topic="a", partitions=[0, 2]), TopicPartitions(topic="b", partitions=[1])]
    answer = await client.ask(ElectLeadersRequest(topic_partitions=named, timeout_ms=1000), version)
    assert [(r.topic, [p.partition_id for p in r.partition_result]) for r in answer.replica_election_results] == [
        ("a", [0, 2]),
        ("b", [1]),
    ]
    everything = await client.ask(ElectLeadersRequest(topic_partitions=None, timeout_ms=1000), version)
    assert len(everything.replica_election_results[0].partition_result) == 2
    assert controller.asked == [([("a", 0), ("a", 2), ("b", 1)], False), (None, False)]
    controller.error = KafkaError(ErrorCode.NOT_CONTROLLER, "nobody leads")
    failed = await client.ask(ElectLeadersRequest(topic_partitions=named, timeout_ms=1000), version)
    codes = {p.error_code for result in failed.replica_election_results for p in result.partition_result}
    assert codes == {ErrorCode.NOT_CONTROLLER}


class ScriptedGroup:
    """A Raft group and its peers in one: this node follows node 2, whose answer goes through real bytes."""

    def __init__(self, leads: bool) -> None:
        self.is_leader = leads
        self.leader_id = 1 if leads else 2
        self.handlers: dict[str, Any] = {}
        self.reachable = True

    def serve(self, kind: str, handler: Any) -> None:
        self.handlers[kind] = handler

    async def request(self, peer: int, kind: str, payload: bytes, *, timeout_s: float) -> bytes:
        if not self.reachable:
            raise ConnectionError("out of reach")
        answer: bytes = await self.handlers[kind](1, payload)
        return answer


class KnownQuorum(Quorum):
    def _own_state(self) -> QuorumState:
        members = [
            MemberState(1, b"\x01" * 16, True, "h1", 9192, 41, 1000),
            MemberState(2, b"\x02" * 16, True, "h2", 9192, 41, 1001),
            MemberState(3, b"\x03" * 16, False, "h3", 9192, 7, 1002),
        ]
        return QuorumState(2, 5, 41, members)


METADATA_PARTITION = [QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)])]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("leads", [True, False])
async def test_the_quorum_is_described_by_any_node(start_node: StartNode, version: int, leads: bool) -> None:
    group = ScriptedGroup(leads)
    node = await start_node(coordinators={"quorum": KnownQuorum(group, group)})
    answer = await (await node.connect()).ask(DescribeQuorumRequest(topics=METADATA_PARTITION), version)
    (partition,) = answer.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (2, 5, 42)
    assert [(voter.replica_id, voter.log_end_offset) for voter in partition.current_voters] == [(1, 42), (2, 42)]
    assert [(observer.replica_id, observer.log_end_offset) for observer in partition.observers] == [(3, 8)]
    if version >= 2:
        assert [(n.node_id, n.listeners[0].host) for n in answer.nodes] == [(1, "h1"), (2, "h2"), (3, "h3")]


async def test_a_quorum_without_a_reachable_leader_is_an_error_that_says_so(start_node: StartNode) -> None:
    group = ScriptedGroup(leads=False)
    group.reachable = False
    node = await start_node(coordinators={"quorum": KnownQuorum(group, group)})
    client = await node.connect()
    answer = await client.ask(DescribeQuorumRequest(topics=METADATA_PARTITION), 2)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "node 2" in answer.error_message
    group.leader_id = 0
    assert (await client.ask(DescribeQuorumRequest(), 2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_broker_is_unregistered_once(start_node: StartNode) -> None:
    node = await start_node(brokers=2)
    await node.store.propose(commands.UpdateBrokerStatus(2, BrokerStatus.OFFLINE))
    client = await node.connect()
    assert (await client.ask(UnregisterBrokerRequest(broker_id=2), 0)).error_code == 0
    assert set(node.store.image.brokers) == {1}
    again = await client.ask(UnregisterBrokerRequest(broker_id=2), 0)
    assert (again.error_code, bool(again.error_message)) == (ErrorCode.BROKER_ID_NOT_REGISTERED, True)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_feature_rises_only_as_far_as_every_broker_can(node: ServedNode, version: int) -> None:
    client = await node.connect()
    await node.store.propose(commands.RemoveBroker(1))
    await bring_up(node.store, 1, features={"chronik.version": (1, 1), "some.feature": (0, 3)})

    async def update(name: str, level: int, **more: Any) -> int:
        key = FeatureUpdateKey(feature=name, max_version_level=level, **more)
        answer = await client.ask(UpdateFeaturesRequest(feature_updates=[key]), version)
        code: int = answer.error_code if version >= 2 else answer.results[0].error_code
        return code

    assert await update("some.feature", 2) == 0
    assert node.store.image.features["some.feature"] == 2
    assert await update("some.feature", 9) == ErrorCode.INVALID_UPDATE_VERSION
    assert await update("unknown.feature", 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert await update("some.feature", 1) == ErrorCode.INVALID_UPDATE_VERSION
    downgrade = {"allow_downgrade": True} if version == 0 else {"upgrade_type": 2}
    assert await update("some.feature", 1, **downgrade) == 0
    assert node.store.image.features["some.feature"] == 1


async def test_validating_a_feature_changes_nothing(node: ServedNode) -> None:
    before = dict(node.store.image.features)
    key = FeatureUpdateKey(feature="chronik.version", max_version_level=1)
    request = UpdateFeaturesRequest(feature_updates=[key], validate_only=True)
    assert (await (await node.connect()).ask(request, 2)).error_code == 0
    assert node.store.image.features == before
