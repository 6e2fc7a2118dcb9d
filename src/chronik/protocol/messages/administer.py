"""Administer: version 0. Chronik's own API, beside Kafka's: what `chronik cluster` asks of a node.

Kafka has no requests for a node's view of consensus, for draining a node or for plans that move replicas. An action is
named, its arguments and its result are JSON. Clients that do not know the key ignore it.
"""

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bytes, Int16, Int32, Message, String, V


class AdministerRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.ADMINISTER

    action: String = ""
    arguments: Bytes = b"{}"
    timeout_ms: Int32 = 5000


class AdministerResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.ADMINISTER

    error_code: Int16 = 0
    error_message: Annotated[String | None, V("0+")] = None
    result: Bytes = b"null"
