"""Metadata tells what this node knows, at once and truthfully, and creates topics that are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chronik.metadata import commands
from chronik.metadata.model import BrokerStatus
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.cluster import DescribeClusterRequest
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from chronik.protocol.messages.topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from unit.broker.serving import ServedNode

StartNode = Callable[..., Awaitable[ServedNode]]
NEWEST = 13


def named(*names: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create)


async def test_a_node_without_a_cluster_at_least_tells_of_itself(start_node: StartNode) -> None:
    node = await start_node(brokers=0)
    node.controller = -1
    client = await node.connect()
    response: MetadataResponse = await client.ask(MetadataRequest(topics=None), NEWEST)
    assert [(broker.node_id, broker.host, broker.port) for broker in response.brokers] == [(1, "127.0.0.1", 9092)]
    assert (response.controller_id, response.topics) == (-1, [])


@pytest.mark.parametrize("version", range(NEWEST + 1))
async def test_brokers_controller_and_topics_are_told_in_every_version(start_node: StartNode, version: int) -> None:
    node = await start_node(brokers=3)
    node.controller = 2
    await node.store.propose(commands.SetClusterId("the-cluster"))
    topic_id = await node.create_topic("t", partitions=2, replicas=(3, 1))
    client = await node.connect()
    everything = MetadataRequest(topics=[] if version == 0 else None)
    response: MetadataResponse = await client.ask(everything, version)
    assert [(broker.node_id, broker.host) for broker in response.brokers] == [
        (1, "host-1"),
        (2, "host-2"),
        (3, "host-3"),
    ]
    (topic,) = response.topics
    assert topic.name == "t"
    assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [
        (0, 3, [3, 1], [3, 1]),
        (1, 3, [3, 1], [3, 1]),
    ]
    if version >= 1:
        assert response.controller_id == 2
    if version >= 2:
        assert response.cluster_id == "the-cluster"
    if version >= 10:
        assert topic.topic_id == topic_id


async def test_no_topics_asked_for_means_none_from_version_1_on(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    assert (await client.ask(MetadataRequest(topics=[]), 1)).topics == []
    assert len((await client.ask(MetadataRequest(topics=[]), 0)).topics) == 1


async def test_a_dead_broker_is_not_listed_and_leads_nothing(start_node: StartNode) -> None:
    node = await start_node(brokers=2)
    await node.create_topic("t", replicas=(2, 1))
    client = await node.connect()
    await client.ask(named("t"), 9)
    await node.store.propose(commands.UpdateBrokerStatus(2, BrokerStatus.OFFLINE))
    response = await client.ask(named("t"), 9)
    assert [broker.node_id for broker in response.brokers] == [1]
    (partition,) = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert partition.offline_replicas == [2]


async def test_a_controller_that_is_dead_is_nobody(start_node: StartNode) -> None:
    node = await start_node(brokers=2)
    node.controller = 2
    await node.store.propose(commands.UpdateBrokerStatus(2, BrokerStatus.OFFLINE))
    assert (await (await node.connect()).ask(MetadataRequest(topics=[]), 9)).controller_id == -1


async def test_an_unknown_topic_is_unknown_unless_it_may_be_created(node: ServedNode) -> None:
    client = await node.connect()
    response = await client.ask(named("new", "bad name", create=False), 9)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert node.store.image.topics == {}


@pytest.mark.parametrize("version", [0, 1, 4, 9, NEWEST])
async def test_an_unknown_topic_is_created_and_readable_in_the_same_answer(start_node: StartNode, version: int) -> None:
    node = await start_node(static={"num.partitions": "3"})
    client = await node.connect()
    response = await client.ask(named("new", "bad name", create=True), version)
    new, bad = response.topics
    assert (new.error_code, [p.leader_id for p in new.partitions]) == (0, [1, 1, 1])
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert node.replicas.partition("new", 2).is_leader


async def test_the_broker_may_refuse_to_create_topics(start_node: StartNode) -> None:
    node = await start_node(static={"auto.create.topics.enable": "false"})
    response = await (await node.connect()).ask(named("new", create=True), 9)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_many_who_ask_for_one_new_topic_get_one_topic(node: ServedNode) -> None:
    clients = [await node.connect() for _ in range(10)]
    answers = await asyncio.gather(*(client.ask(named("new", create=True), 12) for client in clients))
    assert {answer.topics[0].error_code for answer in answers} == {0}
    assert len({answer.topics[0].topic_id for answer in answers}) == 1


async def test_a_cluster_that_cannot_agree_makes_the_client_ask_again(node: ServedNode) -> None:
    node.history.failure = TimeoutError("no leader")
    response = await (await node.connect()).ask(named("new", create=True), 9)
    assert response.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_a_topic_asked_for_before_any_broker_is_online_makes_the_client_ask_again(start_node: StartNode) -> None:
    node = await start_node(brokers=0)
    response = await (await node.connect()).ask(named("new", create=True), 9)
    assert response.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_topics_are_found_by_id(node: ServedNode) -> None:
    topic_id = await node.create_topic("t")
    client = await node.connect()
    request = MetadataRequest(
        topics=[
            MetadataRequestTopic(name=None, topic_id=topic_id),
            MetadataRequestTopic(name=None, topic_id=b"\x09" * 16),
        ]
    )
    response = await client.ask(request, 12)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("t", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_a_topic_that_changed_is_described_anew(node: ServedNode) -> None:
    topic_id = await node.create_topic("t")
    client = await node.connect()
    assert len((await client.ask(named("t"), 9)).topics[0].partitions) == 1
    await node.store.propose(commands.AddPartitions(topic_id, 1, ((1,),)))
    assert len((await client.ask(named("t"), 9)).topics[0].partitions) == 2


async def test_many_topics_are_encoded_once_and_again_when_anything_changes(node: ServedNode) -> None:
    for number in range(150):
        await node.create_topic(f"topic-{number}")
    client = await node.connect()
    for expected in (150, 150):
        assert len((await client.ask(MetadataRequest(topics=None), 12)).topics) == expected
    assert len(node.services.encoded_metadata) == 1
    await node.create_topic("one-more")
    assert len((await client.ask(MetadataRequest(topics=None), 12)).topics) == 151
    node.controller = -1
    assert (await client.ask(MetadataRequest(topics=None), 12)).controller_id == -1
    assert len((await client.ask(MetadataRequest(topics=None), 1)).topics) == 151


async def test_operations_are_told_when_asked_for(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    request = named("t")
    assert (await client.ask(request, 8)).topics[0].topic_authorized_operations == -2147483648
    request.include_topic_authorized_operations = request.include_cluster_authorized_operations = True
    response = await client.ask(request, 8)
    assert (response.topics[0].topic_authorized_operations, response.cluster_authorized_operations) == (3576, 8096)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_describe_cluster_agrees_with_metadata(start_node: StartNode, version: int) -> None:
    node = await start_node(brokers=3)
    await node.store.propose(commands.UpdateBrokerStatus(3, BrokerStatus.OFFLINE))
    client = await node.connect()
    response = await client.ask(DescribeClusterRequest(include_fenced_brokers=True), version)
    fenced = [(3, True)] if version >= 2 else [(3, False)]
    expected = [(1, False), (2, False), *(fenced if version >= 2 else [])]
    assert [(broker.broker_id, broker.is_fenced) for broker in response.brokers] == expected
    assert response.controller_id == 1


async def test_only_brokers_can_be_described(node: ServedNode) -> None:
    response = await (await node.connect()).ask(DescribeClusterRequest(endpoint_type=2), 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


async def test_partitions_come_page_by_page_and_none_twice(node: ServedNode) -> None:
    for name, partitions in (("a", 3), ("b", 1), ("c", 4)):
        await node.create_topic(name, partitions=partitions)
    client = await node.connect()
    seen: list[tuple[str | None, int]] = []
    cursor: Cursor | None = None
    for _ in range(20):
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        response: DescribeTopicPartitionsResponse = await client.ask(request, 0)
        page = [(topic.name, p.partition_index) for topic in response.topics for p in topic.partitions]
        assert len(page) <= 2
        seen.extend(page)
        cursor = response.next_cursor
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]


async def test_unknown_topics_are_told_among_the_described(node: ServedNode) -> None:
    await node.create_topic("known")
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="known"), TopicRequest(name="unknown")])
    response = await (await node.connect()).ask(request, 0)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("known", 0),
        ("unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
