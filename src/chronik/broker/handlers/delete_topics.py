"""DeleteTopics, v0–v6: topics away, by name or (v6) by id.

A topic is gone from this node's image when the answer leaves; its files are freed soon after, on every node. A topic
that is created again under the same name is another topic, with another id.

Deliberate gaps: none known.
"""

from __future__ import annotations

from collections import Counter

from chronik.broker.context import RequestContext
from chronik.metadata.commands import MAX_COMMANDS_PER_BATCH, Batch, DeleteTopic
from chronik.metadata.model import Result
from chronik.metadata.store import PROPOSE_TIMEOUT_S, as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from chronik.protocol.wire import ZERO_UUID

FIRST_VERSION_WITH_DELETION_DISABLED = 3


async def delete_topics(request: DeleteTopicsRequest, ctx: RequestContext) -> DeleteTopicsResponse:
    """Find each topic, propose the deletions together, and tell each outcome."""
    asked = _asked(request)
    times = Counter((state.name, state.topic_id) for state in asked)
    results: list[DeletableTopicResult] = []
    found: list[tuple[DeletableTopicResult, DeleteTopic]] = []
    for state in asked:
        result = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        results.append(result)
        try:
            _check_allowed(ctx)
            if times[state.name, state.topic_id] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Duplicate topic name." if state.name is not None else "Duplicate topic id.",
                )
            found.append((result, _find(ctx, state, result)))
        except KafkaError as error:
            _refuse(ctx, result, error)
    await _delete(ctx, found, min(PROPOSE_TIMEOUT_S, max(0.001, request.timeout_ms / 1000)))
    return DeleteTopicsResponse(responses=results)


def delete_topics_failed(request: DeleteTopicsRequest, error: KafkaError) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=state.name, topic_id=state.topic_id, error_code=error.code, error_message=error.message
            )
            for state in _asked(request)
        ]
    )


def _asked(request: DeleteTopicsRequest) -> list[DeleteTopicState]:
    return request.topics or [DeleteTopicState(name=name) for name in request.topic_names]


def _check_allowed(ctx: RequestContext) -> None:
    if not ctx.services.configs.broker_bool("delete.topic.enable"):
        newer = ctx.api_version >= FIRST_VERSION_WITH_DELETION_DISABLED
        raise KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED if newer else ErrorCode.INVALID_REQUEST, "Topic deletion is disabled."
        )


def _find(ctx: RequestContext, state: DeleteTopicState, result: DeletableTopicResult) -> DeleteTopic:
    image = ctx.store.image
    if state.name is not None:
        if state.topic_id != ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        topic = image.topics.get(state.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    else:
        if state.topic_id == ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        topic = image.topics_by_id.get(state.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    result.name, result.topic_id = topic.name, topic.topic_id
    return DeleteTopic(topic.topic_id)


async def _delete(ctx: RequestContext, found: list[tuple[DeletableTopicResult, DeleteTopic]], timeout_s: float) -> None:
    for start in range(0, len(found), MAX_COMMANDS_PER_BATCH):
        part = found[start : start + MAX_COMMANDS_PER_BATCH]
        try:
            if len(part) == 1:
                outcomes: list[Result] = [await ctx.store.propose(part[0][1], timeout_s)]
            else:
                batch = await ctx.store.propose(Batch([command for _, command in part]), timeout_s)
                batch.raise_for_error()
                outcomes = batch.value  # type: ignore[assignment]
        except Exception as error:
            known = as_kafka_error(error)
            for result, _ in part:
                _refuse(ctx, result, known)
            continue
        for (result, _), outcome in zip(part, outcomes, strict=True):
            if not outcome.ok:
                _refuse(ctx, result, KafkaError(outcome.error, outcome.reason))


def _refuse(ctx: RequestContext, result: DeletableTopicResult, error: KafkaError) -> None:
    ctx.outcome = error.code
    result.error_code = error.code
    result.error_message = error.message
