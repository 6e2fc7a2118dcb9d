"""DescribeQuorum, v0–v2: the Raft group of the metadata, in the form of Kafka's partition `__cluster_metadata-0`.

The leader epoch is the Raft term, the high watermark the first index that is not committed. Only the leader knows how
far the others are; asked elsewhere, this node asks it.

Deliberate gaps: `last_caught_up_timestamp` is when a member was last heard of while it had everything, else unknown.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.broker.quorum import MemberState, QuorumState
from chronik.broker.topic_creation import METADATA_TOPIC
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.quorum import (
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
)

LISTENER_NAME = "PEER"
UNKNOWN_TIME = -1


async def describe_quorum(request: DescribeQuorumRequest, ctx: RequestContext) -> DescribeQuorumResponse:
    """The one partition that exists; any other is unknown."""
    state: QuorumState = await ctx.coordinators["quorum"].state()
    topics: list[DescribedQuorumTopic] = []
    for topic in request.topics:
        described = DescribedQuorumTopic(topic_name=topic.topic_name)
        topics.append(described)
        for asked in topic.partitions:
            if topic.topic_name == METADATA_TOPIC and asked.partition_index == 0:
                described.partitions.append(_partition(state))
            else:
                described.partitions.append(
                    DescribedQuorumPartition(
                        partition_index=asked.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    )
                )
    nodes = [
        Node(node_id=member.node_id, listeners=[Listener(name=LISTENER_NAME, host=member.host, port=member.port)])
        for member in state.members
    ]
    return DescribeQuorumResponse(topics=topics, nodes=nodes)


def describe_quorum_failed(request: DescribeQuorumRequest, error: KafkaError) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=error.code, error_message=error.message)


def _partition(state: QuorumState) -> DescribedQuorumPartition:
    return DescribedQuorumPartition(
        partition_index=0,
        leader_id=state.leader_id,
        leader_epoch=state.term,
        high_watermark=state.commit + 1,
        current_voters=[_replica(state, member) for member in state.members if member.voter],
        observers=[_replica(state, member) for member in state.members if not member.voter],
    )


def _replica(state: QuorumState, member: MemberState) -> ReplicaState:
    return ReplicaState(
        replica_id=member.node_id,
        replica_directory_id=member.directory_id,
        log_end_offset=member.end_index + 1 if member.end_index >= 0 else -1,
        last_fetch_timestamp=member.heard_ms,
        last_caught_up_timestamp=member.heard_ms if member.end_index >= state.commit else UNKNOWN_TIME,
    )
