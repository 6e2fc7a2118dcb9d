"""Records that classic groups keep in `__consumer_offsets`. A key of version 2 is a group."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.wire import Bytes, Int32, Int64, Message, String, V


class GroupMetadataKey(Message):
    VERSIONS: ClassVar[str] = "2"

    group: String = ""


class MemberMetadata(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("3+")] = None
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Annotated[Int32, V("1+")] = -1
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(Message):
    VERSIONS: ClassVar[str] = "0-4"
    FLEXIBLE: ClassVar[str] = "4+"

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = None
    leader: String | None = None
    current_state_timestamp: Annotated[Int64, V("2+")] = -1
    members: list[MemberMetadata] = []
