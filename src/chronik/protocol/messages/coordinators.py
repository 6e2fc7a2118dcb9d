"""FindCoordinator: versions 0 to 6.

Version 4 asks for many keys at once; before it there is one key in, and one coordinator out, at the top level.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Int8, Int16, Int32, Message, String, V


class FindCoordinatorRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.FIND_COORDINATOR

    key: Annotated[String, V("0-3")] = ""
    key_type: Annotated[Int8, V("1+")] = 0
    coordinator_keys: Annotated[list[String], V("4+")] = []


class Coordinator(Message):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class FindCoordinatorResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.FIND_COORDINATOR

    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Annotated[Int16, V("0-3")] = 0
    error_message: Annotated[String | None, V("1-3")] = None
    node_id: Annotated[Int32, V("0-3")] = 0
    host: Annotated[String, V("0-3")] = ""
    port: Annotated[Int32, V("0-3")] = 0
    coordinators: Annotated[list[Coordinator], V("4+")] = []
