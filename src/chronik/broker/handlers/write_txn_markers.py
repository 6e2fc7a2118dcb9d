"""WriteTxnMarkers, v0–v2: ends a transaction in partitions that this node leads.

Chronik's coordinators send their markers over the connections between nodes; this is for tools that end a transaction
that hangs, as `kafka-transactions abort` and `chronik txn abort` do.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def write_txn_markers(request: WriteTxnMarkersRequest, ctx: RequestContext) -> WriteTxnMarkersResponse:
    results = await ctx.coordinators["transactions"].markers.write(request.markers)
    response = WriteTxnMarkersResponse(markers=results)
    ctx.outcome = next(
        (p.error_code for m in response.markers for t in m.topics for p in t.partitions if p.error_code), 0
    )
    return response


def write_txn_markers_failed(request: WriteTxnMarkersRequest, error: KafkaError) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=error.code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
