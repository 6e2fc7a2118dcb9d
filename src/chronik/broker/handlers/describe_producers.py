"""DescribeProducers, v0: the producers that the log of a partition remembers, with their open transactions.

Answered by any replica, as in Kafka, whose tools look for hanging transactions broker by broker; the leader knows best.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def describe_producers(request: DescribeProducersRequest, ctx: RequestContext) -> DescribeProducersResponse:
    topics = [
        TopicResponse(name=topic.name, partitions=[_described(topic.name, i, ctx) for i in topic.partition_indexes])
        for topic in request.topics
    ]
    ctx.outcome = next((p.error_code for topic in topics for p in topic.partitions if p.error_code), 0)
    return DescribeProducersResponse(topics=topics)


def describe_producers_failed(request: DescribeProducersRequest, error: KafkaError) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _described(topic: str, index: int, ctx: RequestContext) -> PartitionResponse:
    try:
        partition = ctx.replicas.partition(topic, index)
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
    opened = partition.opened_log
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_transaction_start_offset,
            )
            for producer in (opened.producers() if opened is not None else ())
        ],
    )
