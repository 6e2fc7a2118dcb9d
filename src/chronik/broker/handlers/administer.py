"""Administer, v0: Chronik's own API, for `chronik cluster`. What the actions do is in `broker/administration.py`."""

from __future__ import annotations

import msgspec

from chronik.broker.administration import Administration, Arguments
from chronik.broker.context import RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.administer import AdministerRequest, AdministerResponse

TIMEOUT_S_MAX = 60.0


async def administer(request: AdministerRequest, ctx: RequestContext) -> AdministerResponse:
    administration: Administration = ctx.coordinators["administration"]
    try:
        arguments = msgspec.json.decode(request.arguments, type=Arguments)
    except msgspec.MsgspecError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The arguments are not a JSON object: {error}") from error
    timeout_s = min(TIMEOUT_S_MAX, max(0.001, request.timeout_ms / 1000))
    result = await administration.run(request.action, arguments, timeout_s)
    return AdministerResponse(result=msgspec.json.encode(result))


def administer_failed(request: AdministerRequest, error: KafkaError) -> AdministerResponse:
    return AdministerResponse(error_code=error.code, error_message=error.message)
