"""The cluster as a whole: who it is, which brokers it has, who controls it, what the logs of a broker take."""

from __future__ import annotations

import msgspec

from chronik.client.cluster import Cluster
from chronik.client.errors import raise_for_code
from chronik.client.metadata import Broker, TopicPartition
from chronik.client.retry import retry
from chronik.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from chronik.protocol.messages.log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse


class ClusterDescription(msgspec.Struct, frozen=True):
    cluster_id: str
    controller_id: int
    brokers: list[Broker]
    fenced: list[int]


class ReplicaSize(msgspec.Struct, frozen=True):
    """One replica on the disk of one broker."""

    node_id: int
    log_dir: str
    place: TopicPartition
    size_bytes: int
    lag: int


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


def replica_sizes(cluster: Cluster, broker: Broker) -> list[ReplicaSize]:
    """What the replicas on one broker take on its disks."""
    answer = cluster.call(broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    raise_for_code(answer.error_code, f"describing the log folders of broker {broker.node_id}")
    sizes = []
    for folder in answer.results:
        raise_for_code(folder.error_code, f"describing the log folder {folder.log_dir} of broker {broker.node_id}")
        sizes += [
            ReplicaSize(
                broker.node_id,
                folder.log_dir,
                TopicPartition(topic.name, p.partition_index),
                p.partition_size,
                p.offset_lag,
            )
            for topic in folder.topics
            for p in topic.partitions
        ]
    return sorted(sizes, key=lambda size: size.place)
