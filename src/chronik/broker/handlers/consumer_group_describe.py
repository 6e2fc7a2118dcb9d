"""ConsumerGroupDescribe, v0–v1: groups of KIP-848 with their members, what they have and what they are to have.

A group of the classic protocol is GROUP_ID_NOT_FOUND here; DescribeGroups knows it.

Deliberate gaps: there are no access rules yet, so every operation is allowed where they are asked for.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.broker.handlers.describe_groups import GROUP_OPERATIONS
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, ctx: RequestContext
) -> ConsumerGroupDescribeResponse:
    admin = ctx.coordinators["groups"].admin
    groups: list[DescribedGroup] = [admin.describe_consumer_group(group_id) for group_id in request.group_ids]
    for group in groups:
        if group.error_code:
            ctx.outcome = group.error_code
        elif request.include_authorized_operations:
            group.authorized_operations = GROUP_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=groups)


def consumer_group_describe_failed(
    request: ConsumerGroupDescribeRequest, error: KafkaError
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
            for group_id in request.group_ids
        ]
    )
