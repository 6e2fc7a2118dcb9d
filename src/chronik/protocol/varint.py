"""Unsigned varints and the tagged-field section, as flexible versions have them. Called by generated code."""

from chronik.protocol.wire import Buffer, DecodeError

MAX_TAGS_PER_STRUCT = 1 << 16
"""More tagged fields than this in one struct are refused: they can only be an attack."""


def uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    """The varint at `pos` and the position after it. At most five bytes, at most 2³¹ - 1."""
    value = buf[pos]
    if value < 0x80:
        return value, pos + 1
    byte = buf[pos + 1]
    value = value & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, pos + 2
    byte = buf[pos + 2]
    value |= (byte & 0x7F) << 14
    if byte < 0x80:
        return value, pos + 3
    byte = buf[pos + 3]
    value |= (byte & 0x7F) << 21
    if byte < 0x80:
        return value, pos + 4
    byte = buf[pos + 4]
    value |= byte << 28
    pos += 5
    if byte > 0x7F:
        raise DecodeError("varint is longer than five bytes")
    if value > 0x7FFFFFFF:
        raise DecodeError(f"varint {value} is beyond 2147483647")
    return value, pos


def encode_uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_tag(buf: memoryview, pos: int, end: int) -> tuple[int, int, int]:
    """Tag of one tagged field, where its value stops, and where it starts; all of it lies before `end`."""
    tag, pos = uvarint(buf, pos)
    size, pos = uvarint(buf, pos)
    if size > end - pos:
        raise DecodeError(f"tagged field {tag} says {size} bytes, {max(end - pos, 0)} are left")
    return tag, pos + size, pos


def read_tag_count(buf: memoryview, pos: int, end: int) -> tuple[int, int]:
    """How many tagged fields follow, and where the first one starts. Each takes two bytes or more."""
    count, pos = uvarint(buf, pos)
    if count * 2 > end - pos or count > MAX_TAGS_PER_STRUCT:
        raise DecodeError(f"{count} tagged fields cannot be in {max(end - pos, 0)} bytes")
    return count, pos


def read_unknown_tags(buf: memoryview, pos: int, end: int) -> tuple[dict[int, bytes], int]:
    """The tagged-field section of a struct that knows no tags, and the position after it."""
    count, pos = read_tag_count(buf, pos, end)
    tags = {}
    for _ in range(count):
        tag, stop, pos = read_tag(buf, pos, end)
        tags[tag] = bytes(buf[pos:stop])
        pos = stop
    return tags, pos


def write_tags(known: dict[int, bytes], unknown: dict[int, bytes] | None, out: list[Buffer]) -> None:
    """The tagged-field section: count, then each field in the order of its tag."""
    tags = known if unknown is None else {**unknown, **known}
    out.append(encode_uvarint(len(tags)))
    for tag in sorted(tags):
        value = tags[tag]
        out.append(encode_uvarint(tag) + encode_uvarint(len(value)))
        out.append(value)
