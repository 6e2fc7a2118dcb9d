"""DescribeConfigs, v0–v4, and ListConfigResources, v0–v1: the settings of topics and brokers, and where they come from.

Resources: topics (2), brokers (4; the empty name is what is set on all of them) and, listed only, nothing else. A
broker is described by itself: another node answers INVALID_REQUEST and the client asks the right one, as with Kafka.
A setting whose type says that it is secret has no value.

Deliberate gaps: client metrics, groups and broker loggers are no resources here.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.metadata.config_definitions import ConfigSource
from chronik.metadata.configs import ConfigEntry
from chronik.metadata.model import CLUSTER_DEFAULT, ResourceType
from chronik.metadata.topics import name_problem
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.configs import (
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

CLIENT_METRICS = 16
_LISTABLE = (ResourceType.TOPIC, ResourceType.BROKER)


def describe_configs(request: DescribeConfigsRequest, ctx: RequestContext) -> DescribeConfigsResponse:
    """One result per resource; an error stays with its resource."""
    results: list[DescribeConfigsResult] = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        try:
            result.configs = [_described(entry, request) for entry in _entries(ctx, resource)]
        except KafkaError as error:
            ctx.outcome = error.code
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


def describe_configs_failed(request: DescribeConfigsRequest, error: KafkaError) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error_code=error.code,
                error_message=error.message,
            )
            for resource in request.resources
        ]
    )


def list_config_resources(request: ListConfigResourcesRequest, ctx: RequestContext) -> ListConfigResourcesResponse:
    """The resources that can be described. Version 0 asks for client metrics, of which there are none."""
    if ctx.api_version == 0:
        return ListConfigResourcesResponse()
    wanted = request.resource_types or [int(kind) for kind in _LISTABLE]
    unknown = [kind for kind in wanted if kind not in (*_LISTABLE, CLIENT_METRICS, ResourceType.GROUP, 8)]
    if unknown:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown config resource types: {unknown}")
    image = ctx.store.image
    found: list[ConfigResource] = []
    if ResourceType.TOPIC in wanted:
        found.extend(ConfigResource(resource_name=name, resource_type=ResourceType.TOPIC) for name in image.topics)
    if ResourceType.BROKER in wanted:
        found.extend(
            ConfigResource(resource_name=str(node_id), resource_type=ResourceType.BROKER)
            for node_id in sorted(image.brokers)
        )
    return ListConfigResourcesResponse(config_resources=found)


def list_config_resources_failed(request: ListConfigResourcesRequest, error: KafkaError) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=error.code)


def _entries(ctx: RequestContext, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    name, configs = resource.resource_name, ctx.services.configs
    # An empty list of keys means all of them too: old clients send it that way.
    keys = resource.configuration_keys or None
    if resource.resource_type == ResourceType.TOPIC:
        problem = name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in ctx.store.image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return configs.describe_topic(name, keys)
    if resource.resource_type == ResourceType.BROKER:
        if name == CLUSTER_DEFAULT:
            return configs.describe_cluster_default(keys)
        if name != str(ctx.config.node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {ctx.config.node_id} or empty string, but received {name}",
            )
        return configs.describe_broker(keys)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")


def _described(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    described = DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_default=entry.source == ConfigSource.DEFAULT,
        is_sensitive=entry.sensitive,
        config_type=entry.type,
        documentation=entry.doc if request.include_documentation else None,
    )
    if request.include_synonyms:
        described.synonyms = [
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
    return described
