"""OffsetFetch, v0–v10: how far groups have read; since v8 many groups at once, in v10 with topics by id.

A partition without a commit has offset -1 and no error. With `require_stable`, an offset that a running transaction
will set is answered with UNSTABLE_OFFSET_COMMIT. Before v2 an error of the group is told with every partition.

Deliberate gaps: none.
"""

from __future__ import annotations

from collections.abc import Callable

from chronik.broker.context import PendingResponse, RequestContext
from chronik.groups.offset_book import Place
from chronik.groups.offset_service import NO_OFFSET, FetchedOffset
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

FIRST_VERSION_WITH_MANY_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10
FIRST_VERSION_WITH_ERROR = 2
GROUPS_MAX = 10_000
"""Groups in one request; more are refused."""


def offset_fetch(request: OffsetFetchRequest, ctx: RequestContext) -> PendingResponse:
    """Ask for each group; answer when all have."""
    groups = request.groups
    if ctx.api_version < FIRST_VERSION_WITH_MANY_GROUPS:
        groups = [_as_group(request)]
    if len(groups) > GROUPS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {GROUPS_MAX} groups can be asked for at once")
    pending = PendingResponse()
    answers: list[OffsetFetchResponseGroup] = [OffsetFetchResponseGroup(group_id=asked.group_id) for asked in groups]
    left = len(groups)

    def one_done(position: int, answer: OffsetFetchResponseGroup) -> None:
        nonlocal left
        answers[position] = answer
        left -= 1
        if left == 0:
            _finish(request, ctx, pending, answers)

    for position, asked in enumerate(groups):
        _fetch_group(asked, request.require_stable, ctx, lambda answer, at=position: one_done(at, answer))  # type: ignore[misc]
    if not groups:
        _finish(request, ctx, pending, answers)
    return pending


def offset_fetch_failed(request: OffsetFetchRequest, error: KafkaError) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        error_code=error.code,
        topics=_old_topics(_with_error(_as_group(request), error.code)),
        groups=[OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code) for asked in request.groups],
    )


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in topics],
    )


def _fetch_group(
    asked: OffsetFetchRequestGroup,
    require_stable: bool,
    ctx: RequestContext,
    done: Callable[[OffsetFetchResponseGroup], None],
) -> None:
    by_id = ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    image = ctx.store.image
    names: list[str | None] | None = None
    places: list[Place] | None = None
    if asked.topics is not None:
        names = [_name(topic, ctx) for topic in asked.topics]
        places = [
            (name, index)
            for name, topic in zip(names, asked.topics, strict=True)
            if name is not None
            for index in topic.partition_indexes
        ]

    def reply(error: ErrorCode, found: dict[Place, FetchedOffset]) -> None:
        if error:
            done(_with_error(asked, error))
            return
        answer = OffsetFetchResponseGroup(group_id=asked.group_id)
        if asked.topics is not None and names is not None:
            for name, topic in zip(names, asked.topics, strict=True):
                answer.topics.append(
                    OffsetFetchResponseTopics(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        partitions=[
                            _unknown_topic(index) if name is None else _partition(index, found[name, index])
                            for index in topic.partition_indexes
                        ],
                    )
                )
        else:
            grouped: dict[str, OffsetFetchResponseTopics] = {}
            for (name, index), offset in found.items():
                info = image.topics.get(name)
                if info is None and by_id:
                    continue  # an offset of a topic that is gone has no id to be told under
                topic_answer = grouped.get(name)
                if topic_answer is None:
                    topic_answer = grouped[name] = OffsetFetchResponseTopics(name=name)
                    if info is not None:
                        topic_answer.topic_id = info.topic_id
                topic_answer.partitions.append(_partition(index, offset))
            answer.topics = list(grouped.values())
        done(answer)

    service = ctx.coordinators["groups"].offsets
    try:
        service.check_member(asked.group_id, asked.member_id, asked.member_epoch)
        service.fetch(asked.group_id, places, require_stable, reply)
    except KafkaError as error:
        done(_with_error(asked, error.code))


def _name(topic: OffsetFetchRequestTopics, ctx: RequestContext) -> str | None:
    if ctx.api_version < FIRST_VERSION_WITH_TOPIC_IDS:
        return topic.name
    found = ctx.store.image.topics_by_id.get(topic.topic_id)
    return found.name if found is not None else None


def _partition(index: int, found: FetchedOffset) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=found.error,
    )


def _unknown_topic(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=NO_OFFSET, error_code=ErrorCode.UNKNOWN_TOPIC_ID
    )


def _with_error(asked: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(
        group_id=asked.group_id,
        error_code=error,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, error_code=error)
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics or ()
        ],
    )


def _old_topics(answer: OffsetFetchResponseGroup) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=p.partition_index,
                    committed_offset=p.committed_offset,
                    committed_leader_epoch=p.committed_leader_epoch,
                    metadata=p.metadata,
                    error_code=p.error_code,
                )
                for p in topic.partitions
            ],
        )
        for topic in answer.topics
    ]


def _finish(
    request: OffsetFetchRequest,
    ctx: RequestContext,
    pending: PendingResponse,
    answers: list[OffsetFetchResponseGroup],
) -> None:
    ctx.outcome = next((answer.error_code for answer in answers if answer.error_code), 0)
    if ctx.api_version >= FIRST_VERSION_WITH_MANY_GROUPS:
        for answer in answers:
            if answer.error_code:
                answer.topics = []
        pending.finish(OffsetFetchResponse(groups=answers))
        return
    answer = answers[0]
    if answer.error_code and ctx.api_version >= FIRST_VERSION_WITH_ERROR:
        pending.finish(OffsetFetchResponse(error_code=answer.error_code))
        return
    pending.finish(OffsetFetchResponse(topics=_old_topics(answer)))
