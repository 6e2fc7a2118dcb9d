"""DescribeGroups (versions 0 to 6), ListGroups (0 to 5), DeleteGroups (0 to 2)."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bool, Bytes, Int16, Int32, Message, String, V


class DescribeGroupsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_GROUPS

    groups: list[String] = []
    include_authorized_operations: Annotated[Bool, V("3+")] = False


class DescribedGroupMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("4+")] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[String | None, V("6+")] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, V("3+")] = -2147483648


class DescribeGroupsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_GROUPS

    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    groups: list[DescribedGroup] = []


class ListGroupsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.LIST_GROUPS

    states_filter: Annotated[list[String], V("4+")] = []
    types_filter: Annotated[list[String], V("5+")] = []


class ListedGroup(Message):
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, V("4+")] = ""
    group_type: Annotated[String, V("5+")] = ""


class ListGroupsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.LIST_GROUPS

    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []


class DeleteGroupsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DELETE_GROUPS

    groups_names: list[String] = []


class DeletableGroupResult(Message):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DELETE_GROUPS

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
