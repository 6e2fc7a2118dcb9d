"""Zigzag varints, the integers inside records of magic 2: small numbers in few bytes, whatever their sign."""

from __future__ import annotations

from chronik.protocol.errors import ErrorCode, KafkaError

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

_MAX_SHIFT = 63  # ten bytes hold any 64-bit number


def wrap_int64(value: int) -> int:
    """The value as 64-bit arithmetic leaves it, which wraps around: what other implementations get for absurd sums."""
    return ((value - INT64_MIN) & 0xFFFF_FFFF_FFFF_FFFF) + INT64_MIN


def append_varint(out: bytearray, value: int) -> None:
    """Append `value` as a zigzag varint of up to 64 bits; beyond them it wraps around."""
    if not INT64_MIN <= value <= INT64_MAX:
        value = wrap_int64(value)
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def encode_varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


SMALL_VARINTS = tuple(encode_varint(value) for value in range(8192))
"""The varints of lengths and deltas as they mostly are: a lookup is several times faster than encoding."""


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint: its value, and the position after it. IndexError where `data` ends too early."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    second = data[position]
    if second < 0x80:
        return ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > _MAX_SHIFT:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the varint before byte {position} is longer than ten bytes")
