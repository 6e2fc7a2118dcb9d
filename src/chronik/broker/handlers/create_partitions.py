"""CreatePartitions, v0–v3: more partitions for topics that exist. A topic never gets fewer.

`count` is the new total. The client may choose the replicas of the new partitions; else they are placed like those of
a new topic, with as many replicas as the first partition has.

Deliberate gaps: none known.
"""

from __future__ import annotations

from collections import Counter

from chronik.broker.context import RequestContext
from chronik.broker.topic_creation import check_partition_count, place
from chronik.cluster.placement import explicit
from chronik.metadata.commands import AddPartitions
from chronik.metadata.store import PROPOSE_TIMEOUT_S, as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def create_partitions(request: CreatePartitionsRequest, ctx: RequestContext) -> CreatePartitionsResponse:
    """Each topic by itself; an error stays with its topic."""
    times = Counter(topic.name for topic in request.topics)
    timeout_s = min(PROPOSE_TIMEOUT_S, max(0.001, request.timeout_ms / 1000))
    results: list[CreatePartitionsTopicResult] = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        result = CreatePartitionsTopicResult(name=topic.name)
        results.append(result)
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            command = _planned(ctx, topic)
            if not request.validate_only:
                await _propose(ctx, command, timeout_s)
        except KafkaError as error:
            ctx.outcome = error.code
            result.error_code, result.error_message = error.code, error.message
    return CreatePartitionsResponse(results=results)


def create_partitions_failed(request: CreatePartitionsRequest, error: KafkaError) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message)
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ]
    )


async def _propose(ctx: RequestContext, command: AddPartitions, timeout_s: float) -> None:
    try:
        result = await ctx.store.propose(command, timeout_s)
    except Exception as error:
        raise as_kafka_error(error) from error
    result.raise_for_error()


def _planned(ctx: RequestContext, wish: CreatePartitionsTopic) -> AddPartitions:
    image = ctx.store.image
    topic = image.topics.get(wish.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    current = len(topic.partitions)
    if wish.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if wish.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {wish.name} currently has {current} partition(s); {wish.count} would not be an increase.",
        )
    added = wish.count - current
    check_partition_count(added)
    factor = len(topic.partitions[0].target)
    if wish.assignments is None:
        assignments = place(ctx.services, wish.name, added, factor)
    else:
        if len(wish.assignments) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only {len(wish.assignments)} assignment(s) "
                "were specified.",
            )
        chosen = {current + index: assignment.broker_ids for index, assignment in enumerate(wish.assignments)}
        assignments = explicit(image, chosen, first=current)
        if len(assignments[0]) != factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The assignment has {len(assignments[0])} replica(s) per partition, the topic has {factor}.",
            )
    return AddPartitions(topic.topic_id, current, assignments)
