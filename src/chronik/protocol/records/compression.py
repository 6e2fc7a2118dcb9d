"""The four codecs of Kafka's record formats, with a hard bound on what decompression may produce.

Compressed bytes come from strangers: a few of them may claim to be gigabytes. `decompress` never makes more than
`limit` bytes, nor more than MAX_RATIO times its input once the output is larger than RATIO_FREE_BYTES, and it allocates
step by step, so that a lie costs little. Data that is refused raises KafkaError. The lz4 frames of the oldest message
format are in `lz4_frames`.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable
from types import ModuleType

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records.lz4_frames import frame_content_bound

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""The most that one batch may decompress to, whatever its size."""

MAX_RATIO = 200
"""The most output per input byte, for output larger than RATIO_FREE_BYTES."""

RATIO_FREE_BYTES = 16 * 1024 * 1024
"""Output up to here may have any ratio: a megabyte of one letter is an honest message."""

MAX_GZIP_MEMBERS = 1024
"""A gzip stream may be several streams in a row; each costs the set-up of a decompressor."""

_FIRST_BUFFER_BYTES = 64 * 1024
_BUFFER_GROWTH = 4

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_HEADER_SIZE = len(_XERIAL_HEADER)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = struct.Struct(">i")

_GZIP_WBITS = 31  # 15 window bits, gzip header and trailer
_GZIP_LEVEL = 6
_GZIP_PIECE_BYTES = 64 * 1024
_ZSTD_LEVEL = 3
_LZ4_LEVEL = 1

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Compression(enum.IntEnum):
    """Codec of a batch, by the number that its attributes carry."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of_attributes(cls, attributes: int) -> Compression:
        try:
            return _BY_BITS[attributes & 0x07]
        except IndexError:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"compression type {attributes & 0x07} does not exist; use gzip, snappy, lz4, zstd or none",
            ) from None

    @classmethod
    def named(cls, name: str) -> Compression:
        """The codec of a name such as `compression.type` takes; `uncompressed` is a synonym of `none`."""
        wanted = "NONE" if name == "uncompressed" else name.upper()
        if wanted not in cls.__members__:
            raise ValueError(f"no codec is named {name!r}; use gzip, snappy, lz4, zstd or none")
        return cls[wanted]

    @property
    def label(self) -> str:
        return self.name.lower()


_BY_BITS = tuple(Compression)


def compress(codec: Compression, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """Compress as Kafka's own producers do: xerial framing for snappy, independent blocks for lz4.

    The library for lz4 has one level, whatever it is asked for; snappy has none.
    """
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        packer = zlib.compressobj(_GZIP_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
        return packer.compress(data) + packer.flush()
    cramjam = _cramjam()
    if codec is Compression.SNAPPY:
        return _compress_xerial(cramjam, memoryview(data))
    if codec is Compression.LZ4:
        lz4 = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
        lz4.compress(bytes(data))
        return bytes(lz4.finish())
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def decompress(
    codec: Compression, data: bytes | bytearray | memoryview, limit: int = MAX_DECOMPRESSED_BYTES
) -> bytes | memoryview:
    """Decompress the records of one batch, or refuse them.

    Raises KafkaError: CORRUPT_MESSAGE when the bytes are not what the codec makes, INVALID_RECORD when they would
    become more than `limit` bytes or more than the ratio allows.
    """
    allowed = min(limit, max(RATIO_FREE_BYTES, MAX_RATIO * len(data)))
    if codec is Compression.NONE:
        if len(data) > limit:
            raise too_large(codec, len(data), limit)
        return bytes(data)
    if codec is Compression.GZIP:
        return _decompress_gzip(data, allowed)
    if codec is Compression.SNAPPY:
        return _decompress_snappy(memoryview(data), allowed)
    if codec is Compression.LZ4:
        return _decompress_growing(codec, _cramjam().lz4.decompress_into, data, allowed, frame_content_bound(data))
    expected = _zstd_content_size(data)
    if expected is not None and expected > allowed:
        raise too_large(codec, len(data), allowed)
    return _decompress_growing(codec, _cramjam().zstd.decompress_into, data, allowed, expected)


def too_large(codec: Compression, compressed_bytes: int, allowed: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_RECORD,
        f"{compressed_bytes} bytes of {codec.label} would decompress to more than the {allowed} bytes allowed; "
        "send smaller batches",
    )


def _corrupt(codec: Compression, reason: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the records are not valid {codec.label} data: {reason}")


def _cramjam() -> ModuleType:
    """Load the codecs on first use: a broker that only moves batches never needs them."""
    import cramjam

    return cramjam


def _decompress_growing(
    codec: Compression,
    decompress_into: Callable[[bytes | bytearray | memoryview, bytearray], int],
    data: bytes | bytearray | memoryview,
    allowed: int,
    expected: int | None,
) -> memoryview:
    """Decompress into a buffer that grows up to `allowed`; the codec cannot write beyond the buffer it is given.

    `expected` is what the data says of its own size. The codec does not say whether it failed for lack of room or
    because of the data, so every failure is tried again with more room while there is any. Data broken at its
    beginning fails at once each time.
    """
    failure = _cramjam().DecompressionError
    size = min(max(_FIRST_BUFFER_BYTES, 4 * len(data)) if expected is None else expected, allowed)
    while True:
        room = bytearray(size)
        try:
            made = decompress_into(data, room)
        except failure as error:
            if size < allowed:
                size = min(max(size, _FIRST_BUFFER_BYTES) * _BUFFER_GROWTH, allowed)
                continue
            if "whole buffer" in str(error):
                raise too_large(codec, len(data), allowed) from error
            raise _corrupt(codec, error) from error
        return memoryview(room)[:made]


def _decompress_gzip(data: bytes | bytearray | memoryview, allowed: int) -> bytes:
    """Inflate all members of a gzip stream, piece by piece so that no step makes or copies much."""
    view = memoryview(data)
    end = len(view)
    parts: list[bytes] = []
    total = 0
    position = 0
    for _ in range(MAX_GZIP_MEMBERS):
        member = zlib.decompressobj(_GZIP_WBITS)
        while not member.eof:
            if position == end:
                raise _corrupt(Compression.GZIP, "the stream ends too early")
            piece = view[position : position + _GZIP_PIECE_BYTES]
            try:
                part = member.decompress(piece, allowed - total + 1)
            except zlib.error as error:
                raise _corrupt(Compression.GZIP, error) from error
            total += len(part)
            if total > allowed:
                raise too_large(Compression.GZIP, end, allowed)
            parts.append(part)
            position += len(piece) - len(member.unused_data)
        if position == end:
            return b"".join(parts)
    raise _corrupt(Compression.GZIP, f"it has more than {MAX_GZIP_MEMBERS} members")


def _decompress_snappy(data: memoryview, allowed: int) -> memoryview:
    """Raw snappy (librdkafka, Go) or the block framing of the xerial library (Java)."""
    if not len(data):
        raise _corrupt(Compression.SNAPPY, "there are no bytes")
    if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
        blocks = _xerial_blocks(data)
    else:
        blocks = [data]
    cramjam = _cramjam()
    snappy = cramjam.snappy
    try:
        sizes = [snappy.decompress_raw_len(block) for block in blocks]
    except cramjam.DecompressionError as error:
        raise _corrupt(Compression.SNAPPY, error) from error
    total = sum(sizes)
    if total > allowed:
        raise too_large(Compression.SNAPPY, len(data), allowed)
    room = memoryview(bytearray(total))
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        if not size:
            continue
        try:
            made = snappy.decompress_raw_into(block, room[position : position + size])
        except cramjam.DecompressionError as error:
            raise _corrupt(Compression.SNAPPY, error) from error
        if made != size:
            raise _corrupt(Compression.SNAPPY, f"a block of {size} bytes became {made}")
        position += size
    return room


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    # The version numbers after the magic are not checked: some producers write them in the wrong byte order.
    position = _XERIAL_HEADER_SIZE
    end = len(data)
    if end < position:
        raise _corrupt(Compression.SNAPPY, "the xerial header is cut short")
    blocks: list[memoryview] = []
    while position < end:
        if end - position < 4:
            raise _corrupt(Compression.SNAPPY, "a xerial block length is cut short")
        (size,) = _INT32.unpack_from(data, position)
        position += 4
        if size < 0 or size > end - position:
            raise _corrupt(Compression.SNAPPY, f"a xerial block claims {size} bytes, {end - position} are left")
        if size:
            blocks.append(data[position : position + size])
        position += size
    return blocks


def _compress_xerial(cramjam: ModuleType, data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _zstd_content_size(data: bytes | bytearray | memoryview) -> int | None:
    """What the first frame header says its content measures, or None when it does not say."""
    if len(data) < 6 or bytes(data[:4]) != _ZSTD_MAGIC:
        return None
    descriptor = data[4]
    single_segment = bool(descriptor & 0x20)
    size_flag = descriptor >> 6
    if size_flag == 0 and not single_segment:
        return None
    width = (1, 2, 4, 8)[size_flag]
    start = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 0x03]
    field = bytes(data[start : start + width])
    if len(field) < width:
        return None
    size = int.from_bytes(field, "little")
    return size + 256 if width == 2 else size
