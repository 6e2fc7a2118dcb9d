"""ConsumerGroupHeartbeat, v0–v1: members of groups of KIP-848 join, live, move to their assignment, and leave.

Answered when what it changes is in the log on all in-sync replicas. The rules are in groups/consumer_state.py.

Deliberate gaps: a group with members of the classic protocol is not converted while they are there.
"""

from __future__ import annotations

from chronik.broker.context import PendingResponse, RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse


def consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, ctx: RequestContext) -> PendingResponse:
    pending = PendingResponse()

    def reply(response: ConsumerGroupHeartbeatResponse) -> None:
        ctx.outcome = response.error_code
        pending.finish(response)

    ctx.coordinators["groups"].consumer_heartbeat(
        request, ctx.api_version, ctx.client_id or "", f"/{ctx.client_host}", reply
    )
    return pending


def consumer_group_heartbeat_failed(
    request: ConsumerGroupHeartbeatRequest, error: KafkaError
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
