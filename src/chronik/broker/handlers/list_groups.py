"""ListGroups, v0–v5: the groups that this node coordinates; v4 filters by state, v5 by type.

Deliberate gaps: none. A client that wants all groups of the cluster asks every node.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.group_admin import ListGroupsRequest, ListGroupsResponse


def list_groups(request: ListGroupsRequest, ctx: RequestContext) -> ListGroupsResponse:
    groups = ctx.coordinators["groups"].admin.listing(request.states_filter, request.types_filter)
    return ListGroupsResponse(groups=groups)


def list_groups_failed(request: ListGroupsRequest, error: KafkaError) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error.code)
