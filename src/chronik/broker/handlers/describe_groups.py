"""DescribeGroups, v0–v6: classic groups with their members.

A group that does not exist is answered as Dead; since v6 with GROUP_ID_NOT_FOUND as well.

Deliberate gaps: there are no access rules yet, so every operation is allowed where they are asked for.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.group_admin import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

READ, DELETE, DESCRIBE = 3, 6, 8
GROUP_OPERATIONS = 1 << READ | 1 << DELETE | 1 << DESCRIBE


def describe_groups(request: DescribeGroupsRequest, ctx: RequestContext) -> DescribeGroupsResponse:
    admin = ctx.coordinators["groups"].admin
    groups: list[DescribedGroup] = [admin.describe(group_id, ctx.api_version) for group_id in request.groups]
    for group in groups:
        if group.error_code:
            ctx.outcome = group.error_code
        elif request.include_authorized_operations:
            group.authorized_operations = GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


def describe_groups_failed(request: DescribeGroupsRequest, error: KafkaError) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
            for group_id in request.groups
        ]
    )
