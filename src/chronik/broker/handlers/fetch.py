"""Fetch, v0–v18: record batches from the partitions this node leads, as they are stored.

Up to version 3 answers are down-converted to message sets, off the loop. Sessions (v7+) are in
broker/fetch_sessions.py. From version 13 on topics are named by id. A fetch that finds less than `min_bytes` waits up
to `max_wait_ms`; an append wakes it, nothing polls. `max_bytes` bounds the answer and `partition_max_bytes` each
partition, but the first partition with data always gets one whole batch, so that no consumer is stuck behind a large
one. At the end of a partition records are empty, never null. Consumers see what is committed; with read_committed, up
to the last stable offset, and with the transactions that were aborted.

Deliberate gaps: replicas do not fetch here (they use the peer port), so a replica id means nothing and is read as a
consumer's; no preferred read replica.
"""

from __future__ import annotations

from chronik.broker.context import PendingResponse, RequestContext
from chronik.broker.fetch_sessions import FetchSession, FetchSessions, wanted_of
from chronik.broker.handlers.fetch_run import FetchRun
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

FIRST_VERSION_WITH_TOP_LEVEL_ERROR = 7


def fetch(request: FetchRequest, ctx: RequestContext) -> FetchResponse | PendingResponse:
    """Answer with what there is, or wait for more."""
    sessions: FetchSessions = ctx.services.fetch_sessions
    session: FetchSession | None = None
    incremental = False
    if ctx.api_version >= FIRST_VERSION_WITH_TOP_LEVEL_ERROR:
        session, incremental = sessions.open(request, ctx.api_version)
    wanted = list(session.partitions.values() if session is not None else wanted_of(request))
    return FetchRun(request, ctx, wanted, session, incremental).start()


def fetch_failed(request: FetchRequest, error: KafkaError) -> FetchResponse:
    """The error as a whole, which v7+ carries, and in every partition that was named, for older clients."""
    return FetchResponse(
        error_code=error.code,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=asked.partition, error_code=error.code, high_watermark=-1)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
