"""SaslHandshake (versions 0 to 1), SaslAuthenticate (0 to 2).

After handshake version 0 the tokens follow without any Kafka header; after version 1 they travel in SaslAuthenticate.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bytes, Int16, Int64, Message, String, V


class SaslHandshakeRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.SASL_HANDSHAKE

    mechanism: String = ""


class SaslHandshakeResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.SASL_HANDSHAKE

    error_code: Int16 = 0
    mechanisms: list[String] = []


class SaslAuthenticateRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.SASL_AUTHENTICATE

    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.SASL_AUTHENTICATE

    error_code: Int16 = 0
    error_message: String | None = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, V("1+")] = 0
