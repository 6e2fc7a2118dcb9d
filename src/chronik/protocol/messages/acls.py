"""DescribeAcls, CreateAcls, DeleteAcls: versions 0 to 3.

Version 1 brings pattern types (literal, prefixed); before it every pattern is literal, which is the default here.
A null filter matches anything.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Int8, Int16, Int32, Message, String, V


class DescribeAclsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_ACLS

    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = None
    pattern_type_filter: Annotated[Int8, V("1+")] = 3
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Message):
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Annotated[Int8, V("1+")] = 3
    acls: list[AclDescription] = []


class DescribeAclsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_ACLS

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    resources: list[DescribeAclsResource] = []


class AclCreation(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Annotated[Int8, V("1+")] = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.CREATE_ACLS

    creations: list[AclCreation] = []


class AclCreationResult(Message):
    error_code: Int16 = 0
    error_message: String | None = None


class CreateAclsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.CREATE_ACLS

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = []


class DeleteAclsFilter(Message):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = None
    pattern_type_filter: Annotated[Int8, V("1+")] = 3
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DELETE_ACLS

    filters: list[DeleteAclsFilter] = []


class DeleteAclsMatchingAcl(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Annotated[Int8, V("1+")] = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    matching_acls: list[DeleteAclsMatchingAcl] = []


class DeleteAclsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DELETE_ACLS

    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = []
