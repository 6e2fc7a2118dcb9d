"""SyncGroup, v0–v5: the leader of a generation brings the assignment, every member fetches its part.

Answered when the assignment is in the log on all in-sync replicas.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import PendingResponse, RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.group_membership import SyncGroupRequest, SyncGroupResponse

FIRST_VERSION_WITH_PROTOCOL = 5


def sync_group(request: SyncGroupRequest, ctx: RequestContext) -> PendingResponse:
    if ctx.api_version >= FIRST_VERSION_WITH_PROTOCOL and (not request.protocol_type or not request.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a member must name the protocol it syncs for")
    pending = PendingResponse()

    def reply(response: SyncGroupResponse) -> None:
        ctx.outcome = response.error_code
        pending.finish(response)

    ctx.coordinators["groups"].sync(request, reply)
    return pending


def sync_group_failed(request: SyncGroupRequest, error: KafkaError) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error.code)
