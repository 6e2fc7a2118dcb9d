"""Batches re-encoded for their topic, and validated record by record."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Compression, Record, build_batch, parse_batches, read_records
from chronik.protocol.records import transform as transform_module
from chronik.protocol.records.transform import check_records, needs_reencoding, reencode, set_log_append_time
from harness.record_oracles import ALL_CODECS, read_with_aiokafka, read_with_kafka_python, record_lists, rows

codecs = st.sampled_from(ALL_CODECS)


@settings(max_examples=80, deadline=None)
@given(record_lists(), codecs, codecs)
def test_a_batch_keeps_its_records_and_producer_through_any_change_of_codec(
    records: list[Record], source: Compression, target: Compression
) -> None:
    batch = build_batch(
        records, compression=source, producer_id=4, producer_epoch=2, base_sequence=11, transactional=True
    )
    made = reencode(batch, compression=target)
    (before,), (after,) = parse_batches(batch), parse_batches(made)
    assert after.compression is target
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (4, 2, 11)
    assert after.is_transactional and after.max_timestamp == before.max_timestamp
    assert rows(read_records(made)) == rows(records) == read_with_kafka_python(made) == read_with_aiokafka(made)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_log_append_time_changes_header_and_checksum_only(codec: Compression) -> None:
    batch = build_batch([Record(0, 5, b"a", b"1"), Record(1, 9, b"b", b"2")], compression=codec)
    changed = bytearray(batch)
    set_log_append_time(changed, 777)
    (info,) = parse_batches(changed)
    assert info.log_append_time and info.max_timestamp == 777 and info.compression is codec
    assert changed[:17] == batch[:17] and changed[43:] == batch[43:]
    assert [row[1] for row in read_with_kafka_python(changed)] == [777, 777]


def test_log_append_time_of_one_batch_leaves_the_next_alone() -> None:
    batch = build_batch([Record(0, 5, b"a", b"1")])
    both = bytearray(batch * 2)
    set_log_append_time(memoryview(both), 777)
    assert both[len(batch) :] == batch
    assert [info.max_timestamp for info in parse_batches(both)] == [777, 5]


def test_codec_and_log_append_time_can_change_together() -> None:
    batch = build_batch([Record(0, 5, b"a", b"1")], compression=Compression.GZIP)
    made = reencode(batch, compression=Compression.ZSTD, log_append_time=777)
    (info,) = parse_batches(made)
    assert info.compression is Compression.ZSTD and info.log_append_time
    assert rows(read_records(made)) == [(0, 777, b"a", b"1", [])]


def test_the_codec_of_the_producer_is_kept_when_the_topic_wants_none() -> None:
    (info,) = parse_batches(build_batch([Record(0, 5, b"a", b"1")], compression=Compression.LZ4))
    assert not needs_reencoding(info, None)
    assert not needs_reencoding(info, Compression.LZ4)
    assert needs_reencoding(info, Compression.NONE)
    assert needs_reencoding(info, Compression.GZIP)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_a_record_without_a_key_is_refused_where_keys_are_needed(codec: Compression) -> None:
    batch = build_batch([Record(0, 5, b"a", b"1"), Record(1, 5, None, b"2")], compression=codec)
    assert len(check_records(batch)) == 2
    for check in (check_records, reencode):
        with pytest.raises(KafkaError) as caught:
            check(batch, require_keys=True)
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert "record 1" in caught.value.message and "key" in caught.value.message


def test_an_empty_key_is_a_key() -> None:
    assert check_records(build_batch([Record(0, 5, b"", b"1")]), require_keys=True)


def test_offsets_inside_a_batch_must_count_up_without_a_gap() -> None:
    gap = build_batch([Record(0, 5, b"a", b"1"), Record(2, 5, b"b", b"2")])
    with pytest.raises(KafkaError) as caught:
        check_records(gap)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_more_records_than_are_looked_at_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform_module, "MAX_RECORDS_CHECKED", 2)
    assert check_records(build_batch([Record(i, 5, b"a", b"1") for i in range(2)]))
    with pytest.raises(KafkaError):
        check_records(build_batch([Record(i, 5, b"a", b"1") for i in range(3)]))


@pytest.mark.parametrize("codec", [codec for codec in ALL_CODECS if codec])
def test_a_bomb_is_refused_by_validation_and_re_encoding(codec: Compression) -> None:
    batch = build_batch([Record(0, 5, b"a", bytes(2_000_000))], compression=codec)
    for check in (check_records, reencode):
        with pytest.raises(KafkaError) as caught:
            check(batch, limit=1_000_000)
        assert caught.value.code is ErrorCode.INVALID_RECORD


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), codecs)
def test_mutated_batches_raise_nothing_but_kafka_errors(seed: int, codec: Compression) -> None:
    dice = random.Random(seed)
    records = [
        Record(i, 1000 + i, dice.randbytes(3), dice.randbytes(dice.randint(0, 80)), [("h", b"x")] * dice.randint(0, 2))
        for i in range(dice.randint(1, 6))
    ]
    batch = build_batch(records, compression=codec)
    for _ in range(dice.randint(1, 4)):
        batch[dice.randrange(len(batch))] = dice.randrange(256)
    if dice.random() < 0.2:
        del batch[dice.randrange(len(batch)) :]
    for attempt in (
        lambda: [read_records(batch[i.position : i.end]) for i in parse_batches(batch, check_crc=False)],
        lambda: parse_batches(batch, allow_partial=True),
        lambda: check_records(batch, require_keys=True),
        lambda: reencode(batch, compression=Compression.GZIP, log_append_time=5),
    ):
        try:
            attempt()
        except KafkaError as error:
            assert error.code is not ErrorCode.NONE
