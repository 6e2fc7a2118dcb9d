"""The cluster as a whole: who it is, which brokers it has, who controls it."""

from __future__ import annotations

import msgspec

from chronik.client.cluster import Cluster
from chronik.client.errors import raise_for_code
from chronik.client.metadata import Broker
from chronik.client.retry import retry
from chronik.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse


class ClusterDescription(msgspec.Struct, frozen=True):
    cluster_id: str
    controller_id: int
    brokers: list[Broker]
    fenced: list[int]


def describe_cluster(cluster: Cluster, *, include_fenced: bool = False) -> ClusterDescription:
    """Ask any broker who the cluster is."""

    def attempt() -> DescribeClusterResponse:
        request = DescribeClusterRequest(include_fenced_brokers=include_fenced)
        answer = cluster.call_any(request, DescribeClusterResponse)
        raise_for_code(answer.error_code, "describing the cluster", answer.error_message)
        return answer

    answer = retry("describing the cluster", cluster.settings.retry, attempt)
    brokers = sorted(answer.brokers, key=lambda broker: broker.broker_id)
    return ClusterDescription(
        answer.cluster_id,
        answer.controller_id,
        [Broker(b.broker_id, b.host, b.port, b.rack) for b in brokers],
        [b.broker_id for b in brokers if b.is_fenced],
    )
