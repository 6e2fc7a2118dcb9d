"""CreateTopics, v0–v7: new topics, each with its own outcome.

A topic is there, and readable at this node, when the answer leaves. Numbers of -1 mean the broker's defaults.
`validate_only` checks everything and creates nothing. From v5 on the answer tells the configs that the topic has,
unless very many topics were asked for at once.

Deliberate gaps: no creation policy classes; every request is answered within the metadata deadline, whatever
`timeout_ms` allows beyond it.
"""

from __future__ import annotations

from collections import Counter

from chronik.broker.context import RequestContext
from chronik.broker.topic_creation import TopicWish, plan_topic
from chronik.metadata.commands import MAX_COMMANDS_PER_BATCH, Batch, CreateTopic
from chronik.metadata.config_definitions import ConfigSource
from chronik.metadata.model import Result
from chronik.metadata.store import PROPOSE_TIMEOUT_S, as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

FIRST_VERSION_WITH_CONFIGS = 5
TOPICS_WITH_CONFIGS_MAX = 200
"""Beyond this many topics in one request the answer leaves their configs out: they are forty each."""


async def create_topics(request: CreateTopicsRequest, ctx: RequestContext) -> CreateTopicsResponse:
    """Check all, propose together what passed, and tell each topic's outcome in the order of the request."""
    timeout_s = min(PROPOSE_TIMEOUT_S, max(0.001, request.timeout_ms / 1000))
    if not any(broker.alive for broker in ctx.store.image.brokers.values()):
        # Nothing could be placed. Perhaps this node has not heard of the others yet: a quorum knows, or there is none.
        try:
            await ctx.store.read_barrier(timeout_s)
        except Exception as error:
            return create_topics_failed(request, as_kafka_error(error))
    results = {topic.name: CreatableTopicResult(name=topic.name, error_message=None) for topic in request.topics}
    times = Counter(topic.name for topic in request.topics)
    planned: list[CreateTopic] = []
    for topic in request.topics:
        result = results[topic.name]
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            planned.append(plan_topic(ctx.services, _wish(topic)))
        except KafkaError as error:
            _refuse(ctx, result, error)
    if not request.validate_only:
        await _create(ctx, planned, results, timeout_s)
    with_configs = ctx.api_version >= FIRST_VERSION_WITH_CONFIGS and len(planned) <= TOPICS_WITH_CONFIGS_MAX
    for command in planned:
        result = results[command.name]
        if not result.error_code:
            _describe(ctx, result, command, with_configs=with_configs, created=not request.validate_only)
    return CreateTopicsResponse(topics=list(results.values()))


def create_topics_failed(request: CreateTopicsRequest, error: KafkaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ]
    )


def _wish(topic: CreatableTopic) -> TopicWish:
    assignments: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}",
            )
        assignments[assignment.partition_index] = assignment.broker_ids
    configs: dict[str, str | None] = {}
    for config in topic.configs:
        if config.name in configs:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Config {config.name} is given twice.")
        configs[config.name] = config.value
    return TopicWish(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)


async def _create(
    ctx: RequestContext, planned: list[CreateTopic], results: dict[str, CreatableTopicResult], timeout_s: float
) -> None:
    for start in range(0, len(planned), MAX_COMMANDS_PER_BATCH):
        commands = planned[start : start + MAX_COMMANDS_PER_BATCH]
        try:
            if len(commands) == 1:
                outcomes: list[Result] = [await ctx.store.propose(commands[0], timeout_s)]
            else:
                batch = await ctx.store.propose(Batch(list(commands)), timeout_s)
                batch.raise_for_error()
                outcomes = batch.value  # type: ignore[assignment]
        except Exception as error:
            known = as_kafka_error(error)
            for command in commands:
                _refuse(ctx, results[command.name], known)
            continue
        for command, outcome in zip(commands, outcomes, strict=True):
            if not outcome.ok:
                _refuse(ctx, results[command.name], KafkaError(outcome.error, outcome.reason))


def _describe(
    ctx: RequestContext, result: CreatableTopicResult, command: CreateTopic, *, with_configs: bool, created: bool
) -> None:
    if created:
        result.topic_id = command.topic_id
    result.num_partitions = len(command.assignments)
    result.replication_factor = len(command.assignments[0])
    if with_configs:
        result.configs = [
            CreatableTopicConfigs(
                name=entry.name,
                value=command.configs.get(entry.name, entry.value),
                read_only=entry.read_only,
                config_source=ConfigSource.TOPIC if entry.name in command.configs else entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in ctx.services.configs.describe_topic(command.name)
        ]
    else:
        result.configs = None


def _refuse(ctx: RequestContext, result: CreatableTopicResult, error: KafkaError) -> None:
    ctx.outcome = error.code
    result.error_code = error.code
    result.error_message = error.message
    result.configs = None
