"""OffsetForLeaderEpoch, v0–v4: where a leader epoch ended, by which clients notice that the log was cut behind them.

Deliberate gaps: replicas compare their logs on the peer port; a replica id here means nothing.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.leader_epochs import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

UNKNOWN_EPOCH, UNKNOWN_OFFSET = -1, -1


def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, ctx: RequestContext) -> OffsetForLeaderEpochResponse:
    """The last offset of each epoch asked for, or of the largest one below it."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_answer(ctx, topic.topic, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def offset_for_leader_epoch_failed(
    request: OffsetForLeaderEpochRequest, error: KafkaError
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(partition=asked.partition, error_code=error.code) for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(ctx: RequestContext, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition, leader_epoch=UNKNOWN_EPOCH, end_offset=UNKNOWN_OFFSET)
    try:
        partition = ctx.replicas.partition(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        partition.require_leader()
        if asked.leader_epoch == partition.leader_epoch:
            answer.leader_epoch, answer.end_offset = asked.leader_epoch, partition.end_offset
        elif asked.leader_epoch >= 0 and partition.opened_log is not None:
            answer.leader_epoch, answer.end_offset = partition.opened_log.end_offset_for_epoch(asked.leader_epoch)
    except KafkaError as error:
        ctx.outcome = error.code
        answer.error_code = error.code
    return answer
