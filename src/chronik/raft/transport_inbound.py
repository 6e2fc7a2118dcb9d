"""The incoming side: connections that peers made to us. After the handshake they bring Raft messages and requests.

Before the handshake a stranger may send one small frame, within a few seconds, and nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from chronik.raft.transport_connection import Connection
from chronik.raft.transport_frames import (
    FRAME_BYTES_MAX,
    REQUEST_ID,
    VERSION_MAX,
    VERSION_MIN,
    Channel,
    FrameKind,
    Hello,
    Payload,
    ProtocolViolation,
    Refused,
    RemoteError,
    Welcome,
    failure_frame,
    response_frame,
    small_frame,
    struct_frame,
)
from chronik.raft.types import Message, decode_message

if TYPE_CHECKING:
    from chronik.raft.transport_identity import Identity

log = structlog.get_logger()

SERVED_AT_ONCE_MAX = 1024
STALLED_FRAME_MAX_S = 30.0

Handler = Callable[[int, bytes], Awaitable[Payload] | Payload]

_decode_hello = msgspec.msgpack.Decoder(Hello).decode
_PONG = small_frame(FrameKind.PONG)


class Inbound:
    """One incoming connection."""

    def __init__(
        self,
        identity: Identity,
        handlers: dict[str, Handler],
        *,
        objection: Callable[[Hello], str | None],
        on_hello: Callable[[Inbound, Hello], None],
        on_message: Callable[[Message], None],
        on_closed: Callable[[Inbound], None],
        clock: Callable[[], float],
    ) -> None:
        self._identity = identity
        self._handlers = handlers
        self._objection = objection
        self._on_hello = on_hello
        self._on_message = on_message
        self._on_closed = on_closed
        self.connection = Connection(self, clock, hold_reading=True)
        self.hello: Hello | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def node_id(self) -> int:
        return self.hello.node_id if self.hello is not None else 0

    @property
    def channel(self) -> Channel | None:
        return self.hello.channel if self.hello is not None else None

    def is_overdue(self, now: float, handshake_timeout_s: float) -> bool:
        """Whether the connection is to be cut: no handshake in time, or half a frame and then nothing."""
        if self.hello is None:
            return now - self.connection.opened_at > handshake_timeout_s
        return self.connection.is_mid_frame and now - self.connection.last_received > STALLED_FRAME_MAX_S

    def refuse(self, reason: str) -> None:
        """Says why, on both sides, and closes."""
        self._identity.log_once(
            f"refused {self.connection.address.rpartition(':')[0]} {reason}",
            "refused a connection from another node",
            address=self.connection.address,
            reason=reason,
        )
        self.connection.write(struct_frame(FrameKind.REFUSED, Refused(reason)))
        self.connection.close()

    # --- frames --------------------------------------------------------------------------------------------------

    def frame_received(self, connection: Connection, kind: FrameKind, body: memoryview, owned: bool) -> None:
        try:
            if self.hello is None:
                if kind is not FrameKind.HELLO:
                    raise ProtocolViolation(f"a {kind.name} frame before the handshake")
                self._greet(_decode_hello(body))
            elif kind is FrameKind.RAFT:
                self._take_message(body)
            elif kind is FrameKind.REQUEST:
                self._take_request(body)
            elif kind is FrameKind.CANCEL:
                task = self._tasks.get(REQUEST_ID.unpack_from(body)[0])
                if task is not None:
                    task.cancel()
            elif kind is FrameKind.PING:
                connection.write_or_drop(_PONG)
            else:
                raise ProtocolViolation(f"a {kind.name} frame, which only answers carry")
        except (msgspec.DecodeError, ValueError, IndexError, UnicodeDecodeError) as error:
            raise ProtocolViolation(f"a {kind.name} frame that cannot be read: {error}") from error

    def _greet(self, hello: Hello) -> None:
        identity = self._identity
        problem = identity.mismatch(hello.cluster_id, hello.node_id)
        if hello.version_max < VERSION_MIN or hello.version_min > VERSION_MAX:
            problem = (
                f"node {hello.node_id} speaks peer protocol {hello.version_min} to {hello.version_max}, node "
                f"{identity.node_id} {VERSION_MIN} to {VERSION_MAX}: upgrade the older one"
            )
        elif hello.target not in (0, identity.node_id):
            problem = f"node {hello.target} was expected here, but this is node {identity.node_id}: check the addresses"
        elif hello.node_id < 1 or len(hello.directory_id) != len(identity.directory_id):
            problem = f"node id {hello.node_id} or its directory id is not valid"
        problem = problem or self._objection(hello)
        if problem is not None:
            self.refuse(problem)
            return
        self.hello = hello
        version = min(VERSION_MAX, hello.version_max)
        welcome = Welcome(version, identity.cluster_id or "", identity.node_id, identity.directory_id)
        self.connection.write(struct_frame(FrameKind.WELCOME, welcome))
        self.connection.handshake_done(hello.channel, FRAME_BYTES_MAX[hello.channel])
        self._on_hello(self, hello)

    def _take_message(self, body: memoryview) -> None:
        if self.channel != "control":
            raise ProtocolViolation("a consensus message on a data connection")
        message = decode_message(body)
        if message.source != self.node_id:
            raise ProtocolViolation(f"node {self.node_id} sent a message in the name of node {message.source}")
        self._on_message(message)

    # --- requests ------------------------------------------------------------------------------------------------

    def _take_request(self, body: memoryview) -> None:
        (request_id,) = REQUEST_ID.unpack_from(body)
        kind_length = body[REQUEST_ID.size]
        start = REQUEST_ID.size + 1
        kind = str(body[start : start + kind_length], "utf-8")
        payload = bytes(body[start + kind_length :])
        handler = self._handlers.get(kind)
        if handler is None:
            error = RemoteError(
                "unknown_kind", f"node {self._identity.node_id} does not serve '{kind}'", retriable=True
            )
            self.connection.write(failure_frame(request_id, error))
            return
        if len(self._tasks) >= SERVED_AT_ONCE_MAX:
            error = RemoteError(
                "overloaded", f"{SERVED_AT_ONCE_MAX} requests are being served: try again", retriable=True
            )
            self.connection.write(failure_frame(request_id, error))
            return
        try:
            result = handler(self.node_id, payload)
        except Exception as error:
            self.connection.write(failure_frame(request_id, as_remote_error(kind, error)))
            return
        if inspect.isawaitable(result):
            task = asyncio.get_running_loop().create_task(self._serve(request_id, kind, result))
            self._tasks[request_id] = task
            if inspect.iscoroutine(result):
                task.add_done_callback(lambda _: result.close())  # cancelled before it began, it is never awaited
        else:
            self._respond(request_id, kind, result)

    async def _serve(self, request_id: int, kind: str, result: Awaitable[Payload]) -> None:
        try:
            payload = await result
            await self.connection.writable()
            self._respond(request_id, kind, payload)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.connection.write(failure_frame(request_id, as_remote_error(kind, error)))
        finally:
            self._tasks.pop(request_id, None)

    def _respond(self, request_id: int, kind: str, payload: Payload) -> None:
        assert self.channel is not None
        buffers, length = response_frame(request_id, payload)
        limit = FRAME_BYTES_MAX[self.channel]
        if length > limit:
            error = RemoteError("too_large", f"the answer to '{kind}' has {length} bytes, the limit is {limit}")
            self.connection.write(failure_frame(request_id, error))
        else:
            self.connection.write_buffers(buffers)

    # --- the end -------------------------------------------------------------------------------------------------

    def connection_closed(self, connection: Connection) -> None:
        if connection.violation is not None:
            who = f"node {self.node_id}" if self.hello is not None else "a stranger"
            self._identity.log_once(
                f"violation {connection.address.rpartition(':')[0]}",
                f"cut off {who} on the peer port",
                address=connection.address,
                reason=connection.violation,
            )
        for task in list(self._tasks.values()):
            task.cancel()
        self._on_closed(self)


def as_remote_error(kind: str, error: Exception) -> RemoteError:
    """What the peer is told when a handler raised."""
    if isinstance(error, RemoteError):
        return error
    log.error("a request from another node failed", kind=kind, exc_info=error)
    retriable = bool(getattr(error, "retriable", False))
    return RemoteError("failed", f"{type(error).__name__}: {error}", retriable=retriable)
