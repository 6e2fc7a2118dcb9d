"""Records in and out of batches, against two other implementations."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Compression, Record, build_batch, parse_batches, read_records
from chronik.protocol.records.varint import SMALL_VARINTS, encode_varint, read_varint
from harness.record_oracles import (
    ALL_CODECS,
    kafka_python_batch,
    read_with_aiokafka,
    read_with_kafka_python,
    record_lists,
    rows,
)

codecs = st.sampled_from(ALL_CODECS)


@settings(max_examples=100, deadline=None)
@given(record_lists(), codecs)
def test_our_batches_are_read_alike_by_kafka_python_aiokafka_and_us(records: list[Record], codec: Compression) -> None:
    batch = build_batch(records, compression=codec)
    parse_batches(batch)
    expected = rows(records)
    assert rows(read_records(batch)) == expected
    assert read_with_kafka_python(batch) == expected
    assert read_with_aiokafka(batch) == expected


@settings(max_examples=100, deadline=None)
@given(record_lists(), codecs)
def test_batches_of_kafka_python_are_read_as_they_were_meant(records: list[Record], codec: Compression) -> None:
    batch = kafka_python_batch(records, codec)
    (info,) = parse_batches(batch)
    assert info.record_count == len(records)
    assert info.max_timestamp == max(r.timestamp for r in records)
    assert rows(read_records(batch)) == rows(records)


@settings(max_examples=60, deadline=None)
@given(record_lists())
def test_uncompressed_batches_are_byte_for_byte_those_of_kafka_python(records: list[Record]) -> None:
    assert build_batch(records, leader_epoch=0) == kafka_python_batch(records, Compression.NONE)


@settings(max_examples=60, deadline=None)
@given(record_lists(), st.integers(0, 2**55), codecs)
def test_absolute_offsets_follow_the_base_offset(records: list[Record], base: int, codec: Compression) -> None:
    moved = [Record(base + r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]
    batch = build_batch(moved, base_offset=base, compression=codec)
    assert rows(read_records(batch)) == rows(moved)
    assert read_with_kafka_python(batch) == rows(moved)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_a_large_batch_survives_every_codec(codec: Compression) -> None:
    records = [Record(i, 10**12 + i, b"key-%d" % i, b"value " * (i % 200)) for i in range(2000)]
    batch = build_batch(records, compression=codec)
    assert rows(read_records(batch)) == rows(records) == read_with_kafka_python(batch)


def test_log_append_time_overrides_the_time_of_every_record() -> None:
    records = [Record(0, 5, b"a", b"1"), Record(1, 9, b"b", b"2")]
    batch = build_batch(records, log_append_time=123456)
    (info,) = parse_batches(batch)
    assert info.log_append_time and info.max_timestamp == 123456
    assert [r.timestamp for r in read_records(batch)] == [123456, 123456]
    assert [row[1] for row in read_with_kafka_python(batch)] == [123456, 123456]


def test_an_empty_batch_keeps_its_offset_range_and_producer() -> None:
    batch = build_batch([], base_offset=40, last_offset_delta=9, producer_id=5, producer_epoch=1, base_sequence=3)
    (info,) = parse_batches(batch)
    assert (info.base_offset, info.last_offset, info.record_count, info.producer_id) == (40, 49, 0, 5)
    assert read_records(batch) == []


def test_a_delete_horizon_is_kept_and_the_timestamps_of_the_records_too() -> None:
    batch = build_batch([Record(0, 1000, b"k", None)], delete_horizon_ms=99_000)
    (info,) = parse_batches(batch)
    assert info.delete_horizon_ms == 99_000
    assert [r.timestamp for r in read_records(batch)] == [1000]


@pytest.mark.parametrize("offsets", [[0, 0], [1, 0], [5, 4, 6]])
def test_records_whose_offsets_do_not_increase_are_a_mistake_of_the_caller(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offset"):
        build_batch([Record(offset, 0, None, b"") for offset in offsets])


def test_a_record_beyond_the_last_offset_delta_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="last offset delta"):
        build_batch([Record(3, 0, None, b"")], last_offset_delta=2)


def test_an_empty_batch_without_a_range_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="last_offset_delta"):
        build_batch([])


def test_header_names_that_are_not_utf8_survive_a_round_trip() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    records = [Record(0, 0, None, b"v", [(name, b"x")])]
    batch = build_batch(records)
    assert b"\x04\xff\xfe" in batch
    assert rows(read_records(batch)) == rows(records)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varint(encoded, 0) == (value, len(encoded))
    assert len(encoded) <= 10


def test_the_table_of_small_varints_agrees_with_the_encoder() -> None:
    assert all(read_varint(SMALL_VARINTS[n], 0)[0] == n for n in range(len(SMALL_VARINTS)))


extremes = st.sampled_from([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1])


@given(extremes, extremes, extremes)
def test_absurd_timestamps_wrap_around_and_survive_reading_and_writing(base: int, first: int, second: int) -> None:
    records = [Record(0, base, None, b"a"), Record(1, first, None, b"b"), Record(2, second, None, b"c")]
    batch = build_batch(records)
    assert rows(read_records(batch)) == rows(records)
    assert rows(read_records(build_batch(read_records(batch)[1:], last_offset_delta=2))) == rows(records[1:])


def test_a_timestamp_beyond_64_bits_wraps_around_as_it_does_elsewhere() -> None:
    batch = build_batch([Record(0, 5, None, b"a"), Record(1, 7, None, b"b")])
    struct.pack_into(">q", batch, 27, 2**63 - 1)
    assert [r.timestamp for r in read_records(batch)] == [2**63 - 1, -(2**63) + 1]


def lying_batch(payload: bytes, count: int = 1) -> bytearray:
    """A batch with a right checksum around records that lie."""
    batch = build_batch([Record(0, 0, None, b"")])[:61] + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    parse_batches(batch)
    return batch


HONEST = bytes([14, 0, 0, 0, 2, ord("k"), 0, 0])


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (bytes([16]) + HONEST[1:], "record length one too many"),
        (bytes([12]) + HONEST[1:], "record length one too few"),
        (bytes([13]) + HONEST[1:], "negative record length"),
        (bytes([14, 0, 0, 0, 126, ord("k"), 0, 0]), "key longer than the batch"),
        (bytes([14, 0, 0, 0, 2, ord("k"), 120, 0]), "value longer than the batch"),
        (bytes([20, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F, ord("k"), 0]), "key of two gigabytes"),
        (bytes([14, 0, 0, 0, 2, ord("k"), 0, 126]), "more headers than bytes"),
        (bytes([14, 0, 0, 0, 2, ord("k"), 0, 1]), "negative header count"),
        (bytes([18, 0, 0, 0, 2, ord("k"), 0, 2, 1, 0]), "header without a name"),
        (b"\xff" * 11, "a varint without an end"),
        (bytes([14, 0, 0, 2, 2, ord("k"), 0, 0]), "an offset beyond the batch"),
        (bytes([14, 0, 0, 1, 2, ord("k"), 0, 0]), "an offset before the batch"),
        (HONEST + b"\x00", "bytes after the last record"),
        (HONEST[:-1], "a record cut short"),
    ],
)
def test_lying_lengths_inside_a_batch_are_refused_before_anything_is_allocated(payload: bytes, why: str) -> None:
    with pytest.raises(KafkaError) as caught:
        read_records(lying_batch(payload))
    assert caught.value.code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE), why
    assert caught.value.message


def test_the_honest_record_of_the_liars_is_readable() -> None:
    assert rows(read_records(lying_batch(HONEST))) == [(0, 0, b"k", b"", [])]


def test_a_count_beyond_what_the_bytes_can_hold_is_refused() -> None:
    with pytest.raises(KafkaError, match="holds only") as caught:
        read_records(lying_batch(HONEST, count=2**30))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_varint_is_not_read_beyond_ten_bytes_because_endless_ones_would_take_quadratic_time() -> None:
    with pytest.raises(KafkaError, match="ten bytes"):
        read_varint(b"\xff" * 100_000, 0)
