"""Unsigned varints at every length they can have."""

import pytest

from chronik.protocol.varint import encode_uvarint, uvarint

BOUNDARIES = [
    0,
    1,
    *(edge + step for bits in (7, 14, 21, 28) for edge in [1 << bits] for step in (-1, 0, 1)),
    (1 << 31) - 1,
]


@pytest.mark.parametrize("value", BOUNDARIES)
def test_a_varint_has_seven_bits_per_byte_lowest_first(value: int) -> None:
    data = encode_uvarint(value)
    assert len(data) == max(1, -(-value.bit_length() // 7))
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data)) == value
    assert [byte > 0x7F for byte in data] == [True] * (len(data) - 1) + [False]


@pytest.mark.parametrize("value", BOUNDARIES)
def test_a_varint_is_read_back_with_the_position_after_it(value: int) -> None:
    data = b"\xaa" + encode_uvarint(value) + b"\xff"
    assert uvarint(memoryview(data), 1) == (value, len(data) - 1)
