"""DescribeLogDirs, v0–v5: the data folder of this node, how full it is, and the size of its partition logs.

Deliberate gaps: a node has one folder; logs are never moved between folders, so `is_future_key` is always false.
"""

from __future__ import annotations

import os

from chronik.broker.context import RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def describe_log_dirs(request: DescribeLogDirsRequest, ctx: RequestContext) -> DescribeLogDirsResponse:
    """All partitions of this node, or those that were asked for."""
    wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in ctx.replicas.partitions():
        if wanted is not None and partition.index not in wanted.get(partition.topic, ()):
            continue
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = DescribeLogDirsTopic(name=partition.topic)
        opened = partition.opened_log
        lag = 0 if partition.is_leader else max(0, partition.high_watermark - partition.end_offset)
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=opened.size_bytes if opened is not None else 0,
                offset_lag=lag,
            )
        )
    result = DescribeLogDirsResult(log_dir=str(ctx.config.data_dir.absolute()), topics=list(topics.values()))
    try:
        space = os.statvfs(ctx.config.data_dir)
        result.total_bytes = space.f_blocks * space.f_frsize
        result.usable_bytes = space.f_bavail * space.f_frsize
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return DescribeLogDirsResponse(results=[result])


def describe_log_dirs_failed(request: DescribeLogDirsRequest, error: KafkaError) -> DescribeLogDirsResponse:
    """Versions below 3 have no error of their own: there, one nameless folder carries it."""
    return DescribeLogDirsResponse(error_code=error.code, results=[DescribeLogDirsResult(error_code=error.code)])
