"""One blocking connection to one broker: version negotiation, request and response frames, limits on size and time.

A connection belongs to one thread. Requests may be sent ahead of their answers (`send`, then `receive` in the same
order), or one by one (`call`). After any failure the connection is closed, since what is still under way is unknown.
Which broker to talk to is the business of `cluster`.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from typing import NamedTuple, TypeVar, cast

import msgspec

from chronik.client.errors import ConnectionFailed, RequestTimedOut, UnsupportedByBroker
from chronik.protocol.api import APIS, ApiKey
from chronik.protocol.codec import DecodeError, Message, decode, decode_response, encode_request
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

R = TypeVar("R", bound=Message)

_LENGTH = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")
_CORRELATION_BYTES = 4
_MAX_CORRELATION_ID = 2**31 - 1
_SOFTWARE = "chronik"


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a connection."""

    client_id: str = "chronik"
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    max_frame_bytes: int = 256 * 1024 * 1024
    max_in_flight: int = 64


class Pending(NamedTuple):
    """A request that was sent and not answered yet."""

    correlation_id: int
    api_key: int
    version: int


class Connection:
    """A connection that has agreed with its broker on the versions of every API.

    `sent_ns` and `received_ns` tell, on the monotonic clock, when the last request was handed to the socket and when
    the last answer was read from it: the broker and the network alone, for those who measure them.
    """

    def __init__(self, host: str, port: int, settings: ConnectionSettings | None = None) -> None:
        self.settings = settings or ConnectionSettings()
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.sent_ns = 0
        self.received_ns = 0
        self._correlation_id = 0
        self._pending: deque[Pending] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket: socket.socket | None = self._connect(host, port)
        try:
            self._negotiate()
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._socket is None

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def fileno(self) -> int:
        """The socket's descriptor, so that a selector can wait for several connections."""
        return self._open_socket().fileno()

    def close(self) -> None:
        """Close the socket. Requests still under way are given up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._pending.clear()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def version_of(self, key: ApiKey, newest: int | None = None) -> int:
        """The highest version of an API that both sides speak, and not above `newest`."""
        api = APIS[key]
        offered = self._versions.get(key)
        if offered is None:
            raise UnsupportedByBroker(
                f"the broker at {self.address} does not offer {api.name}; use a broker of a newer version"
            )
        low, high = max(api.min_version, offered[0]), min(api.max_version, offered[1])
        if newest is not None:
            high = min(high, newest)
        if low > high:
            raise UnsupportedByBroker(
                f"the broker at {self.address} speaks {api.name} v{offered[0]} to v{offered[1]}, "
                f"this client v{api.min_version} to v{min(api.max_version, newest or api.max_version)}"
            )
        return high

    def offers(self, key: ApiKey) -> bool:
        return key in self._versions

    def call(
        self, request: Message, response: type[R], *, newest: int | None = None, timeout_s: float | None = None
    ) -> R:
        """Send a request and wait for its answer. Nothing else may be under way."""
        if self._pending:
            raise ConnectionFailed(
                f"{len(self._pending)} answers from {self.address} were not received before the next call"
            )
        self.send(request, newest=newest, timeout_s=timeout_s)
        return self.receive(response, timeout_s=timeout_s)

    def send(
        self,
        request: Message,
        *,
        newest: int | None = None,
        expect_answer: bool = True,
        timeout_s: float | None = None,
    ) -> int:
        """Send a request without waiting for its answer; the version that was used.

        `expect_answer` is False for Produce with acks=0, which is never answered.
        """
        key = cast(ApiKey, request.API)  # type: ignore[attr-defined]
        version = self.version_of(key, newest)
        if len(self._pending) >= self.settings.max_in_flight:
            raise ConnectionFailed(f"{len(self._pending)} requests to {self.address} are under way; receive some first")
        self._correlation_id = self._correlation_id % _MAX_CORRELATION_ID + 1
        frame = encode_request(request, version, self._correlation_id, self.settings.client_id)
        wire = self._open_socket()
        try:
            wire.settimeout(self.settings.request_timeout_s if timeout_s is None else timeout_s)
            whole = frame[0] if len(frame) == 1 else b"".join(frame)
            self.sent_ns = time.monotonic_ns()
            wire.sendall(whole)
        except OSError as error:
            raise self._broken("sending to", error) from error
        if expect_answer:
            self._pending.append(Pending(self._correlation_id, key, version))
        return version

    def receive(self, response: type[R], *, timeout_s: float | None = None) -> R:
        """Wait for the answer to the oldest request under way."""
        if not self._pending:
            raise ConnectionFailed(f"no request to {self.address} is waiting for an answer")
        pending = self._pending[0]
        frame = self._read_frame(self.settings.request_timeout_s if timeout_s is None else timeout_s)
        self.received_ns = time.monotonic_ns()
        try:
            correlation_id, message = decode_response(response, pending.version, frame)
        except DecodeError as error:
            self.close()
            raise ConnectionFailed(
                f"the broker at {self.address} answered {APIS[pending.api_key].name} v{pending.version} "
                f"with bytes that do not decode: {error}"
            ) from error
        if correlation_id != pending.correlation_id:
            self.close()
            raise ConnectionFailed(
                f"the broker at {self.address} answered request {correlation_id} where {pending.correlation_id} was due"
            )
        self._pending.popleft()
        return message

    def _connect(self, host: str, port: int) -> socket.socket:
        try:
            wire = socket.create_connection((host, port), timeout=self.settings.connect_timeout_s)
        except OSError as error:
            raise ConnectionFailed(f"cannot connect to {self.address}: {error}") from error
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return wire

    def _negotiate(self) -> None:
        """Ask for the broker's versions, with our newest question first; older brokers answer that in version 0."""
        version = APIS[ApiKey.API_VERSIONS].max_version
        answer = self._ask_versions(version)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = {api.api_key: api.max_version for api in answer.api_keys}
            answer = self._ask_versions(min(version, offered.get(ApiKey.API_VERSIONS, 0)))
        if answer.error_code:
            raise ConnectionFailed(
                f"the broker at {self.address} refused to name its versions: error {answer.error_code}"
            )
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def _ask_versions(self, version: int) -> ApiVersionsResponse:
        self._versions = {ApiKey.API_VERSIONS: (version, version)}
        self.send(ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version="1"))
        self._pending.popleft()
        frame = self._read_frame(self.settings.connect_timeout_s)
        try:
            (code,) = _ERROR_CODE.unpack_from(frame, _CORRELATION_BYTES)
            spoken = 0 if code == ErrorCode.UNSUPPORTED_VERSION else version
            return decode(ApiVersionsResponse, spoken, frame[_CORRELATION_BYTES:], allow_trailing=True)
        except (DecodeError, struct.error) as error:
            raise ConnectionFailed(f"{self.address} does not speak the Kafka protocol: {error}") from error

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionFailed(f"the connection to {self.address} is closed")
        return self._socket

    def _read_frame(self, timeout_s: float) -> memoryview:
        deadline = time.monotonic() + timeout_s
        prefix = bytearray(4)
        self._read_into(memoryview(prefix), deadline, timeout_s)
        (size,) = _LENGTH.unpack(prefix)
        if not _CORRELATION_BYTES <= size <= self.settings.max_frame_bytes:
            self.close()
            raise ConnectionFailed(
                f"{self.address} announced a frame of {size} bytes, allowed are {_CORRELATION_BYTES} to "
                f"{self.settings.max_frame_bytes}; is it a Kafka listener, and is max_frame_bytes large enough?"
            )
        frame = memoryview(bytearray(size))
        self._read_into(frame, deadline, timeout_s)
        return frame

    def _read_into(self, room: memoryview, deadline: float, timeout_s: float) -> None:
        wire = self._open_socket()
        position = 0
        while position < len(room):
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(timeout_s)
            try:
                wire.settimeout(left)
                count = wire.recv_into(room[position:])
            except TimeoutError as error:
                raise self._late(timeout_s) from error
            except OSError as error:
                raise self._broken("reading from", error) from error
            if not count:
                self.close()
                raise ConnectionFailed(f"the broker at {self.address} closed the connection")
            position += count

    def _late(self, timeout_s: float) -> RequestTimedOut:
        self.close()
        return RequestTimedOut(f"the broker at {self.address} did not answer within {timeout_s:g} s")

    def _broken(self, doing: str, error: OSError) -> ConnectionFailed:
        self.close()
        return ConnectionFailed(f"{doing} {self.address} failed: {error}")
