"""DescribeTopicPartitions, v0: topics and their partitions, page by page.

An empty list of topics means all of them. A page holds at most `response_partition_limit` partitions, and never more
than `max.request.partition.size.limit`; `next_cursor` says where the next one begins.

Deliberate gaps: there are no eligible leader replicas; both lists are empty, since Java's client fails on null.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.broker.handlers.cluster_view import TOPIC_OPERATIONS, offline_replicas
from chronik.metadata.model import NO_LEADER, TopicInfo
from chronik.metadata.topics import name_problem
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, ctx: RequestContext
) -> DescribeTopicPartitionsResponse:
    """One page, in order of topic names."""
    image = ctx.store.image
    cursor = request.cursor
    asked_for_all = not request.topics
    names = sorted(image.topics if asked_for_all else {topic.name for topic in request.topics})
    first_partition = 0
    if cursor is not None:
        if cursor.partition_index < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "DescribeTopicPartitionsRequest cursor partition must be valid")
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_partition = cursor.partition_index
    left = min(
        max(1, request.response_partition_limit), ctx.services.configs.broker_int("max.request.partition.size.limit")
    )
    response = DescribeTopicPartitionsResponse()
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first_partition)
            break
        page = range(first_partition, min(first_partition + left, len(topic.partitions)))
        response.topics.append(_described(ctx, topic, page))
        left -= len(page)
        if page.stop < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=page.stop)
            break
        first_partition = 0
    return response


def describe_topic_partitions_failed(
    request: DescribeTopicPartitionsRequest, error: KafkaError
) -> DescribeTopicPartitionsResponse:
    """The response has no error of its own: every topic asked for carries it, or a nameless one."""
    names: list[str | None] = [topic.name for topic in request.topics]
    return DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponseTopic(name=name, error_code=error.code) for name in names or [None]]
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name_problem(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=code)


def _described(ctx: RequestContext, topic: TopicInfo, page: range) -> DescribeTopicPartitionsResponseTopic:
    image = ctx.store.image
    described = DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    for index in page:
        info = topic.partitions[index]
        leader = image.alive_leader(info)
        described.partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=info.leader_epoch,
                replica_nodes=list(info.replicas),
                isr_nodes=list(info.isr),
                eligible_leader_replicas=[],  # null would be right by the protocol, but Java's client fails on it
                last_known_elr=[],
                offline_replicas=offline_replicas(image, info),
            )
        )
    return described
