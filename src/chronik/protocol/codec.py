"""Encoding and decoding of Kafka messages and frames; the one module the rest of the project calls for the wire.

Codecs are compiled per (message, version) on first use and kept. What is inside a `records` field is opaque here.
"""

from struct import Struct as StructFormat
from struct import error as struct_error
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct

from chronik.protocol.api import APIS, ApiKey
from chronik.protocol.decoder import build_decoder
from chronik.protocol.encoder import JOIN_BELOW_BYTES, Encoder, build_encoder
from chronik.protocol.schema import UnsupportedVersion, plan
from chronik.protocol.varint import read_unknown_tags
from chronik.protocol.wire import Buffer, DecodeError, EncodeError, Message

__all__ = [
    "Buffer",
    "DecodeError",
    "EncodeError",
    "Message",
    "RequestHeader",
    "UnsupportedVersion",
    "decode",
    "decode_request_header",
    "decode_response",
    "decoder",
    "encode",
    "encode_request",
    "encode_response",
    "encoder",
]

M = TypeVar("M", bound=Message)
M_co = TypeVar("M_co", bound=Message, covariant=True)

_HEADER = StructFormat(">hhih")
_LENGTH_AND_CORRELATION = StructFormat(">ii").pack
_LENGTH_CORRELATION_TAGS = StructFormat(">iib").pack
_NEVER = (1, 0)
_REQUEST_START = StructFormat(">ihhih").pack

_FLEXIBLE_VERSIONS = {api.key.value: (api.flexible_from, api.max_version) for api in APIS.values()}

_encoders: dict[tuple[type[Message], int], Encoder] = {}
_decoders: dict[tuple[type[Message], int], Any] = {}
_response_encoders: dict[tuple[type[Message], int], tuple[Encoder, bool]] = {}


class DecodeFunction(Protocol[M_co]):
    """Decodes from `pos`; returns the message and the position after it, which is at most `end`."""

    def __call__(self, buf: memoryview, pos: int, end: int, /) -> tuple[M_co, int]: ...


class RequestHeader(Struct, gc=False):
    """What comes before every request. `body` starts where the request itself does."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview


def encoder(cls: type[Message], version: int) -> Encoder:
    """The function that appends a `cls` at `version` to a list of buffers. `UnsupportedVersion` if there is none."""
    found = _encoders.get((cls, version))
    if found is None:
        found = _encoders[cls, version] = build_encoder(plan(cls, version))
    return found


def decoder(cls: type[M], version: int) -> DecodeFunction[M]:
    """The function that decodes a `cls` at `version`. `UnsupportedVersion` if there is none."""
    found = _decoders.get((cls, version))
    if found is None:
        found = _decoders[cls, version] = build_decoder(plan(cls, version))
    return cast(DecodeFunction[M], found)


def encode(message: Message, version: int) -> bytes:
    """`message` alone, without header or length."""
    chunks: list[Buffer] = []
    encoder(type(message), version)(message, chunks)
    return b"".join(chunks)


def decode(cls: type[M], version: int, buf: Buffer, *, allow_trailing: bool = False) -> M:
    """The `cls` in `buf`. Bytes after it are an error unless `allow_trailing`.

    Trailing bytes are what a newer version of a self-versioned format (a consumer's subscription, say) has at its end.
    """
    view = buf if isinstance(buf, memoryview) else memoryview(buf)
    end = len(view)
    message, pos = decoder(cls, version)(view, 0, end)
    if pos != end and not allow_trailing:
        raise DecodeError(f"{cls.__name__} v{version} is followed by {end - pos} bytes that do not belong to it")
    return message


def decode_request_header(frame: memoryview) -> RequestHeader:
    """The header of a request frame (without its length prefix).

    Of an API or a version this project does not know, only the part that never changed is read: enough to answer with
    the right correlation id.
    """
    try:
        api_key, api_version, correlation_id, size = _HEADER.unpack_from(frame)
        pos = _HEADER.size
        client_id = None
        if size >= 0:
            pos += size
            if pos > len(frame):
                raise DecodeError(f"request header says a client id of {size} bytes, the frame ends before that")
            client_id = frame[_HEADER.size : pos].tobytes().decode()
        flexible_from, newest = _FLEXIBLE_VERSIONS.get(api_key, _NEVER)
        if flexible_from <= api_version <= newest:
            if frame[pos]:
                _, pos = read_unknown_tags(frame, pos, len(frame))
            else:
                pos += 1
    except (struct_error, IndexError) as cause:
        raise DecodeError(f"request header ends early: the frame has {len(frame)} bytes") from cause
    except UnicodeDecodeError as cause:
        raise DecodeError("client id of the request header is not UTF-8") from cause
    return RequestHeader(api_key, api_version, correlation_id, client_id, frame[pos:])


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """A whole request frame, length prefix first."""
    key = _api_key(type(message))
    frame: list[Buffer] = []
    encoder(type(message), version)(message, frame)
    client = b"" if client_id is None else client_id.encode()
    tags = b"\0" if APIS[key].is_flexible(version) else b""
    size = _HEADER.size + len(client) + len(tags) + sum(map(len, frame))
    start = _REQUEST_START(size, key, version, correlation_id, -1 if client_id is None else len(client))
    return _with_start(start + client + tags, frame)


def encode_response(message: Message, version: int, correlation_id: int) -> list[Buffer]:
    """A whole response frame, length prefix first."""
    cls = type(message)
    found = _response_encoders.get((cls, version))
    if found is None:
        found = encoder(cls, version), _has_tagged_response_header(_api_key(cls), version)
        _response_encoders[cls, version] = found
    encode_body, tagged = found
    frame: list[Buffer] = []
    encode_body(message, frame)
    size = len(frame[0]) if len(frame) == 1 else sum(map(len, frame))
    if tagged:
        return _with_start(_LENGTH_CORRELATION_TAGS(size + 5, correlation_id, 0), frame)
    return _with_start(_LENGTH_AND_CORRELATION(size + 4, correlation_id), frame)


def decode_response(cls: type[M], version: int, frame: memoryview) -> tuple[int, M]:
    """Correlation id and message of a response frame (without its length prefix)."""
    if len(frame) < 4:
        raise DecodeError(f"a response of {len(frame)} bytes has no correlation id")
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    pos = 4
    end = len(frame)
    if _has_tagged_response_header(_api_key(cls), version):
        try:
            _, pos = read_unknown_tags(frame, pos, end)
        except IndexError as cause:
            raise DecodeError("response header ends early") from cause
    message, pos = decoder(cls, version)(frame, pos, end)
    if pos != end:
        raise DecodeError(f"{cls.__name__} v{version} is followed by {end - pos} bytes that do not belong to it")
    return correlation_id, message


def _api_key(cls: type[Message]) -> ApiKey:
    return cast(ApiKey, cls.API)  # type: ignore[attr-defined]


def _has_tagged_response_header(key: int, version: int) -> bool:
    """ApiVersions answers with the first header for ever: the client does not know yet which versions are spoken."""
    return key != ApiKey.API_VERSIONS and version >= APIS[key].flexible_from


def _with_start(start: bytes, frame: list[Buffer]) -> list[Buffer]:
    """Put `start` before `frame`, in one buffer with what follows if that is small."""
    body = frame[0]
    if len(body) < JOIN_BELOW_BYTES:
        frame[0] = start + body
    else:
        frame.insert(0, start)
    return frame
