"""AlterPartitionReassignments, v0–v1, and ListPartitionReassignments, v0: moving the replicas of partitions.

A reassignment is a wish in the metadata: the answer says that it was taken, the moving happens after. Replicas of null
cancel what is under way. With `allow_replication_factor_change` false (v1) the number of replicas must stay.

Deliberate gaps: none known.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.metadata.commands import MAX_CHANGES_PER_COMMAND, AssignPartition, Reassignment
from chronik.metadata.model import Result
from chronik.metadata.store import PROPOSE_TIMEOUT_S, as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

Change = tuple[ReassignablePartitionResponse, Reassignment]


async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, ctx: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Check each wish, propose them together, and tell each outcome."""
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    changes: list[Change] = []
    for topic in request.topics:
        answered = ReassignableTopicResponse(name=topic.name)
        response.responses.append(answered)
        for wish in topic.partitions:
            answer = ReassignablePartitionResponse(partition_index=wish.partition_index, error_message=None)
            answered.partitions.append(answer)
            try:
                changes.append((answer, _change(ctx, request, topic.name, wish)))
            except KafkaError as error:
                _refuse(ctx, answer, error)
    timeout_s = min(PROPOSE_TIMEOUT_S, max(0.001, request.timeout_ms / 1000))
    for start in range(0, len(changes), MAX_CHANGES_PER_COMMAND):
        await _propose(ctx, changes[start : start + MAX_CHANGES_PER_COMMAND], timeout_s)
    return response


def alter_partition_reassignments_failed(
    request: AlterPartitionReassignmentsRequest, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)


def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, ctx: RequestContext
) -> ListPartitionReassignmentsResponse:
    """What is being moved now, of all topics or of those that were asked for."""
    image = ctx.store.image
    wanted: dict[str, list[int]] | None = None
    if request.topics is not None:
        wanted = {topic.name: topic.partition_indexes for topic in request.topics}
    topics: list[OngoingTopicReassignment] = []
    for topic in image.topics.values() if wanted is None else map(image.topics.get, wanted):
        if topic is None:
            continue
        numbers = range(len(topic.partitions)) if wanted is None else wanted[topic.name]
        moving = [
            OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(topic.partitions[number].replicas),
                adding_replicas=list(topic.partitions[number].adding),
                removing_replicas=list(topic.partitions[number].removing),
            )
            for number in numbers
            if 0 <= number < len(topic.partitions) and topic.partitions[number].reassigning
        ]
        if moving:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=moving))
    return ListPartitionReassignmentsResponse(topics=topics, error_message=None)


def list_partition_reassignments_failed(
    request: ListPartitionReassignmentsRequest, error: KafkaError
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)


def _change(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest, name: str, wish: ReassignablePartition
) -> Reassignment:
    image = ctx.store.image
    partition = image.partition(name, wish.partition_index)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    target = None if wish.replicas is None else tuple(wish.replicas)
    if target is not None and not request.allow_replication_factor_change and len(target) != len(partition.target):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(partition.target)} to {len(target)}, which was not allowed.",
        )
    return Reassignment(image.topics[name].topic_id, wish.partition_index, target)


async def _propose(ctx: RequestContext, changes: list[Change], timeout_s: float) -> None:
    try:
        result = await ctx.store.propose(AssignPartition([change for _, change in changes]), timeout_s)
        result.raise_for_error()
        outcomes: list[Result] = result.value  # type: ignore[assignment]
    except Exception as error:
        known = as_kafka_error(error)
        for answer, _ in changes:
            _refuse(ctx, answer, known)
        return
    for (answer, _), outcome in zip(changes, outcomes, strict=True):
        if not outcome.ok:
            _refuse(ctx, answer, KafkaError(outcome.error, outcome.reason))


def _refuse(ctx: RequestContext, answer: ReassignablePartitionResponse, error: KafkaError) -> None:
    ctx.outcome = error.code
    answer.error_code, answer.error_message = error.code, error.message
