"""Heartbeat, v0–v4: a member of a classic group says that it is alive, and hears whether it must rejoin.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.group_membership import HeartbeatRequest, HeartbeatResponse


def heartbeat(request: HeartbeatRequest, ctx: RequestContext) -> HeartbeatResponse:
    response: HeartbeatResponse = ctx.coordinators["groups"].heartbeat(request)
    return response


def heartbeat_failed(request: HeartbeatRequest, error: KafkaError) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error.code)
