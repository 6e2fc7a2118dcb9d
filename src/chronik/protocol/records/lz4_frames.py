"""The header of an lz4 frame: how much it can hold, and the wrong checksum that Kafka once wrote into it.

Before message format 1, Kafka computed the checksum byte of the frame header over the magic number too, which no other
lz4 library accepts (KIP-57). `repair_header` makes such a frame standard, `break_header` makes a standard frame what a
client of that time expects. Frames are read here, not decompressed.
"""

from __future__ import annotations

import struct

_MAGIC = b"\x04\x22\x4d\x18"
_UINT32 = struct.Struct("<I")
_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_UNCOMPRESSED_BLOCK = 0x80000000
_MAX_BLOCKS_WALKED = 4096

_BLOCK_CHECKSUM_FLAG = 0x10
_CONTENT_SIZE_FLAG = 0x08
_CONTENT_CHECKSUM_FLAG = 0x04
_DICTIONARY_FLAG = 0x01

_PRIME_1 = 2654435761
_PRIME_2 = 2246822519
_PRIME_3 = 3266489917
_PRIME_4 = 668265263
_PRIME_5 = 374761393
_MASK = 0xFFFFFFFF
_XXH32_LANES_FROM = 16


def repair_header(frame: bytes | bytearray | memoryview) -> bytes:
    """Put the right header checksum into a frame; one that is right already comes back unchanged."""
    return _with_checksum(frame, checksum_from=4)


def break_header(frame: bytes | bytearray | memoryview) -> bytes:
    """Put the checksum of the old producers into a frame, and drop the content size, which they did not know."""
    if len(frame) >= 15 and frame[4] & _CONTENT_SIZE_FLAG:
        head = bytearray(frame[:6])
        head[4] &= ~_CONTENT_SIZE_FLAG & 0xFF
        frame = bytes(head) + bytes(frame[14:])
    return _with_checksum(frame, checksum_from=0)


def frame_content_bound(data: bytes | bytearray | memoryview) -> int | None:
    """The most that a single frame can decompress to, from its block sizes, or None when it cannot be told cheaply."""
    end = len(data)
    if end < 7 or bytes(data[:4]) != _MAGIC:
        return None
    flags = data[4]
    block_bytes = _BLOCK_BYTES.get((data[5] >> 4) & 0x07)
    if block_bytes is None:
        return None
    position = _header_size(flags)
    extra = 4 if flags & _BLOCK_CHECKSUM_FLAG else 0
    total = 0
    for _ in range(_MAX_BLOCKS_WALKED):
        if end - position < 4:
            return None
        (size,) = _UINT32.unpack_from(data, position)
        if size == 0:
            position += 4 + (4 if flags & _CONTENT_CHECKSUM_FLAG else 0)
            return total if position == end else None
        stored = size & ~_UNCOMPRESSED_BLOCK
        total += stored if size & _UNCOMPRESSED_BLOCK else min(block_bytes, 255 * stored)
        position += 4 + stored + extra
    return None


def xxh32(data: bytes) -> int:
    """The xxHash-32 of a few bytes: frame headers are shorter than the 16 from which the lanes of xxHash begin."""
    if len(data) >= _XXH32_LANES_FROM:
        raise ValueError(f"only inputs shorter than {_XXH32_LANES_FROM} bytes are hashed here, not {len(data)}")
    value = (_PRIME_5 + len(data)) & _MASK
    position = 0
    while len(data) - position >= 4:
        (word,) = _UINT32.unpack_from(data, position)
        value = (_rotate(value + word * _PRIME_3, 17) * _PRIME_4) & _MASK
        position += 4
    for byte in data[position:]:
        value = (_rotate(value + byte * _PRIME_5, 11) * _PRIME_1) & _MASK
    value ^= value >> 15
    value = (value * _PRIME_2) & _MASK
    value ^= value >> 13
    value = (value * _PRIME_3) & _MASK
    return value ^ (value >> 16)


def _with_checksum(frame: bytes | bytearray | memoryview, *, checksum_from: int) -> bytes:
    """The frame with its header checksum computed over the header from byte `checksum_from`."""
    if len(frame) < 7 or bytes(frame[:4]) != _MAGIC:
        return bytes(frame)
    last = _header_size(frame[4]) - 1
    hashed = bytes(frame[checksum_from:last])
    if len(frame) <= last or len(hashed) >= _XXH32_LANES_FROM:
        return bytes(frame)
    fixed = bytearray(frame)
    fixed[last] = (xxh32(hashed) >> 8) & 0xFF
    return bytes(fixed)


def _header_size(flags: int) -> int:
    return 7 + (8 if flags & _CONTENT_SIZE_FLAG else 0) + (4 if flags & _DICTIONARY_FLAG else 0)


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return ((value << bits) | (value >> (32 - bits))) & _MASK
