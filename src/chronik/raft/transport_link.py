"""The outgoing side: one connection to one peer for one channel, kept up, with the requests that wait for answers.

A link carries what this node says (Raft messages, requests) and the answers to its requests. What the peer says by
itself comes on the peer's own link to us (`transport_inbound.py`), so two nodes that dial each other at once never have
to agree on which of two connections to keep.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
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
    Failure,
    FrameKind,
    Hello,
    Payload,
    PeerBusy,
    PeerDisconnected,
    PeerTimeout,
    PeerUnreachable,
    ProtocolViolation,
    Refused,
    RemoteError,
    RequestTooLarge,
    Welcome,
    frame_with_id,
    request_frame,
    small_frame,
    struct_frame,
)

if TYPE_CHECKING:
    from chronik.raft.transport_identity import Identity

log = structlog.get_logger()

CONNECT_TIMEOUT_S = 3.0
HANDSHAKE_TIMEOUT_S = 3.0
RECONNECT_FIRST_S = 0.05
RECONNECT_MAX_S = 1.0
REFUSED_RETRY_S = 3.0
REQUESTS_IN_FLIGHT_MAX = 1024
REQUEST_BACKLOG_BYTES_MAX: dict[Channel, int] = {"control": 16 * 1024 * 1024, "data": 64 * 1024 * 1024}
PING_AFTER_S = 1.0
SILENCE_MAX_S = 10.0
TROUBLE_LOGGED_AFTER_S = 2.0
"""A node that is started a moment later, or restarted, is no news."""

_decode_welcome = msgspec.msgpack.Decoder(Welcome).decode
_decode_refused = msgspec.msgpack.Decoder(Refused).decode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode
_PING = small_frame(FrameKind.PING)


class Link:
    """To `node_id` (0: whoever answers) at `host:port`. Once started it dials again whenever the connection is lost."""

    def __init__(
        self,
        identity: Identity,
        node_id: int,
        host: str,
        port: int,
        channel: Channel,
        *,
        rng: random.Random,
        on_change: Callable[[Link], None] | None = None,
    ) -> None:
        self._identity = identity
        self.node_id = node_id
        self.host = host
        self.port = port
        self.channel: Channel = channel
        self._rng = rng
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._handshake: asyncio.Future[None] | None = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._in_flight: dict[int, asyncio.Future[bytes | memoryview]] = {}
        self._next_id = 0
        self._waiting = 0
        self.peer: Welcome | None = None
        self.last_problem: str | None = None
        self.last_received = 0.0
        self._troubled_since: float | None = None
        self._trouble_logged = False

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def start(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._keep_connected(), name=f"link to node {self.node_id}")

    def nudge(self) -> None:
        """The peer is known to be up: do not wait out the pause before the next attempt."""
        self._nudged.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop(self._connection)

    # --- connecting ----------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        pause_s = RECONNECT_FIRST_S
        while True:
            self._lost.clear()
            refused = False
            try:
                await self.connect()
            except RemoteError as error:
                refused = True
                self._note_problem(f"the node at {self.host}:{self.port} refused this node: {error}", refused=True)
            except (OSError, TimeoutError, PeerDisconnected, ProtocolViolation) as error:
                self._note_problem(f"cannot connect to {self.host}:{self.port}: {error or type(error).__name__}")
            else:
                pause_s = RECONNECT_FIRST_S
                self._note_connected()
                await self._lost.wait()
            self._nudged.clear()
            wait_s = REFUSED_RETRY_S if refused else pause_s
            pause_s = min(pause_s * 2, RECONNECT_MAX_S)
            try:
                async with asyncio.timeout(wait_s * (0.5 + self._rng.random() / 2)):
                    await self._nudged.wait()
            except TimeoutError:
                pass

    def _note_problem(self, problem: str, *, refused: bool = False) -> None:
        self.last_problem = problem
        now = self._loop.time()
        if self._troubled_since is None:
            self._troubled_since = now
        if refused or (self.channel == "control" and now - self._troubled_since > TROUBLE_LOGGED_AFTER_S):
            self._trouble_logged = True
            self._identity.log_once(f"link {self.node_id} {self.host} {refused}", problem, node=self.node_id)

    def _note_connected(self) -> None:
        if self._trouble_logged:
            log.info("connected to a node again", node=self.node_id, address=f"{self.host}:{self.port}")
        self.last_problem = None
        self._troubled_since = None
        self._trouble_logged = False

    async def connect(self) -> None:
        """Connects and shakes hands, once. Raises RemoteError when refused, OSError, TimeoutError, ..."""
        connection = Connection(self, self._loop.time)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(lambda: connection, self.host, self.port)
            self._handshake = self._loop.create_future()
            identity = self._identity
            hello = Hello(
                version_min=VERSION_MIN,
                version_max=VERSION_MAX,
                cluster_id=identity.cluster_id or "",
                node_id=identity.node_id,
                directory_id=identity.directory_id,
                channel=self.channel,
                target=self.node_id,
                host=identity.host,
                port=identity.port,
            )
            self._connection = connection
            connection.write(struct_frame(FrameKind.HELLO, hello))
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await self._handshake
        except BaseException:
            self._drop(connection)
            raise
        finally:
            self._handshake = None
        connection.handshake_done(self.channel, FRAME_BYTES_MAX[self.channel])
        self._ready.set()
        self._changed()

    def _take_welcome(self, welcome: Welcome) -> None:
        assert self._handshake is not None
        if not VERSION_MIN <= welcome.version <= VERSION_MAX:
            raise ProtocolViolation(f"it chose version {welcome.version}, which was not offered")
        identity = self._identity
        problem = identity.mismatch(welcome.cluster_id, welcome.node_id)
        if problem is None and self.node_id not in (0, welcome.node_id):
            problem = f"node {self.node_id} was expected there, but it is node {welcome.node_id}"
        if problem is not None:
            self._handshake.set_exception(RemoteError("refused", problem))
            return
        self.peer = welcome
        self._handshake.set_result(None)

    def _drop(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.abort()
        if connection is self._connection:
            self._connection = None
            was_ready = self._ready.is_set()
            self._ready.clear()
            self._lost.set()
            in_flight, self._in_flight = self._in_flight, {}
            for future in in_flight.values():
                if not future.done():
                    future.set_exception(PeerDisconnected(f"the connection to node {self.node_id} was lost"))
            if was_ready:
                self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change(self)

    def check(self, now: float) -> None:
        """Once a second: a silent peer is asked for a sign of life; one that gives none for long is given up."""
        connection = self._connection
        if connection is None or not self._ready.is_set():
            return
        silent_s = now - connection.last_received
        if silent_s > SILENCE_MAX_S:
            self._note_problem(f"nothing was heard from {self.host}:{self.port} for {SILENCE_MAX_S:.0f} s")
            self._drop(connection)
        elif silent_s > PING_AFTER_S:
            connection.write_or_drop(_PING)

    # --- what is said --------------------------------------------------------------------------------------------

    def send_or_drop(self, frame: bytes) -> bool:
        """A message that is repeated if it is lost; False when it was dropped here."""
        return self._ready.is_set() and self._connection is not None and self._connection.write_or_drop(frame)

    async def request(
        self, kind: str, payload: Payload, timeout_s: float, connect_s: float | None = None
    ) -> bytes | memoryview:
        """Sends a request, waiting for a connection if need be, and returns the answer."""
        deadline = self._loop.time() + timeout_s
        if not self._ready.is_set():
            await self._wait_ready(timeout_s if connect_s is None else min(timeout_s, connect_s))
        connection = self._connection
        if connection is None or len(self._in_flight) >= REQUESTS_IN_FLIGHT_MAX:
            raise PeerBusy(f"{len(self._in_flight)} requests to node {self.node_id} wait for an answer: try again")
        if connection.unsent_bytes > REQUEST_BACKLOG_BYTES_MAX[self.channel]:
            raise PeerBusy(f"{connection.unsent_bytes} bytes wait to be sent to node {self.node_id}: try again")
        self._next_id += 1
        request_id = self._next_id
        buffers, length = request_frame(request_id, kind.encode(), payload)
        if length > FRAME_BYTES_MAX[self.channel]:
            raise RequestTooLarge(f"a request of {length} bytes is over the limit of {FRAME_BYTES_MAX[self.channel]}")
        answer: asyncio.Future[bytes | memoryview] = self._loop.create_future()
        self._in_flight[request_id] = answer
        timer = self._loop.call_at(deadline, self._expire, request_id, kind, timeout_s)
        connection.write_buffers(buffers)
        try:
            return await answer
        finally:
            timer.cancel()
            if self._in_flight.pop(request_id, None) is not None and connection is self._connection:
                connection.write(frame_with_id(FrameKind.CANCEL, request_id))

    async def _wait_ready(self, timeout_s: float) -> None:
        if self._waiting >= REQUESTS_IN_FLIGHT_MAX:
            raise PeerBusy(f"{self._waiting} requests wait for a connection to node {self.node_id}: try again")
        self._waiting += 1
        self.nudge()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            cause = self.last_problem or f"no connection to {self.host}:{self.port}"
            raise PeerUnreachable(f"node {self.node_id} cannot be reached: {cause}") from None
        finally:
            self._waiting -= 1

    def _expire(self, request_id: int, kind: str, timeout_s: float) -> None:
        future = self._in_flight.get(request_id)
        if future is not None and not future.done():
            future.set_exception(PeerTimeout(f"node {self.node_id} did not answer '{kind}' within {timeout_s:.1f} s"))

    # --- what is heard -------------------------------------------------------------------------------------------

    def frame_received(self, connection: Connection, kind: FrameKind, body: memoryview, owned: bool) -> None:
        self.last_received = connection.last_received
        try:
            if self._handshake is not None:
                self._handshake_frame(kind, body)
            elif kind is FrameKind.RESPONSE:
                self._answered(body, owned)
            elif kind is FrameKind.ERROR:
                (request_id,) = REQUEST_ID.unpack_from(body)
                failure = _decode_failure(body[REQUEST_ID.size :])
                self._fail(request_id, failure)
            elif kind is FrameKind.REFUSED:
                reason = _decode_refused(body).reason
                self._note_problem(f"the node at {self.host}:{self.port} refused this node: {reason}", refused=True)
                self._drop(connection)
            elif kind is not FrameKind.PONG:
                raise ProtocolViolation(f"node {self.node_id} sent a {kind.name} frame where only answers belong")
        except (msgspec.DecodeError, ValueError) as error:
            raise ProtocolViolation(f"node {self.node_id} sent what cannot be read: {error}") from error

    def _handshake_frame(self, kind: FrameKind, body: memoryview) -> None:
        assert self._handshake is not None
        if self._handshake.done():
            return
        if kind is FrameKind.WELCOME:
            self._take_welcome(_decode_welcome(body))
        elif kind is FrameKind.REFUSED:
            self._handshake.set_exception(RemoteError("refused", _decode_refused(body).reason))
        else:
            raise ProtocolViolation(f"a {kind.name} frame in place of a welcome")

    def _answered(self, body: memoryview, owned: bool) -> None:
        (request_id,) = REQUEST_ID.unpack_from(body)
        future = self._in_flight.pop(request_id, None)
        if future is None or future.done():
            return
        payload = body[REQUEST_ID.size :]
        if self.channel == "control":
            future.set_result(bytes(payload))
        else:
            future.set_result(payload if owned else memoryview(bytearray(payload)))

    def _fail(self, request_id: int, failure: Failure) -> None:
        future = self._in_flight.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(
                RemoteError(failure.code, failure.message, retriable=failure.retriable, detail=failure.detail)
            )

    def connection_closed(self, connection: Connection) -> None:
        if connection.violation is not None:
            self._note_problem(f"closed the connection to {self.host}:{self.port}: {connection.violation}")
        if self._handshake is not None and not self._handshake.done() and connection is self._connection:
            reason = connection.violation or f"{self.host}:{self.port} closed the connection during the handshake"
            self._handshake.set_exception(PeerDisconnected(reason))
        self._drop(connection)
