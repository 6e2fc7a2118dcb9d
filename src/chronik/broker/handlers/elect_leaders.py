"""ElectLeaders, v0–v2: preferred leaders back into office, or, where nobody in sync is left, unclean ones.

Only the controller elects; this node asks it. Without a list, all partitions that need an election get one, and only
they are reported. Version 0 knows preferred elections only.

Deliberate gaps: none known.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.elections import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED, UNCLEAN = 0, 1
WAIT_S_MAX = 30.0
"""Longest wait for elections to finish; those that have not are answered REQUEST_TIMED_OUT."""


async def elect_leaders(request: ElectLeadersRequest, ctx: RequestContext) -> ElectLeadersResponse:
    """Ask the controller, and tell each partition's outcome."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    partitions = None
    if request.topic_partitions is not None:
        partitions = [(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions]
    outcomes = await ctx.coordinators["controller"].elect_leaders(
        partitions,
        unclean=request.election_type == UNCLEAN,
        timeout_s=min(WAIT_S_MAX, max(0.0, request.timeout_ms / 1000)),
    )
    results: dict[str, ReplicaElectionResult] = {}
    for topic, number, code, message in outcomes:
        result = results.setdefault(topic, ReplicaElectionResult(topic=topic))
        result.partition_result.append(
            PartitionResult(partition_id=number, error_code=code, error_message=message or None)
        )
        ctx.outcome = ctx.outcome or code
    return ElectLeadersResponse(replica_election_results=list(results.values()))


def elect_leaders_failed(request: ElectLeadersRequest, error: KafkaError) -> ElectLeadersResponse:
    """The error as a whole from v1 on, and in every partition that was named."""
    return ElectLeadersResponse(
        error_code=error.code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=number, error_code=error.code, error_message=error.message)
                    for number in topic.partitions
                ],
            )
            for topic in request.topic_partitions or []
        ],
    )
