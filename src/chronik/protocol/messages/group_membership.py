"""JoinGroup (versions 0 to 9), Heartbeat (0 to 4), LeaveGroup (0 to 5), SyncGroup (0 to 5): the classic protocol."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bool, Bytes, Int16, Int32, Message, String, V


class JoinGroupRequestProtocol(Message):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.JOIN_GROUP

    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, V("1+")] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("5+")] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[String | None, V("8+")] = None


class JoinGroupResponseMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("5+")] = None
    metadata: Bytes = b""


class JoinGroupResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.JOIN_GROUP

    throttle_time_ms: Annotated[Int32, V("2+")] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, V("7+")] = None
    protocol_name: Annotated[String | None, V("0+", nullable="7+")] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, V("9+")] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = []


class HeartbeatRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.HEARTBEAT

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("3+")] = None


class HeartbeatResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.HEARTBEAT

    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Int16 = 0


class MemberIdentity(Message):
    member_id: String = ""
    group_instance_id: String | None = None
    reason: Annotated[String | None, V("5+")] = None


class LeaveGroupRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.LEAVE_GROUP

    group_id: String = ""
    member_id: Annotated[String, V("0-2")] = ""
    members: Annotated[list[MemberIdentity], V("3+")] = []


class MemberResponse(Message):
    member_id: String = ""
    group_instance_id: String | None = None
    error_code: Int16 = 0


class LeaveGroupResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.LEAVE_GROUP

    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], V("3+")] = []


class SyncGroupRequestAssignment(Message):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.SYNC_GROUP

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("3+")] = None
    protocol_type: Annotated[String | None, V("5+")] = None
    protocol_name: Annotated[String | None, V("5+")] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.SYNC_GROUP

    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, V("5+")] = None
    protocol_name: Annotated[String | None, V("5+")] = None
    assignment: Bytes = b""
