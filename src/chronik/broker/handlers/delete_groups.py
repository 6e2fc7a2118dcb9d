"""DeleteGroups, v0–v2: groups without members, and their offsets.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import PendingResponse, RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.group_admin import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


def delete_groups(request: DeleteGroupsRequest, ctx: RequestContext) -> PendingResponse:
    pending = PendingResponse()

    def reply(codes: dict[str, ErrorCode]) -> None:
        ctx.outcome = next((code for code in codes.values() if code), 0)
        pending.finish(_response(codes))

    ctx.coordinators["groups"].admin.delete(request.groups_names, reply)
    return pending


def delete_groups_failed(request: DeleteGroupsRequest, error: KafkaError) -> DeleteGroupsResponse:
    return _response(dict.fromkeys(request.groups_names, error.code))


def _response(codes: dict[str, ErrorCode]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in codes.items()]
    )
