"""Describing and altering the settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
    ListConfigResourcesRequest,
)
from unit.broker.serving import KafkaClient, ServedNode

StartNode = Callable[..., Awaitable[ServedNode]]
TOPIC, BROKER, UNKNOWN = 2, 4, 99
SET, DELETE, APPEND, SUBTRACT = range(4)


async def described(
    client: KafkaClient, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **more: bool
) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return (await client.ask(DescribeConfigsRequest(resources=[resource], **more), version)).results[0]


async def altered(client: KafkaClient, kind: int, name: str, *changes: tuple[int, str, str | None], **more: Any) -> Any:
    resource = IncrementalConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[IncrementalConfig(name=key, config_operation=code, value=value) for code, key, value in changes],
    )
    return (await client.ask(IncrementalAlterConfigsRequest(resources=[resource], **more), 1)).responses[0]


@pytest.mark.parametrize("version", range(5))
async def test_a_topics_settings_tell_their_value_and_source(node: ServedNode, version: int) -> None:
    await node.create_topic("t", retention_ms="5")
    client = await node.connect()
    result = await described(client, TOPIC, "t", version=version, include_synonyms=True, include_documentation=True)
    configs = {config.name: config for config in result.configs}
    assert configs["retention.ms"].value == "5"
    assert configs["segment.bytes"].value == str(1 << 30)
    if version == 0:
        assert (configs["retention.ms"].is_default, configs["segment.bytes"].is_default) == (False, True)
    else:
        assert (configs["retention.ms"].config_source, configs["segment.bytes"].config_source) == (1, 5)
        assert configs["retention.ms"].synonyms[0].name == "retention.ms"
    if version >= 3:
        assert configs["retention.ms"].documentation
        assert configs["retention.ms"].config_type == 5


async def test_only_the_keys_asked_for_are_told(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    result = await described(client, TOPIC, "t", ["retention.ms", "no.such.key"])
    assert [config.name for config in result.configs] == ["retention.ms"]


async def test_a_broker_describes_itself_and_the_default_of_all(node: ServedNode) -> None:
    client = await node.connect()
    own = {config.name: config for config in (await described(client, BROKER, "1")).configs}
    for name in ("default.replication.factor", "num.partitions", "min.insync.replicas", "log.retention.hours"):
        assert own[name].value, name
    assert own["socket.request.max.bytes"].read_only
    assert (await described(client, BROKER, "")).configs == []
    assert (await altered(client, BROKER, "", (SET, "num.partitions", "4"))).error_code == 0
    assert [(c.name, c.value) for c in (await described(client, BROKER, "")).configs] == [("num.partitions", "4")]
    assert (await described(client, BROKER, "1", ["num.partitions"])).configs[0].config_source == 3


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (UNKNOWN, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_resources_that_are_none_are_refused(node: ServedNode, kind: int, name: str, code: ErrorCode) -> None:
    client = await node.connect()
    result = await described(client, kind, name)
    assert (result.error_code, result.resource_name, bool(result.error_message)) == (code, name, True)
    assert (await altered(client, kind, name, (SET, "retention.ms", "1"))).error_code == code


async def test_incremental_changes_set_delete_append_and_subtract(node: ServedNode) -> None:
    await node.create_topic("t", retention_ms="5")
    client = await node.connect()
    changes = [(SET, "segment.bytes", "1000000"), (DELETE, "retention.ms", None), (APPEND, "cleanup.policy", "compact")]
    assert (await altered(client, TOPIC, "t", *changes)).error_code == 0
    assert node.store.image.topics["t"].configs == {"segment.bytes": "1000000", "cleanup.policy": "delete,compact"}
    assert (await altered(client, TOPIC, "t", (SUBTRACT, "cleanup.policy", "delete"))).error_code == 0
    assert node.store.image.topics["t"].configs["cleanup.policy"] == "compact"
    assert node.replicas.partition("t", 0).settings.log.segment_bytes == 1_000_000


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ((SET, "no.such.config", "1"), ErrorCode.INVALID_CONFIG),
        ((SET, "retention.ms", "soon"), ErrorCode.INVALID_CONFIG),
        ((SET, "retention.ms", None), ErrorCode.INVALID_REQUEST),
        ((APPEND, "retention.ms", "1"), ErrorCode.INVALID_CONFIG),
        ((9, "retention.ms", "1"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_bad_change_is_refused_and_nothing_of_it_is_done(
    node: ServedNode, change: tuple[int, str, str | None], code: ErrorCode
) -> None:
    await node.create_topic("t")
    client = await node.connect()
    result = await altered(client, TOPIC, "t", (SET, "segment.bytes", "1000000"), change)
    assert (result.error_code, bool(result.error_message)) == (code, True)
    assert node.store.image.topics["t"].configs == {}


async def test_a_setting_that_needs_a_restart_is_not_altered(node: ServedNode) -> None:
    client = await node.connect()
    result = await altered(client, BROKER, "1", (SET, "socket.request.max.bytes", "5"))
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert "restart" in result.error_message


async def test_validate_only_alters_nothing(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    result = await altered(client, TOPIC, "t", (SET, "retention.ms", "5"), validate_only=True)
    assert result.error_code == 0
    assert node.store.image.topics["t"].configs == {}


@pytest.mark.parametrize("version", range(3))
async def test_the_old_form_replaces_all_that_is_set(node: ServedNode, version: int) -> None:
    await node.create_topic("t", retention_ms="5")
    resource = AlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=[AlterableConfig(name="segment.bytes", value="1000000")]
    )
    response = await (await node.connect()).ask(AlterConfigsRequest(resources=[resource]), version)
    assert response.responses[0].error_code == 0
    assert node.store.image.topics["t"].configs == {"segment.bytes": "1000000"}


async def test_a_resource_named_twice_is_refused(node: ServedNode) -> None:
    await node.create_topic("t")
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t")
    response = await (await node.connect()).ask(AlterConfigsRequest(resources=[resource, resource]), 1)
    assert {result.error_code for result in response.responses} == {ErrorCode.INVALID_REQUEST}


async def test_resources_are_listed_by_type(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    both = await client.ask(ListConfigResourcesRequest(), 1)
    assert [(r.resource_type, r.resource_name) for r in both.config_resources] == [(TOPIC, "t"), (BROKER, "1")]
    topics = await client.ask(ListConfigResourcesRequest(resource_types=[TOPIC]), 1)
    assert [r.resource_name for r in topics.config_resources] == ["t"]
    assert (await client.ask(ListConfigResourcesRequest(resource_types=[77]), 1)).error_code != 0
