"""OffsetCommit, v0–v10: a group says how far it has read.

Answered when the offsets are in the log on all in-sync replicas. Version 0, which Kafka kept in ZooKeeper, is served
like version 1 without a member. Version 10 names topics by id.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import PendingResponse, RequestContext
from chronik.groups.offset_book import Place
from chronik.groups.offset_service import OffsetToCommit
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

FIRST_VERSION_WITH_TOPIC_IDS = 10


def offset_commit(request: OffsetCommitRequest, ctx: RequestContext) -> PendingResponse:
    """Commit what exists; a partition that does not has its own error."""
    offsets: dict[Place, OffsetToCommit] = {}
    names: list[str | None] = []
    for topic in request.topics:
        name = _name(topic, ctx)
        names.append(name)
        if name is None:
            continue
        known = len(ctx.store.image.topics[name].partitions)
        for p in topic.partitions:
            if 0 <= p.partition_index < known:
                offsets[name, p.partition_index] = OffsetToCommit(
                    p.committed_offset, p.committed_leader_epoch, p.committed_metadata or "", p.commit_timestamp
                )
    pending = PendingResponse()

    def reply(codes: dict[Place, ErrorCode]) -> None:
        response = OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=p.partition_index,
                            error_code=_missing(ctx)
                            if name is None
                            else codes.get((name, p.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                        )
                        for p in topic.partitions
                    ],
                )
                for topic, name in zip(request.topics, names, strict=True)
            ]
        )
        ctx.outcome = next((p.error_code for t in response.topics for p in t.partitions if p.error_code), 0)
        pending.finish(response)

    ctx.coordinators["groups"].offsets.commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        request.retention_time_ms,
        offsets,
        reply,
    )
    return pending


def offset_commit_failed(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error.code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _name(topic: OffsetCommitRequestTopic, ctx: RequestContext) -> str | None:
    image = ctx.store.image
    if ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        found = image.topics_by_id.get(topic.topic_id)
        return found.name if found is not None else None
    return topic.name if topic.name in image.topics else None


def _missing(ctx: RequestContext) -> ErrorCode:
    if ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
