"""JoinGroup, v0–v9: a member asks to be part of the next generation of a classic group.

Answered when the generation begins, which may take as long as the rebalance timeout. The rules are in
groups/classic_state.py.

Deliberate gaps: none. The reason a client gives (v8+) is not kept.
"""

from __future__ import annotations

from chronik.broker.context import PendingResponse, RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.group_membership import JoinGroupRequest, JoinGroupResponse

FIRST_VERSION_WITH_NULL_PROTOCOL = 7


def join_group(request: JoinGroupRequest, ctx: RequestContext) -> PendingResponse:
    pending = PendingResponse()

    def reply(response: JoinGroupResponse) -> None:
        ctx.outcome = response.error_code
        if response.protocol_name is None and ctx.api_version < FIRST_VERSION_WITH_NULL_PROTOCOL:
            response.protocol_name = ""
        pending.finish(response)

    ctx.coordinators["groups"].join(request, ctx.api_version, ctx.client_id or "", f"/{ctx.client_host}", reply)
    return pending


def join_group_failed(request: JoinGroupRequest, error: KafkaError) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error.code, member_id=request.member_id)
