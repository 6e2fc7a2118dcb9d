"""Message sets of magic 0 and 1, converted both ways and compared with two other implementations."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import (
    Compression,
    Record,
    batch_magic,
    build_batch,
    compress,
    parse_batches,
    read_records,
)
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.protocol.records.legacy import downconvert, upconvert
from chronik.protocol.records.message_sets import read_message_set, write_message, write_message_set
from harness.record_oracles import (
    OLD_CODECS,
    Row,
    kafka_python_batch,
    kafka_python_message_set,
    read_with_aiokafka,
    read_with_kafka_python,
    record_lists,
    rows,
)

magics = st.sampled_from([0, 1])
codecs = st.sampled_from(OLD_CODECS)

# Written by kafka-python 3.0: two uncompressed messages, the second without a key.
GOLDEN_V0 = bytes.fromhex(
    "0000000000000000000000101fecd70a0000000000016b00000001760000000000000001000000106aaed3ba0000ffffffff000000023132"
)
GOLDEN_V1 = bytes.fromhex(
    "0000000000000000000000187c8bc4920100000001937ed97200000000016b0000000176"
    "000000000000000100000018789e6c600100000001937ed97205ffffffff000000023132"
)


def expected_rows(records: list[Record], magic: int) -> list[Row]:
    """What is left of records in an old format: no headers, and no timestamps in magic 0."""
    return [(r.offset, r.timestamp if magic else -1, r.key, r.value, []) for r in records]


def old_rows(found: list[Row]) -> list[Row]:
    return [(offset, -1 if ts is None else ts, key, value, hs) for offset, ts, key, value, hs in found]


def wrapper(magic: int, inner: bytes | bytearray, codec: Compression, *, offset: int = 0, attributes: int = 0) -> bytes:
    out = bytearray()
    write_message(out, magic, offset, 1000, None, compress(codec, inner), int(codec) | attributes)
    return bytes(out)


def refusal(message_set: bytes | bytearray) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        upconvert(message_set)
    assert caught.value.message
    return caught.value.code


@settings(max_examples=100, deadline=None)
@given(record_lists(with_headers=False), magics, codecs)
def test_old_message_sets_of_kafka_python_become_one_batch(
    records: list[Record], magic: int, codec: Compression
) -> None:
    batch = upconvert(kafka_python_message_set(records, magic, codec))
    (info,) = parse_batches(batch)
    assert info.compression is codec
    assert info.record_count == len(records)
    assert rows(read_records(batch)) == expected_rows(records, magic)


@settings(max_examples=100, deadline=None)
@given(record_lists(), magics, codecs, st.integers(0, 2**50))
def test_batches_become_message_sets_that_old_readers_understand(
    records: list[Record], magic: int, codec: Compression, base: int
) -> None:
    moved = [Record(base + r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]
    message_set = downconvert(build_batch(moved, base_offset=base, compression=codec), magic)
    assert batch_magic(message_set) == magic
    expected = expected_rows(moved, magic)
    assert old_rows(read_with_kafka_python(message_set)) == expected
    if (magic, codec) != (0, Compression.LZ4):  # which aiokafka does not read
        assert old_rows(read_with_aiokafka(message_set)) == expected
    assert rows(read_message_set(message_set)) == expected


@settings(max_examples=50, deadline=None)
@given(record_lists(with_headers=False), magics)
def test_uncompressed_message_sets_are_byte_for_byte_those_of_kafka_python(records: list[Record], magic: int) -> None:
    ours = downconvert(kafka_python_batch(records, Compression.NONE), magic)
    assert ours == kafka_python_message_set(records, magic, Compression.NONE)


def test_the_golden_message_sets_are_read() -> None:
    assert rows(read_records(upconvert(GOLDEN_V0))) == [(0, -1, b"k", b"v", []), (1, -1, None, b"12", [])]
    assert rows(read_records(upconvert(GOLDEN_V1))) == [
        (0, 1733000000000, b"k", b"v", []),
        (1, 1733000000005, None, b"12", []),
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_gaps_that_compaction_left_survive_down_conversion(magic: int, codec: Compression) -> None:
    records = [Record(offset, 1000, b"%d" % offset, b"v") for offset in (11, 14, 19)]
    batch = build_batch(records, base_offset=10, last_offset_delta=12, compression=codec)
    assert [row[0] for row in read_with_kafka_python(downconvert(batch, magic))] == [11, 14, 19]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_log_append_time_is_told_to_readers_of_magic_1(codec: Compression) -> None:
    batch = build_batch([Record(0, 5, b"a", b"1"), Record(1, 9, b"b", b"2")], log_append_time=777, compression=codec)
    assert [row[1] for row in read_with_kafka_python(downconvert(batch, 1))] == [777, 777]


def test_a_wrapper_of_type_log_append_time_overrides_the_times_of_its_messages() -> None:
    inner = bytearray()
    for offset in (0, 1):
        write_message(inner, 1, offset, 5 + offset, b"k", b"v", 0)
    stamped = wrapper(1, inner, Compression.GZIP, offset=11, attributes=0x08)
    assert [(r.offset, r.timestamp) for r in read_message_set(stamped)] == [(10, 1000), (11, 1000)]
    assert [row[:2] for row in read_with_kafka_python(stamped)] == [(10, 1000), (11, 1000)]


def test_a_wrapper_of_magic_1_carries_the_last_offset_and_relative_ones_inside() -> None:
    batch = build_batch(
        [Record(100 + i, i, b"k", b"v") for i in range(3)], base_offset=100, compression=Compression.GZIP
    )
    message_set = downconvert(batch, 1)
    assert struct.unpack_from(">q", message_set)[0] == 102
    inner = zlib.decompress(message_set[34:], 31)
    assert struct.unpack_from(">q", inner)[0] == 0


def test_inner_offsets_of_producers_do_not_matter_when_offsets_are_assigned() -> None:
    inner = bytearray()
    for _ in range(3):
        write_message(inner, 0, 0, -1, b"k", b"v", 0)
    assert [r.offset for r in read_records(upconvert(wrapper(0, inner, Compression.GZIP)))] == [0, 1, 2]


def test_several_wrappers_and_plain_messages_become_one_batch_with_the_codec_of_the_wrappers() -> None:
    inner = bytearray()
    write_message(inner, 1, 0, 7, b"in", b"1", 0)
    plain = bytearray()
    write_message(plain, 1, 0, 8, b"out", b"2", 0)
    batch = upconvert(wrapper(1, inner, Compression.SNAPPY) + plain + wrapper(1, inner, Compression.SNAPPY))
    (info,) = parse_batches(batch)
    assert info.compression is Compression.SNAPPY
    assert rows(read_records(batch)) == [(0, 7, b"in", b"1", []), (1, 8, b"out", b"2", []), (2, 7, b"in", b"1", [])]


def test_control_batches_and_what_lies_before_the_fetch_offset_are_left_out() -> None:
    marker = build_end_transaction_marker(
        committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5, base_offset=3
    )
    data = build_batch([Record(i, 1, b"k", b"%d" % i) for i in range(3)]) + marker
    data += build_batch([Record(4, 1, b"k", b"4")], base_offset=4)
    assert [row[0] for row in read_with_kafka_python(downconvert(data, 1, first_offset=1))] == [1, 2, 4]
    assert downconvert(marker, 0) == b""


def test_zstd_is_not_down_converted_and_the_reader_is_told_to_upgrade() -> None:
    with pytest.raises(KafkaError) as caught:
        downconvert(build_batch([Record(0, 1, b"k", b"v")], compression=Compression.ZSTD), 1)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert "upgrade" in caught.value.message


def test_only_magic_0_and_1_are_asked_for() -> None:
    with pytest.raises(ValueError, match="magic"):
        downconvert(b"", 2)


def test_old_lz4_frames_have_the_checksum_of_their_time_and_both_kinds_are_read() -> None:
    records = [Record(0, -1, b"k", b"v" * 500)]
    out = bytearray()
    write_message_set(out, 0, records, compression=Compression.LZ4, log_append_time=False)
    assert rows(read_message_set(out)) == rows(records)
    inner = bytearray()
    write_message(inner, 0, 0, -1, b"k", b"v" * 500, 0)
    standard = wrapper(0, inner, Compression.LZ4)
    assert bytes(out) != standard
    assert rows(read_message_set(standard)) == rows(records)


def test_an_empty_set_and_an_empty_wrapper_are_refused() -> None:
    assert refusal(b"") is ErrorCode.INVALID_RECORD
    assert refusal(wrapper(1, b"", Compression.GZIP)) is ErrorCode.INVALID_RECORD


def test_a_wrapper_inside_a_wrapper_is_refused() -> None:
    plain = bytearray()
    write_message(plain, 1, 0, 7, b"k", b"v", 0)
    assert refusal(wrapper(1, wrapper(1, plain, Compression.GZIP), Compression.GZIP)) is ErrorCode.INVALID_RECORD


def test_a_wrapper_with_messages_of_another_magic_is_refused() -> None:
    plain = bytearray()
    write_message(plain, 0, 0, 7, b"k", b"v", 0)
    assert refusal(wrapper(1, plain, Compression.GZIP)) is ErrorCode.INVALID_RECORD


def test_a_set_of_two_magics_is_refused() -> None:
    both = bytearray()
    write_message(both, 0, 0, 7, b"k", b"v", 0)
    write_message(both, 1, 1, 7, b"k", b"v", 0)
    assert refusal(both) is ErrorCode.INVALID_RECORD
    assert refusal(GOLDEN_V1 + bytes(build_batch([Record(0, 1, None, b"x")]))) is ErrorCode.INVALID_RECORD


def test_a_wrapper_without_a_value_is_refused() -> None:
    empty = bytearray()
    write_message(empty, 1, 0, 7, None, None, int(Compression.GZIP))
    assert refusal(empty) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("bits", [4, 5, 7])
def test_codecs_that_the_old_formats_do_not_have_are_refused(bits: int) -> None:
    message = bytearray()
    write_message(message, 1, 0, 7, None, b"x", bits)
    assert refusal(message) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_producer_may_not_claim_log_append_time() -> None:
    message = bytearray()
    write_message(message, 1, 0, 7, None, b"x", 0x08)
    assert refusal(message) is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("golden", [GOLDEN_V0, GOLDEN_V1])
def test_message_sets_torn_at_any_byte_are_corrupt(golden: bytes) -> None:
    first = 12 + struct.unpack_from(">i", golden, 8)[0]
    for cut in range(1, len(golden)):
        if cut != first:
            assert refusal(golden[:cut]) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("golden", [GOLDEN_V0, GOLDEN_V1])
def test_any_changed_byte_of_a_message_is_detected(golden: bytes) -> None:
    first = 12 + struct.unpack_from(">i", golden, 8)[0]
    for position in range(12, first):
        changed = bytearray(golden)
        changed[position] ^= 0x40
        assert refusal(changed) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("lie", [-2, 3, 2**31 - 1])
def test_lying_key_lengths_are_refused_although_the_checksum_is_right(lie: int) -> None:
    changed = bytearray(GOLDEN_V0[:28])
    struct.pack_into(">i", changed, 18, lie)
    struct.pack_into(">I", changed, 12, zlib.crc32(changed[16:]))
    assert refusal(changed) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [codec for codec in OLD_CODECS if codec])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_bomb_in_a_wrapper_is_refused_and_so_are_many_small_ones_together(codec: Compression, magic: int) -> None:
    inner = bytearray()
    write_message(inner, magic, 0, 7, None, bytes(300_000), 0)
    one = wrapper(magic, inner, codec)
    assert read_message_set(one, limit=400_000)
    with pytest.raises(KafkaError):
        read_message_set(one, limit=200_000)
    with pytest.raises(KafkaError):
        read_message_set(one * 2, limit=400_000)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), magics, codecs)
def test_mutated_message_sets_raise_nothing_but_kafka_errors(seed: int, magic: int, codec: Compression) -> None:
    dice = random.Random(seed)
    inner = bytearray()
    for offset in range(dice.randint(1, 4)):
        write_message(inner, magic, offset, 7, dice.randbytes(3), dice.randbytes(30), 0)
    if codec and dice.random() < 0.5:  # mutate inside the wrapper, whose checksum is then right
        inner[dice.randrange(len(inner))] = dice.randrange(256)
    data = bytearray(wrapper(magic, inner, codec) if codec else inner)
    for _ in range(dice.randint(0, 2)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    try:
        upconvert(data)
    except KafkaError as error:
        assert error.code is not ErrorCode.NONE
