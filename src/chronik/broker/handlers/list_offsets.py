"""ListOffsets, v0–v11: the offsets at which a partition starts and ends, and the first at or after a timestamp.

Special timestamps: -1 latest, -2 earliest, -3 the record with the largest timestamp (v7+), -4 earliest local (v8+,
the same as earliest), -5 latest tiered (v9+) and -6 earliest not yet tiered (v11+), which are unknown here: nothing
is tiered. Version 0 answers a list of offsets. "Latest" is the high watermark, or the last stable offset with
read_committed; right after a change of leader it is OFFSET_NOT_AVAILABLE until the new leader knows it
(LEADER_NOT_AVAILABLE before v5).

Deliberate gaps: version 0 lists at most the latest and the earliest offset, not every segment's.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from chronik.broker.context import RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from chronik.replication.partition import Partition

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_FIRST_VERSION_OF = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE = 5

Found = tuple[int, int, int]
"""Offset, timestamp, leader epoch; -1 where there is none."""

NOTHING: Found = (-1, -1, -1)


def list_offsets(
    request: ListOffsetsRequest, ctx: RequestContext
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    """Answer at once unless an index has to be searched."""
    if any(_needs_search(asked.timestamp) for topic in request.topics for asked in topic.partitions):
        return _search_and_answer(request, ctx)
    response = ListOffsetsResponse()
    for answer, asked, name in _answers(request, response):
        try:
            partition = _checked(ctx, request, name, asked)
            _fill(answer, asked, _at_once(partition, asked.timestamp, request.isolation_level), partition)
        except KafkaError as error:
            _refuse(ctx, answer, error)
    return response


def list_offsets_failed(request: ListOffsetsRequest, error: KafkaError) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    for answer, _, _ in _answers(request, response):
        answer.error_code = error.code
    return response


async def _search_and_answer(request: ListOffsetsRequest, ctx: RequestContext) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    for answer, asked, name in _answers(request, response):
        try:
            partition = _checked(ctx, request, name, asked)
            if _needs_search(asked.timestamp):
                found = await _search(partition, asked.timestamp, request.isolation_level)
            else:
                found = _at_once(partition, asked.timestamp, request.isolation_level)
            _fill(answer, asked, found, partition)
        except KafkaError as error:
            _refuse(ctx, answer, error)
    return response


def _answers(
    request: ListOffsetsRequest, response: ListOffsetsResponse
) -> list[tuple[ListOffsetsPartitionResponse, ListOffsetsPartition, str]]:
    """An answer for each partition that was asked for, in place in the response."""
    pairs = []
    for topic in request.topics:
        answered = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answered)
        for asked in topic.partitions:
            answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
            answered.partitions.append(answer)
            pairs.append((answer, asked, topic.name))
    return pairs


def _checked(ctx: RequestContext, request: ListOffsetsRequest, name: str, asked: ListOffsetsPartition) -> Partition:
    if asked.timestamp < 0 and ctx.api_version < _FIRST_VERSION_OF.get(asked.timestamp, ctx.api_version + 1):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"ListOffsets v{ctx.api_version} has no special timestamp {asked.timestamp}"
        )
    partition = ctx.replicas.partition(name, asked.partition_index)
    partition.check_epoch(asked.current_leader_epoch)
    partition.require_leader()
    return partition


def _needs_search(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _at_once(partition: Partition, timestamp: int, isolation: int) -> Found:
    if timestamp == LATEST:
        return partition.latest_offset(isolation), -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log_start_offset
        opened = partition.opened_log
        epoch = opened.epoch_at(start) if opened is not None else None
        return start, -1, epoch if epoch is not None and epoch >= 0 else partition.leader_epoch
    return NOTHING


async def _search(partition: Partition, timestamp: int, isolation: int) -> Found:
    opened = partition.opened_log
    if opened is None:
        return NOTHING
    if timestamp == MAX_TIMESTAMP:
        found: Found | None = await partition.as_leader(opened.max_timestamp_offset())
    else:
        found = await partition.as_leader(opened.offset_for_timestamp(timestamp))
    if found is None or found[0] >= partition.latest_offset(isolation):
        return NOTHING
    return found


def _fill(
    answer: ListOffsetsPartitionResponse, asked: ListOffsetsPartition, found: Found, partition: Partition
) -> None:
    answer.offset, answer.timestamp, answer.leader_epoch = found
    if found[0] >= 0:
        answer.old_style_offsets = [found[0]]
        start = partition.log_start_offset
        if asked.timestamp == LATEST and asked.max_num_offsets > 1 and start < found[0]:
            answer.old_style_offsets.append(start)
        del answer.old_style_offsets[max(0, asked.max_num_offsets) :]


def _refuse(ctx: RequestContext, answer: ListOffsetsPartitionResponse, error: KafkaError) -> None:
    code = error.code
    if code is ErrorCode.OFFSET_NOT_AVAILABLE and ctx.api_version < FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    ctx.outcome = code
    answer.error_code = code
