"""LeaveGroup, v0–v5: members leave a classic group; since v3 several at once, also by instance id.

Deliberate gaps: the reason a client gives (v5) is not kept.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.group_membership import LeaveGroupRequest, LeaveGroupResponse


def leave_group(request: LeaveGroupRequest, ctx: RequestContext) -> LeaveGroupResponse:
    response: LeaveGroupResponse = ctx.coordinators["groups"].leave(request, ctx.api_version)
    return response


def leave_group_failed(request: LeaveGroupRequest, error: KafkaError) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=error.code)
