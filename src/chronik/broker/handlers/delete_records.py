"""DeleteRecords, v0–v2: forgets the records of a partition below an offset (-1: below the high watermark).

Answered when the logs of all in-sync replicas start there, so that no change of leader shows the records again, or with
REQUEST_TIMED_OUT when that takes longer than the client waits; the leader has forgotten them by then.

Deliberate gaps: Kafka waits for every replica that is alive; those that are not in sync cannot lead.
"""

from __future__ import annotations

import asyncio

from chronik.broker.context import RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_LOW_WATERMARK = -1
WAIT_S_MAX = 60.0

Waiting = list[tuple[DeleteRecordsPartitionResult, asyncio.Future[None]]]


async def delete_records(request: DeleteRecordsRequest, ctx: RequestContext) -> DeleteRecordsResponse:
    """Move the start of each log, then wait for the others; an error stays with its partition."""
    waiting: Waiting = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_delete(ctx, topic.name, asked, waiting) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )
    if waiting:
        timeout_s = min(WAIT_S_MAX, max(0.0, request.timeout_ms / 1000))
        await asyncio.wait([future for _, future in waiting], timeout=timeout_s)
        for result, future in waiting:
            _settle(ctx, result, future)
    return response


def _settle(ctx: RequestContext, result: DeleteRecordsPartitionResult, future: asyncio.Future[None]) -> None:
    error = future.exception() if future.done() else None
    if future.done() and error is None:
        return
    future.cancel()
    code = error.code if isinstance(error, KafkaError) else ErrorCode.REQUEST_TIMED_OUT
    ctx.outcome = code
    result.error_code = code
    result.low_watermark = NO_LOW_WATERMARK


def delete_records_failed(request: DeleteRecordsRequest, error: KafkaError) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=asked.partition_index, low_watermark=NO_LOW_WATERMARK, error_code=error.code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _delete(
    ctx: RequestContext, topic: str, asked: DeleteRecordsPartition, waiting: Waiting
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=NO_LOW_WATERMARK)
    try:
        info = ctx.store.image.topics.get(topic)
        if info is not None and info.internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        partition = ctx.replicas.partition(topic, asked.partition_index)
        if info is not None and not ctx.services.configs.topic_settings(topic).delete:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"Topic {topic} is compacted only; its records cannot be deleted by offset"
            )
        result.low_watermark = partition.delete_records(asked.offset)
        others = partition.deleted(result.low_watermark)
        if others is not None:
            waiting.append((result, others))
    except KafkaError as error:
        ctx.outcome = error.code
        result.error_code = error.code
    return result
