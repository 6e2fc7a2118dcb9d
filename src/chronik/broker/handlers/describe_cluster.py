"""DescribeCluster, v0–v2: the cluster's id, its controller and its brokers.

The controller is the node that leads the Raft group; every node takes admin requests. Before this node has registered,
it at least tells of itself.

Deliberate gaps: controllers are brokers here, so `endpoint_type` 2 (controllers) is UNSUPPORTED_ENDPOINT_TYPE.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.broker.handlers.cluster_view import CLUSTER_OPERATIONS, controller_id, known_brokers
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS = 1


def describe_cluster(request: DescribeClusterRequest, ctx: RequestContext) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Only brokers can be described here, not endpoint type {request.endpoint_type}.",
        )
    brokers = [
        DescribeClusterBroker(broker_id=seen.node_id, host=seen.host, port=seen.port, rack=seen.rack)
        for seen in known_brokers(ctx.services)
    ]
    if request.include_fenced_brokers:
        image = ctx.store.image
        brokers.extend(
            DescribeClusterBroker(broker_id=node_id, host=gone.host, port=gone.port, rack=gone.rack, is_fenced=True)
            for node_id, gone in sorted(image.brokers.items())
            if not gone.alive
        )
    response = DescribeClusterResponse(
        cluster_id=ctx.store.image.cluster_id or "", controller_id=controller_id(ctx.services), brokers=brokers
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def describe_cluster_failed(request: DescribeClusterRequest, error: KafkaError) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_code=error.code, error_message=error.message, endpoint_type=request.endpoint_type
    )
