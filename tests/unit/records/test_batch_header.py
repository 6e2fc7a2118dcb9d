"""Batch headers: parsing, refusing what lies, stamping without touching what the checksum covers."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Compression, Record, build_batch, parse_batches, read_records, stamp
from chronik.protocol.records.header import batch_magic, parse_header
from harness.record_oracles import kafka_python_batch, rows

# Written by kafka-python 3.0: a transactional producer, headers, null key, null value, a timestamp that goes back.
GOLDEN = bytes.fromhex(
    "00000000000000000000006900000000024c1371fa001000000002000001937ed97200000001937ed9720500000000000004d2000300000007"
    "00000003320000000a6b65792d300a6669727374020a747261636504000124000a02010c7365636f6e6402086e6f6e65011400010408676f6e"
    "650100"
)
GOLDEN_RECORDS = [
    Record(0, 1733000000000, b"key-0", b"first", [("trace", b"\x00\x01")]),
    Record(1, 1733000000005, None, b"second", [("none", None)]),
    Record(2, 1732999999999, b"gone", None),
]


def refused(data: bytes | bytearray, **options: bool) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        parse_batches(data, **options)
    return caught.value


def with_field(batch: bytes | bytearray, form: str, position: int, value: int) -> bytearray:
    """The batch with one header field changed and its checksum made right again, as a liar would send it."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, position, value)
    struct.pack_into(">I", changed, 17, google_crc32c.value(bytes(changed[21:])))
    return changed


@pytest.fixture
def batch() -> bytearray:
    return build_batch([Record(0, 1000, b"k", b"v"), Record(1, 1005, b"k2", None)])


def test_the_golden_batch_is_still_what_the_other_client_writes() -> None:
    producer = {"producer_id": 1234, "producer_epoch": 3, "base_sequence": 7, "is_transactional": True}
    assert bytes(kafka_python_batch(GOLDEN_RECORDS, Compression.NONE, **producer)) == GOLDEN


def test_the_same_records_build_the_golden_batch_byte_for_byte() -> None:
    built = build_batch(
        GOLDEN_RECORDS, producer_id=1234, producer_epoch=3, base_sequence=7, transactional=True, leader_epoch=0
    )
    assert built == GOLDEN


def test_every_header_field_of_the_golden_batch_is_read() -> None:
    (info,) = parse_batches(GOLDEN)
    assert (info.position, info.size, info.end) == (0, len(GOLDEN), len(GOLDEN))
    assert (info.base_offset, info.last_offset_delta, info.last_offset, info.next_offset) == (0, 2, 2, 3)
    assert (info.base_timestamp, info.max_timestamp) == (1733000000000, 1733000000005)
    assert (info.producer_id, info.producer_epoch, info.base_sequence, info.last_sequence) == (1234, 3, 7, 9)
    assert (info.record_count, info.leader_epoch, info.attributes) == (3, 0, 0x10)
    assert info.is_transactional and info.has_producer_id
    assert not info.is_control and not info.log_append_time
    assert info.compression is Compression.NONE and info.delete_horizon_ms is None


def test_stamping_rewrites_only_offset_and_epoch_and_the_checksum_still_holds() -> None:
    stamped = bytearray(GOLDEN)
    stamp(stamped, 0, base_offset=2**40 + 5, leader_epoch=77)
    assert stamped[16:] == GOLDEN[16:]
    assert stamped[8:12] == GOLDEN[8:12]
    assert stamped[:8] == struct.pack(">q", 2**40 + 5)
    assert stamped[12:16] == struct.pack(">i", 77)
    (info,) = parse_batches(stamped)
    assert (info.base_offset, info.leader_epoch) == (2**40 + 5, 77)
    assert [r.offset for r in read_records(stamped)] == [2**40 + 5, 2**40 + 6, 2**40 + 7]


def test_stamping_a_later_batch_through_a_view_leaves_the_earlier_one_alone(batch: bytearray) -> None:
    both = bytearray(GOLDEN) + batch
    stamp(memoryview(both), len(GOLDEN), 3, 1)
    assert both[: len(GOLDEN)] == GOLDEN
    assert [info.base_offset for info in parse_batches(both)] == [0, 3]


def test_batches_in_a_row_are_found_at_their_positions(batch: bytearray) -> None:
    infos = parse_batches(memoryview(GOLDEN + bytes(batch) + GOLDEN))
    assert [info.position for info in infos] == [0, len(GOLDEN), len(GOLDEN) + len(batch)]
    assert sum(info.size for info in infos) == 2 * len(GOLDEN) + len(batch)


def test_no_bytes_are_no_batches() -> None:
    assert parse_batches(b"") == []


def test_sequences_wrap_around_after_the_largest_int32() -> None:
    (info,) = parse_batches(with_field(GOLDEN, ">i", 53, 2**31 - 2))
    assert info.last_sequence == 0


@pytest.mark.parametrize("position", range(21, len(GOLDEN)))
def test_any_changed_byte_that_the_checksum_covers_is_detected(position: int) -> None:
    flipped = bytearray(GOLDEN)
    flipped[position] ^= 0x01
    assert refused(flipped).code is ErrorCode.CORRUPT_MESSAGE


def test_without_the_checksum_check_a_changed_record_passes_the_header_walk() -> None:
    flipped = bytearray(GOLDEN)
    flipped[-5] ^= 0x01
    assert len(parse_batches(flipped, check_crc=False)) == 1


@pytest.mark.parametrize("cut", range(1, len(GOLDEN)))
def test_a_batch_torn_at_any_byte_is_corrupt(cut: int) -> None:
    assert refused(GOLDEN[:cut]).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("cut", range(1, len(GOLDEN)))
def test_a_batch_cut_short_at_the_end_is_left_out_where_that_is_allowed(cut: int, batch: bytearray) -> None:
    infos = parse_batches(bytes(batch) + GOLDEN[:cut], allow_partial=True)
    assert [info.size for info in infos] == [len(batch)]


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_a_length_below_the_smallest_batch_is_corrupt(length: int) -> None:
    lying = with_field(GOLDEN, ">i", 8, length)
    assert refused(lying).code is ErrorCode.CORRUPT_MESSAGE
    assert refused(lying, allow_partial=True).code is ErrorCode.CORRUPT_MESSAGE


def test_a_length_beyond_the_bytes_that_are_there_is_corrupt_and_named() -> None:
    error = refused(with_field(GOLDEN, ">i", 8, 2**31 - 1))
    assert error.code is ErrorCode.CORRUPT_MESSAGE
    assert str(2**31 - 1) in error.message


@pytest.mark.parametrize("magic", [0, 1, 3, 127])
def test_another_magic_is_refused_as_another_format(magic: int) -> None:
    assert refused(with_field(GOLDEN, ">b", 16, magic)).code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize(("count", "last_delta"), [(4, 2), (-1, 2), (2**31 - 1, 2), (1, -1), (0, -1), (3, -(2**31))])
def test_counts_that_cannot_be_are_refused_although_the_checksum_is_right(count: int, last_delta: int) -> None:
    lying = with_field(with_field(GOLDEN, ">i", 57, count), ">i", 23, last_delta)
    assert refused(lying).code is ErrorCode.INVALID_RECORD
    with pytest.raises(KafkaError):
        parse_header(lying)


def test_fewer_records_than_offsets_are_fine_in_the_header_walk_because_compaction_makes_them() -> None:
    sparse = build_batch([Record(7, 1, b"k", b"v")], base_offset=5, last_offset_delta=9)
    (info,) = parse_batches(sparse)
    assert (info.base_offset, info.last_offset, info.record_count) == (5, 14, 1)
    assert rows(read_records(sparse)) == [(7, 1, b"k", b"v", [])]


def test_a_header_alone_tells_the_size_of_its_batch() -> None:
    info = parse_header(GOLDEN[:61])
    assert (info.size, info.record_count) == (len(GOLDEN), 3)
    with pytest.raises(KafkaError):
        parse_header(GOLDEN[:60])


def test_the_magic_lies_at_the_same_byte_in_every_format() -> None:
    assert batch_magic(GOLDEN) == 2
    with pytest.raises(KafkaError):
        batch_magic(GOLDEN[:16])


def test_a_codec_that_does_not_exist_is_named_when_asked_for() -> None:
    (info,) = parse_batches(with_field(GOLDEN, ">h", 21, 5))
    with pytest.raises(KafkaError) as caught:
        _ = info.compression
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
