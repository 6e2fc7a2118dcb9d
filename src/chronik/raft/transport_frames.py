"""The frames that travel between nodes: their kinds, their limits, the handshake, and what can go wrong.

    frame     length u32 (of what follows), version u8, kind u8, body
    HELLO     `Hello`, the first frame of whoever connects        WELCOME  `Welcome`, the answer
    REFUSED   `Refused`, the other answer, then the connection is closed
    RAFT      one message of `types.py`
    REQUEST   id u64, length of kind u8, kind, payload            RESPONSE id u64, payload
    ERROR     id u64, `Failure`                                   CANCEL   id u64
    PING      empty                                               PONG     empty

What is not here: sockets (`transport_connection.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, TypeAlias

import msgspec

VERSION_MIN = 1
VERSION_MAX = 1

HANDSHAKE_FRAME_BYTES_MAX = 4 * 1024
CONTROL_FRAME_BYTES_MAX = 8 * 1024 * 1024
DATA_FRAME_BYTES_MAX = 128 * 1024 * 1024
ERROR_TEXT_CHARS_MAX = 2000

Channel: TypeAlias = Literal["control", "data"]
Buffer: TypeAlias = bytes | bytearray | memoryview
Payload: TypeAlias = Buffer | Sequence[Buffer]

FRAME_BYTES_MAX: dict[Channel, int] = {"control": CONTROL_FRAME_BYTES_MAX, "data": DATA_FRAME_BYTES_MAX}


class FrameKind(IntEnum):
    """What a frame carries."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    RAFT = 4
    REQUEST = 5
    RESPONSE = 6
    ERROR = 7
    CANCEL = 8
    PING = 9
    PONG = 10


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """Who connects, to whom, and for what. `target` is 0 when any node will do; an empty cluster id is not set yet."""

    version_min: int
    version_max: int
    cluster_id: str
    node_id: int
    directory_id: bytes
    channel: Channel
    target: int = 0
    host: str = ""
    port: int = 0


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The connection stands, in this version."""

    version: int
    cluster_id: str
    node_id: int
    directory_id: bytes


class Refused(msgspec.Struct, array_like=True, frozen=True):
    """The connection is refused; `reason` is for a person to read."""

    reason: str


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """A request failed at the other node."""

    code: str
    message: str
    retriable: bool = False
    detail: bytes = b""


# --- errors -----------------------------------------------------------------------------------------------------------


class PeerError(Exception):
    """A request to another node got no good answer. `sent` is false only if it certainly never reached the node."""

    retriable = True
    sent = False


class PeerUnknown(PeerError):
    """No address is known for that node."""


class PeerUnreachable(PeerError):
    """There was no connection to the node within the time allowed."""


class PeerBusy(PeerError):
    """Too much is waiting for that node already; nothing was sent."""


class PeerTimeout(PeerError):
    """No answer within the time allowed; the node may or may not have acted."""

    sent = True


class PeerDisconnected(PeerError):
    """The connection was lost before the answer; the node may or may not have acted."""

    sent = True


class RequestTooLarge(PeerError):
    """The request is over the frame limit of its channel; nothing was sent."""

    retriable = False


class RemoteError(PeerError):
    """The other node says no. Also raised by handlers, to say no in a typed way."""

    sent = True

    def __init__(self, code: str, message: str, *, retriable: bool = False, detail: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retriable = retriable
        self.detail = detail


class ProtocolViolation(Exception):
    """What arrived is not what a node of this cluster sends; the connection is closed."""


# --- encoding ---------------------------------------------------------------------------------------------------------

HEADER = struct.Struct(">IBB")
LENGTH = struct.Struct(">I")
REQUEST_ID = struct.Struct(">Q")
_HEAD_WITH_ID = struct.Struct(">IBBQ")
_encode = msgspec.msgpack.Encoder().encode


def small_frame(kind: FrameKind, body: bytes = b"", version: int = VERSION_MAX) -> bytes:
    """A frame with a short body, in one piece."""
    return HEADER.pack(len(body) + 2, version, kind) + body


def struct_frame(kind: FrameKind, message: Hello | Welcome | Refused) -> bytes:
    return small_frame(kind, _encode(message))


def frame_with_id(kind: FrameKind, request_id: int, body: bytes = b"") -> bytes:
    return _HEAD_WITH_ID.pack(10 + len(body), VERSION_MAX, kind, request_id) + body


def request_frame(request_id: int, kind: bytes, payload: Payload) -> tuple[list[Buffer], int]:
    """The buffers of a request and the length in its prefix."""
    return _large_frame(FrameKind.REQUEST, request_id, bytes((len(kind),)) + kind, payload)


def response_frame(request_id: int, payload: Payload) -> tuple[list[Buffer], int]:
    """The buffers of a response and the length in its prefix."""
    return _large_frame(FrameKind.RESPONSE, request_id, b"", payload)


def _large_frame(kind: FrameKind, request_id: int, before: bytes, payload: Payload) -> tuple[list[Buffer], int]:
    # The payload is never joined: its buffers go to the socket as they are.
    buffers = [payload] if isinstance(payload, bytes | bytearray | memoryview) else list(payload)
    length = 10 + len(before) + sum(memoryview(buffer).nbytes for buffer in buffers)
    return [_HEAD_WITH_ID.pack(length, VERSION_MAX, kind, request_id) + before, *buffers], length


def failure_frame(request_id: int, error: RemoteError) -> bytes:
    failure = Failure(error.code, error.message[:ERROR_TEXT_CHARS_MAX], error.retriable, error.detail)
    return frame_with_id(FrameKind.ERROR, request_id, _encode(failure))
