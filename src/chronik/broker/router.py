"""From a frame to a call and back: header, version check, decoding, handler, encoding, and what is counted and logged.

What lives here: everything that is the same for all APIs. What does not: the meaning of any of them (handlers/), and
which are served (table.py).

Rules:
1. Whatever comes in is answered with its correlation id, or the connection is closed; nothing is left hanging.
2. ApiVersions at an unknown version is answered in version 0 with UNSUPPORTED_VERSION. Any other unknown API or
   version, and a body that cannot be decoded, closes the connection after one rate-limited line that says why, as
   Kafka does.
3. A handler that fails is logged with its traceback and answered with the API's own form of an error, never error 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from importlib import import_module
from time import perf_counter
from types import CoroutineType
from typing import Any

import structlog

from chronik.broker.connection import Connection
from chronik.broker.context import PendingResponse, RequestContext, Services
from chronik.broker.metrics import ApiMetrics
from chronik.broker.responses import Slot
from chronik.broker.table import SERVED_APIS, ServedApi
from chronik.protocol.api import APIS, ApiKey, request_class
from chronik.protocol.codec import DecodeError, RequestHeader, decode_request_header, decoder, encode_response
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.wire import Buffer, Message

log = structlog.get_logger(__name__)

HANDLERS_PACKAGE = "chronik.broker.handlers"

Handler = Callable[[Any, RequestContext], Any]
Answer = Message | list[Buffer]
"""A message, or a whole frame that the handler knows how to make for less."""
FailureResponse = Callable[[Any, KafkaError], Message | None]


class Route:
    """One API: its versions, its handler once imported, and its counters."""

    __slots__ = ("decoders", "failed", "handle", "key", "lowest", "metrics", "module", "name", "newest")

    def __init__(self, served: ServedApi, metrics: ApiMetrics) -> None:
        api = APIS[served.key]
        self.key = served.key
        self.name = api.name
        self.module = served.module
        self.lowest = api.min_version
        self.newest = api.max_version
        self.metrics = metrics
        self.handle: Handler | None = None
        self.failed: FailureResponse | None = None
        self.decoders: list[Any] = [None] * (api.max_version + 1)

    def load(self) -> Handler:
        """Import the handler module."""
        module = import_module(f"{HANDLERS_PACKAGE}.{self.module}")
        function = self.key.name.lower()
        self.failed = getattr(module, f"{function}_failed")
        handle: Handler = getattr(module, function)
        self.handle = handle
        return handle


class Router:
    """Dispatches the frames of all connections of a node."""

    def __init__(self, services: Services, table: Iterable[ServedApi] = SERVED_APIS) -> None:
        self.services = services
        self._routes: dict[int, Route] = {}
        for served in table:
            if served.needs is None or served.needs in services.coordinators:
                self._routes[served.key] = Route(served, services.metrics.api(served.key))
        services.apis = tuple(
            (route.key, route.lowest, route.newest) for route in sorted(self._routes.values(), key=lambda r: r.key)
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._debug = log.is_enabled_for(10)

    def close(self) -> None:
        """Cancel what still runs for clients."""
        for task in self._tasks:
            task.cancel()

    def dispatch(self, connection: Connection, frame: memoryview, owned: bool) -> None:
        """Handle one request frame and answer it through the connection."""
        started = perf_counter()
        try:
            header = decode_request_header(frame)
        except DecodeError as error:
            self._malformed(connection, None, None, error)
            return
        version = header.api_version
        route = self._routes.get(header.api_key)
        if route is None or not route.lowest <= version <= route.newest:
            self._unsupported(connection, header)
            return
        handle = route.handle or route.load()
        body = header.body
        try:
            decode = route.decoders[version]
            if decode is None:
                decode = route.decoders[version] = decoder(request_class(route.key), version)
            request = decode(body, 0, len(body))[0]
        except DecodeError as error:
            self._malformed(connection, route, header, error)
            return
        ctx = RequestContext(
            self.services, connection, route.key, version, header.correlation_id, header.client_id, started
        )
        try:
            result = handle(request, ctx)
        except Exception as error:
            result = self._failure(route, ctx, request, error)
            if result is None:
                return
        if result is None:
            self._count(route, ctx, None)
        elif result.__class__ is list:
            self._count(route, ctx, None)
            connection.respond(result)
        elif result.__class__ is PendingResponse:
            self._await_pending(route, ctx, request, result)
        elif result.__class__ is CoroutineType:
            self._start_task(route, ctx, request, result)
        else:
            buffers = self._encode(route, ctx, request, result)
            if buffers is not None:
                connection.respond(buffers)

    # --- answers that come later --------------------------------------------------------------------------------

    def _await_pending(self, route: Route, ctx: RequestContext, request: Message, pending: PendingResponse) -> None:
        slot = ctx.connection.reserve(exclusive=pending.exclusive)
        slot.on_abandoned = pending.on_abandoned
        pending.attach(lambda response: self._fill(slot, route, ctx, request, response))

    def _start_task(
        self, route: Route, ctx: RequestContext, request: Message, work: Coroutine[Any, Any, Answer | None]
    ) -> None:
        slot = ctx.connection.reserve(exclusive=True)
        task = asyncio.get_running_loop().create_task(self._run(slot, route, ctx, request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self,
        slot: Slot,
        route: Route,
        ctx: RequestContext,
        request: Message,
        work: Coroutine[Any, Any, Answer | None],
    ) -> None:
        response: Answer | None
        try:
            response = await work
        except Exception as error:
            response = self._failure(route, ctx, request, error)
        self._fill(slot, route, ctx, request, response)

    def _fill(self, slot: Slot, route: Route, ctx: RequestContext, request: Message, response: Answer | None) -> None:
        if response is None or isinstance(response, list):
            self._count(route, ctx, None)
            slot.fill(response)
        else:
            slot.fill(self._encode(route, ctx, request, response))

    # --- responses and failures ---------------------------------------------------------------------------------

    def _encode(self, route: Route, ctx: RequestContext, request: Message, response: Message) -> list[Buffer] | None:
        try:
            buffers = encode_response(response, ctx.api_version, ctx.correlation_id)
        except Exception as error:
            failure = self._failure(route, ctx, request, error)
            if failure is None:
                return None
            response = failure
            try:
                buffers = encode_response(failure, ctx.api_version, ctx.correlation_id)
            except Exception as second:
                log.error("an error response cannot be encoded either", api=route.name, exc_info=second)
                ctx.connection.refuse("closed a connection: a response cannot be encoded", api=route.name)
                return None
        self._count(route, ctx, response)
        return buffers

    def _failure(self, route: Route, ctx: RequestContext, request: Message, error: Exception) -> Message | None:
        """The API's answer to an error that hit the whole request; closes the connection when it has none."""
        if isinstance(error, KafkaError):
            known = error
        else:
            self.services.metrics.handler_failures += 1
            log.error(
                "a request failed for a reason that is ours, not the client's; please report it",
                api=route.name,
                version=ctx.api_version,
                client=ctx.connection.peer,
                client_id=ctx.client_id,
                exc_info=error,
            )
            known = KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "The server experienced an unexpected error; its log says more."
            )
        ctx.outcome = int(known.code)
        response = route.failed(request, known) if route.failed is not None else None
        if response is None:
            self._count(route, ctx, None)
            ctx.connection.refuse(
                "closed a connection: a request that expects no response failed",
                api=route.name,
                version=ctx.api_version,
                error=known.code.name,
                reason=known.message,
            )
        return response

    def _count(self, route: Route, ctx: RequestContext, response: Message | None) -> None:
        seconds = perf_counter() - ctx.started
        outcome = ctx.outcome
        if not outcome and response is not None:
            outcome = getattr(response, "error_code", 0)
        route.metrics.observe(seconds, outcome)
        if self._debug:
            log.debug(
                "answered a request",
                api=route.name,
                version=ctx.api_version,
                client=ctx.connection.peer,
                client_id=ctx.client_id,
                correlation_id=ctx.correlation_id,
                outcome=outcome,
                microseconds=int(seconds * 1e6),
            )

    def _unsupported(self, connection: Connection, header: RequestHeader) -> None:
        self.services.metrics.requests_unsupported += 1
        if header.api_key == ApiKey.API_VERSIONS and ApiKey.API_VERSIONS in self._routes:
            from chronik.broker.handlers.api_versions import unsupported_version

            connection.respond(encode_response(unsupported_version(self.services), 0, header.correlation_id))
            return
        api = APIS.get(header.api_key)
        connection.refuse(
            "closed a connection: this broker does not speak the API or the version of a request",
            api=api.name if api is not None else "unknown",
            api_key=header.api_key,
            version=header.api_version,
            client_id=header.client_id,
        )

    def _malformed(
        self, connection: Connection, route: Route | None, header: RequestHeader | None, error: DecodeError
    ) -> None:
        self.services.metrics.requests_malformed += 1
        connection.refuse(
            "closed a connection: a request cannot be decoded",
            api=route.name if route is not None else "unknown",
            version=header.api_version if header is not None else None,
            client_id=header.client_id if header is not None else None,
            reason=str(error),
        )
