"""Creating, growing and deleting topics: every check has Kafka's error, and every item its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from unit.broker.serving import KafkaClient, ServedNode

StartNode = Callable[..., Awaitable[ServedNode]]


def topic(
    name: str = "t",
    partitions: int = 1,
    replicas: int = 1,
    assignments: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=-1 if assignments else partitions,
        replication_factor=-1 if assignments else replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in (assignments or {}).items()
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


async def create(
    client: KafkaClient, *topics: CreatableTopic, version: int = 7, **more: object
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=5000, **more)  # type: ignore[arg-type]
    results: list[CreatableTopicResult] = (await client.ask(request, version)).topics
    return results


@pytest.mark.parametrize("version", range(8))
async def test_a_created_topic_is_there_and_led_when_the_answer_comes(node: ServedNode, version: int) -> None:
    client = await node.connect()
    wanted = topic("t", partitions=3, configs={"retention.ms": "1000"})
    (result,) = await create(client, wanted, version=version)
    assert (result.name, result.error_code) == ("t", 0)
    assert all(node.replicas.partition("t", index).is_leader for index in range(3))
    assert node.store.image.topics["t"].configs == {"retention.ms": "1000"}
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        configs = {config.name: (config.value, config.config_source) for config in result.configs or []}
        assert configs["retention.ms"] == ("1000", 1)
        assert configs["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert result.topic_id == node.store.image.topics["t"].topic_id


async def test_defaults_are_the_brokers(start_node: StartNode) -> None:
    node = await start_node(brokers=3, static={"num.partitions": "5"})
    (result,) = await create(await node.connect(), topic(partitions=-1, replicas=-1))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 5, 3)


async def test_an_assignment_of_the_client_is_honoured(start_node: StartNode) -> None:
    node = await start_node(brokers=3)
    (result,) = await create(await node.connect(), topic(assignments={1: [3, 2], 0: [2, 1]}))
    assert result.error_code == 0
    assert [partition.replicas for partition in node.store.image.topics["t"].partitions] == [(2, 1), (3, 2)]


REFUSED: dict[str, tuple[CreatableTopic, ErrorCode]] = {
    "an empty name": (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a bad name": (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a dot": (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a long name": (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a colliding name": (topic("exists.already"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "an existing name": (topic("exists_already"), ErrorCode.TOPIC_ALREADY_EXISTS),
    "the metadata topic": (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
    "no partitions": (topic(partitions=0), ErrorCode.INVALID_PARTITIONS),
    "negative partitions": (topic(partitions=-2), ErrorCode.INVALID_PARTITIONS),
    "too many partitions": (topic(partitions=10_001), ErrorCode.POLICY_VIOLATION),
    "no replicas": (topic(replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "more replicas than brokers": (topic(replicas=4), ErrorCode.INVALID_REPLICATION_FACTOR),
    "an unknown config": (topic(configs={"no.such.config": "1"}), ErrorCode.INVALID_CONFIG),
    "a bad config value": (topic(configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
    "a null config value": (topic(configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
    "an assignment with a gap": (topic(assignments={0: [1], 2: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "an uneven assignment": (topic(assignments={0: [1], 1: [1, 2]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "an empty replica list": (topic(assignments={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "a broker twice": (topic(assignments={0: [1, 1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "an unknown broker": (topic(assignments={0: [9]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "an assignment and numbers": (
        CreatableTopic(
            name="t",
            num_partitions=1,
            replication_factor=1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
        ),
        ErrorCode.INVALID_REQUEST,
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_topic_that_cannot_be_is_refused_with_kafkas_error_and_a_message(
    start_node: StartNode, what: str, validate_only: bool
) -> None:
    node = await start_node(brokers=3)
    await node.create_topic("exists_already")
    wish, code = REFUSED[what]
    good = topic("good")
    refused, created = await create(await node.connect(), wish, good, validate_only=validate_only)
    assert (refused.error_code, created.error_code) == (code, 0)
    assert refused.error_message
    assert set(node.store.image.topics) == ({"exists_already"} if validate_only else {"exists_already", "good"})


async def test_a_name_given_twice_is_refused_once(node: ServedNode) -> None:
    results = await create(await node.connect(), topic("twice"), topic("twice"), topic("once"))
    assert [(result.name, result.error_code) for result in results] == [
        ("twice", ErrorCode.INVALID_REQUEST),
        ("once", 0),
    ]


async def test_validate_only_tells_what_would_be_and_creates_nothing(node: ServedNode) -> None:
    wish = topic("t", partitions=3, configs={"retention.ms": "7"})
    (result,) = await create(await node.connect(), wish, validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 3, bytes(16))
    assert {config.name: config.value for config in result.configs or []}["retention.ms"] == "7"
    assert node.store.image.topics == {}


async def test_hundreds_of_topics_in_one_request_are_all_created(node: ServedNode) -> None:
    results = await create(await node.connect(), *(topic(f"topic-{i}", partitions=3) for i in range(600)))
    assert {result.error_code for result in results} == {0}
    assert len(node.store.image.topics) == 600
    assert len(node.history.entries) < 20, "topics of one request share log entries"


async def test_concurrent_creations_of_one_name_make_one_topic(node: ServedNode) -> None:
    clients = [await node.connect() for _ in range(8)]
    answers = await asyncio.gather(*(create(client, topic("t")) for client in clients))
    codes = sorted(result.error_code for (result,) in answers)
    assert codes == [0] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 7


async def test_a_cluster_that_cannot_agree_is_a_retriable_error(node: ServedNode) -> None:
    node.history.failure = TimeoutError("no leader was found")
    (result,) = await create(await node.connect(), topic())
    assert ErrorCode(result.error_code).retriable
    assert result.error_message


# --- deleting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_a_topic_is_deleted_by_name(node: ServedNode, version: int) -> None:
    await node.create_topic("t")
    request = DeleteTopicsRequest(topic_names=["t", "missing"], timeout_ms=5000)
    request.topics = [DeleteTopicState(name=name) for name in request.topic_names]
    if version < 6:
        request.topics = []
    response = await (await node.connect()).ask(request, version)
    assert [(result.name, result.error_code) for result in response.responses] == [
        ("t", 0),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert node.store.image.topics == {}
    assert node.replicas.get("t", 0) is None


async def test_a_topic_is_deleted_by_id_and_a_new_one_has_another(node: ServedNode) -> None:
    client = await node.connect()
    (first,) = await create(client, topic("t"))
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=first.topic_id)], timeout_ms=5000)
    (deleted,) = (await client.ask(by_id, 6)).responses
    assert (deleted.name, deleted.topic_id, deleted.error_code) == ("t", first.topic_id, 0)
    (second,) = await create(client, topic("t"))
    assert second.topic_id != first.topic_id
    (again,) = (await client.ask(by_id, 6)).responses
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert "t" in node.store.image.topics


@pytest.mark.parametrize(
    "states",
    [
        [DeleteTopicState(name="t", topic_id=b"\x01" * 16)],
        [DeleteTopicState()],
        [DeleteTopicState(name="t"), DeleteTopicState(name="t")],
    ],
)
async def test_an_ambiguous_deletion_is_refused(node: ServedNode, states: list[DeleteTopicState]) -> None:
    await node.create_topic("t")
    response = await (await node.connect()).ask(DeleteTopicsRequest(topics=states, timeout_ms=5000), 6)
    assert {result.error_code for result in response.responses} == {ErrorCode.INVALID_REQUEST}
    assert "t" in node.store.image.topics


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)])
async def test_deletion_can_be_disabled(start_node: StartNode, version: int, code: ErrorCode) -> None:
    node = await start_node(static={"delete.topic.enable": "false"})
    await node.create_topic("t")
    response = await (await node.connect()).ask(DeleteTopicsRequest(topic_names=["t"]), version)
    assert response.responses[0].error_code == code


# --- growing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_gets_more_partitions(node: ServedNode, version: int) -> None:
    await node.create_topic("t")
    wish = CreatePartitionsTopic(name="t", count=4, assignments=None)
    response = await (await node.connect()).ask(CreatePartitionsRequest(topics=[wish], timeout_ms=5000), version)
    assert response.results[0].error_code == 0
    assert node.replicas.partition("t", 3).is_leader


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (20_000, None, ErrorCode.POLICY_VIOLATION),
        (4, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_a_growth_that_cannot_be_is_refused(
    start_node: StartNode, count: int, assignments: list[list[int]] | None, code: ErrorCode
) -> None:
    node = await start_node(brokers=2)
    await node.create_topic("t", partitions=2)
    wish = CreatePartitionsTopic(name="t", count=count, assignments=None)
    if assignments is not None:
        wish.assignments = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    unknown = CreatePartitionsTopic(name="unknown", count=2, assignments=None)
    response = await (await node.connect()).ask(CreatePartitionsRequest(topics=[wish, unknown], timeout_ms=5000), 3)
    assert [result.error_code for result in response.results] == [code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert len(node.store.image.topics["t"].partitions) == 2


async def test_validating_a_growth_changes_nothing(node: ServedNode) -> None:
    await node.create_topic("t")
    wish = CreatePartitionsTopic(name="t", count=4, assignments=None)
    request = CreatePartitionsRequest(topics=[wish], timeout_ms=5000, validate_only=True)
    assert (await (await node.connect()).ask(request, 1)).results[0].error_code == 0
    assert len(node.store.image.topics["t"].partitions) == 1
