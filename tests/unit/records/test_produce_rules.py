"""What a client may send in Produce, and what it may not."""

from __future__ import annotations

import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchInfo, Compression, Record, build_batch, parse_batches
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.protocol.records.produce_rules import check_produce, check_timestamps
from harness.record_oracles import ALL_CODECS

NEWEST = 12
RECORDS = [Record(0, 1000, b"k", b"v"), Record(1, 1005, b"k", b"w")]


def refusal(data: bytes | bytearray, version: int = NEWEST) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        check_produce(parse_batches(data), version)
    assert caught.value.message
    return caught.value.code


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_an_ordinary_batch_of_any_codec_is_accepted(codec: Compression) -> None:
    check_produce(parse_batches(build_batch(RECORDS, compression=codec)), NEWEST)


def test_an_idempotent_and_a_transactional_batch_are_accepted() -> None:
    for transactional in (False, True):
        batch = build_batch(RECORDS, producer_id=9, producer_epoch=0, base_sequence=0, transactional=transactional)
        check_produce(parse_batches(batch), NEWEST)


def test_a_sequence_without_a_producer_id_is_accepted_because_some_clients_always_send_zero() -> None:
    check_produce(parse_batches(build_batch(RECORDS, producer_epoch=0, base_sequence=0)), NEWEST)


@pytest.mark.parametrize("version", [3, NEWEST])
def test_two_batches_or_none_are_refused_from_version_3_on(version: int) -> None:
    assert refusal(build_batch(RECORDS) * 2, version) is ErrorCode.INVALID_RECORD
    assert refusal(b"", version) is ErrorCode.INVALID_RECORD


def test_several_batches_are_accepted_in_versions_that_carry_message_sets() -> None:
    check_produce(parse_batches(build_batch(RECORDS) * 2), 2)
    assert refusal(b"", 2) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("version", [2, NEWEST])
def test_a_record_count_that_differs_from_the_offsets_is_refused(version: int) -> None:
    assert refusal(build_batch(RECORDS[1:], last_offset_delta=1), version) is ErrorCode.INVALID_RECORD
    assert refusal(build_batch([], last_offset_delta=0), version) is ErrorCode.INVALID_RECORD


def test_more_records_than_the_bytes_can_hold_are_refused() -> None:
    (info,) = parse_batches(build_batch(RECORDS))
    info.record_count = 1000
    info.last_offset_delta = 999
    with pytest.raises(KafkaError):
        check_produce([info], NEWEST)


def test_control_records_are_refused() -> None:
    marker = build_end_transaction_marker(
        committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5
    )
    assert refusal(marker) is ErrorCode.INVALID_RECORD


def test_a_delete_horizon_is_refused() -> None:
    assert refusal(build_batch(RECORDS, delete_horizon_ms=5)) is ErrorCode.INVALID_RECORD


def test_log_append_time_from_a_producer_is_refused() -> None:
    assert refusal(build_batch(RECORDS, log_append_time=5)) is ErrorCode.INVALID_TIMESTAMP


def test_zstd_is_refused_before_the_version_that_brought_it() -> None:
    batch = build_batch(RECORDS, compression=Compression.ZSTD)
    assert refusal(batch, 6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    check_produce(parse_batches(batch), 7)


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_codecs_that_do_not_exist_are_refused(bits: int) -> None:
    (info,) = parse_batches(build_batch(RECORDS))
    info.attributes |= bits
    with pytest.raises(KafkaError) as caught:
        check_produce([info], NEWEST)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1), (-1, -1)])
def test_a_producer_id_without_epoch_or_sequence_is_refused(epoch: int, sequence: int) -> None:
    batch = build_batch(RECORDS, producer_id=9, producer_epoch=epoch, base_sequence=sequence)
    assert refusal(batch) is ErrorCode.INVALID_RECORD


def test_a_transactional_batch_without_a_producer_id_is_refused() -> None:
    assert refusal(build_batch(RECORDS, transactional=True)) is ErrorCode.INVALID_RECORD


def info_at(first: int, newest: int) -> BatchInfo:
    (info,) = parse_batches(build_batch([Record(0, first, None, b""), Record(1, newest, None, b"")]))
    return info


def test_timestamps_within_the_bounds_of_the_topic_pass() -> None:
    check_timestamps(info_at(900, 1100), now_ms=1000, before_max_ms=100, after_max_ms=100)
    check_timestamps(info_at(-1, -1), now_ms=10**12, before_max_ms=100, after_max_ms=100)


@pytest.mark.parametrize(("first", "newest"), [(899, 1000), (1000, 1101)])
def test_timestamps_too_old_or_too_new_are_refused_and_the_setting_is_named(first: int, newest: int) -> None:
    with pytest.raises(KafkaError) as caught:
        check_timestamps(info_at(first, newest), now_ms=1000, before_max_ms=100, after_max_ms=100)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert "message.timestamp." in caught.value.message
