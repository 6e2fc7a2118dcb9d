"""AlterConfigs, v0–v2, and IncrementalAlterConfigs, v0–v1: change the settings of topics and brokers.

AlterConfigs replaces everything that is set on a resource; the incremental form sets, deletes, appends to and subtracts
from single settings. A broker's settings may be changed through any node; the empty name stands for all brokers. Each
resource is one metadata command, applied here when the answer leaves. `validate_only` stops before that.

Deliberate gaps: client metrics, groups and broker loggers are no resources here.
"""

from __future__ import annotations

from collections.abc import Iterable

from chronik.broker.context import RequestContext
from chronik.metadata.commands import ConfigOperation
from chronik.metadata.configs import set_config_command
from chronik.metadata.model import CLUSTER_DEFAULT, ResourceType
from chronik.metadata.store import as_kafka_error
from chronik.metadata.topics import name_problem
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

Operation = tuple[ConfigOperation, str, str | None]


async def alter_configs(request: AlterConfigsRequest, ctx: RequestContext) -> AlterConfigsResponse:
    """Replace what is set on each resource."""
    responses: list[AlterConfigsResourceResponse] = []
    repeated = _repeated((resource.resource_type, resource.resource_name) for resource in request.resources)
    for resource in request.resources:
        operations = [(ConfigOperation.SET, config.name, config.value) for config in resource.configs]
        responses.append(
            await _alter(
                ctx,
                resource.resource_type,
                resource.resource_name,
                operations,
                replace=True,
                validate_only=request.validate_only,
                repeated=(resource.resource_type, resource.resource_name) in repeated,
            )
        )
    return AlterConfigsResponse(responses=responses)


def alter_configs_failed(request: AlterConfigsRequest, error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[_result(resource.resource_type, resource.resource_name, error) for resource in request.resources]
    )


async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, ctx: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Carry out the operations on each resource, all of them or none."""
    responses: list[AlterConfigsResourceResponse] = []
    repeated = _repeated((resource.resource_type, resource.resource_name) for resource in request.resources)
    for resource in request.resources:
        try:
            operations = [
                (_operation(config.config_operation), config.name, config.value) for config in resource.configs
            ]
        except KafkaError as error:
            ctx.outcome = error.code
            responses.append(_result(resource.resource_type, resource.resource_name, error))
            continue
        responses.append(
            await _alter(
                ctx,
                resource.resource_type,
                resource.resource_name,
                operations,
                replace=False,
                validate_only=request.validate_only,
                repeated=(resource.resource_type, resource.resource_name) in repeated,
            )
        )
    return IncrementalAlterConfigsResponse(responses=responses)


def incremental_alter_configs_failed(
    request: IncrementalAlterConfigsRequest, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[_result(resource.resource_type, resource.resource_name, error) for resource in request.resources]
    )


async def _alter(
    ctx: RequestContext,
    resource_type: int,
    resource_name: str,
    operations: list[Operation],
    *,
    replace: bool,
    validate_only: bool,
    repeated: bool,
) -> AlterConfigsResourceResponse:
    try:
        if repeated:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        kind = _checked_resource(ctx, resource_type, resource_name)
        command = set_config_command(ctx.store.image, kind, resource_name, operations, replace=replace)
        if not validate_only:
            try:
                result = await ctx.store.propose(command)
            except Exception as error:
                raise as_kafka_error(error) from error
            result.raise_for_error()
    except KafkaError as error:
        ctx.outcome = error.code
        return _result(resource_type, resource_name, error)
    return _result(resource_type, resource_name, None)


def _checked_resource(ctx: RequestContext, resource_type: int, name: str) -> ResourceType:
    if resource_type == ResourceType.TOPIC:
        problem = name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in ctx.store.image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return ResourceType.TOPIC
    if resource_type == ResourceType.BROKER:
        if name != CLUSTER_DEFAULT and (not name.isdigit() or int(name) not in ctx.store.image.brokers):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker '{name}' is not registered.")
        return ResourceType.BROKER
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")


def _operation(code: int) -> ConfigOperation:
    try:
        return ConfigOperation(code)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {code}") from None


def _repeated(resources: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    seen: set[tuple[int, str]] = set()
    return {resource for resource in resources if resource in seen or seen.add(resource)}  # type: ignore[func-returns-value]


def _result(resource_type: int, resource_name: str, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=resource_type,
        resource_name=resource_name,
        error_code=error.code if error is not None else ErrorCode.NONE,
        error_message=error.message if error is not None else None,
    )
