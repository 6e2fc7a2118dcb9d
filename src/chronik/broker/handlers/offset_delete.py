"""OffsetDelete, v0: forgets offsets of a group for topics that none of its members reads.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import PendingResponse, RequestContext
from chronik.groups.offset_book import Place
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def offset_delete(request: OffsetDeleteRequest, ctx: RequestContext) -> PendingResponse:
    """A partition that does not exist has its own error."""
    image = ctx.store.image
    places: list[Place] = [
        (topic.name, p.partition_index)
        for topic in request.topics
        for p in topic.partitions
        if image.partition(topic.name, p.partition_index) is not None
    ]
    pending = PendingResponse()

    def reply(codes: dict[Place, ErrorCode]) -> None:
        pending.finish(
            OffsetDeleteResponse(
                topics=[
                    OffsetDeleteResponseTopic(
                        name=topic.name,
                        partitions=[
                            OffsetDeleteResponsePartition(
                                partition_index=p.partition_index,
                                error_code=codes.get(
                                    (topic.name, p.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                                ),
                            )
                            for p in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )
        )

    ctx.coordinators["groups"].offsets.delete(request.group_id, places, reply)
    return pending


def offset_delete_failed(request: OffsetDeleteRequest, error: KafkaError) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error.code)
