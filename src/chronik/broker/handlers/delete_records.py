"""DeleteRecords, v0–v2: forgets the records of a partition below an offset (-1: below the high watermark).

Answered when the leader's log starts there; followers learn the new start with their next fetch, before which a
failover may show some of the records again.

Deliberate gaps: does not wait for the followers, so `timeout_ms` is not needed.
"""

from __future__ import annotations

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


def delete_records(request: DeleteRecordsRequest, ctx: RequestContext) -> DeleteRecordsResponse:
    """Move the start of each log; an error stays with its partition."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_delete(ctx, topic.name, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


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


def _delete(ctx: RequestContext, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
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
    except KafkaError as error:
        ctx.outcome = error.code
        result.error_code = error.code
    return result
