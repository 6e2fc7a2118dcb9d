"""FindCoordinator, v0–v6: which broker coordinates a group or a transactional id.

The internal topic is created by the first who asks. Any node answers, from the metadata it has.

Deliberate gaps: share groups (key type 2) are not served.
"""

from __future__ import annotations

from collections.abc import Coroutine
from enum import IntEnum
from typing import Any

from chronik.broker.context import RequestContext
from chronik.metadata.model import NO_LEADER, BrokerInfo
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.coordinators import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

FIRST_VERSION_WITH_MANY_KEYS = 4
KEYS_MAX = 10_000
"""Keys in one request; more are refused."""


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1


_COORDINATORS = {KeyType.GROUP: "groups", KeyType.TRANSACTION: "transactions"}


def find_coordinator(
    request: FindCoordinatorRequest, ctx: RequestContext
) -> FindCoordinatorResponse | Coroutine[Any, Any, FindCoordinatorResponse]:
    """At once when the coordinators are known; else after the internal topic was created or given a leader."""
    service = _service(request.key_type, ctx)
    keys = request.coordinator_keys if ctx.api_version >= FIRST_VERSION_WITH_MANY_KEYS else [request.key]
    if len(keys) > KEYS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {KEYS_MAX} keys can be asked for at once")
    found = [_checked(key, request.key_type) or _answer(key, service.coordinator_of(key)) for key in keys]
    if any(answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE for answer in found):
        return _find_slowly(request, ctx, keys, service)
    return _response(request, ctx, found)


def find_coordinator_failed(request: FindCoordinatorRequest, error: KafkaError) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=error.code,
        error_message=error.message,
        node_id=NO_LEADER,
        port=-1,
        coordinators=[_refused(key, error.code, error.message) for key in request.coordinator_keys],
    )


def _service(key_type: int, ctx: RequestContext) -> Any:
    name = _COORDINATORS.get(key_type)  # type: ignore[call-overload]
    if name is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {key_type}")
    service = ctx.coordinators.get(name)
    if service is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} are not served by this node")
    return service


async def _find_slowly(
    request: FindCoordinatorRequest, ctx: RequestContext, keys: list[str], service: Any
) -> FindCoordinatorResponse:
    found: list[Coordinator] = []
    for key in keys:
        refusal = _checked(key, request.key_type)
        if refusal is None:
            try:
                refusal = _answer(key, await service.find_coordinator(key))
            except KafkaError as error:
                refusal = _refused(key, error.code, error.message)
        found.append(refusal)
    return _response(request, ctx, found)


def _checked(key: str, key_type: int) -> Coordinator | None:
    """The refusal of a key that nobody can coordinate. A group without a name has no members, but may have offsets."""
    if key or key_type == KeyType.GROUP:
        return None
    return _refused(key, ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")


def _answer(key: str, broker: BrokerInfo | None) -> Coordinator:
    if broker is None:
        return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no coordinator now; try again")
    return Coordinator(key=key, node_id=broker.node_id, host=broker.host, port=broker.port)


def _refused(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=NO_LEADER, port=-1, error_code=code, error_message=message)


def _response(
    request: FindCoordinatorRequest, ctx: RequestContext, found: list[Coordinator]
) -> FindCoordinatorResponse:
    ctx.outcome = next((answer.error_code for answer in found if answer.error_code), 0)
    if ctx.api_version >= FIRST_VERSION_WITH_MANY_KEYS:
        return FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )
