"""Batches made in advance are what a producer would have built."""

from __future__ import annotations

import pytest

from chronik.bench.batches import BatchMaker, due_times
from chronik.protocol.records import Compression, parse_batches, read_records


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("count", [1, 2, 9])
def test_any_number_of_messages_makes_a_valid_batch(codec: Compression, count: int) -> None:
    maker = BatchMaker(100, 16_384, compression=codec)
    batch = maker.make(count, 1234, producer_id=5, producer_epoch=1, base_sequence=40)
    (info,) = parse_batches(batch)
    assert (info.record_count, info.producer_id, info.producer_epoch, info.base_sequence) == (count, 5, 1, 40)
    records = read_records(batch)
    assert [record.offset for record in records] == list(range(count))
    assert {len(record.value or b"") for record in records} == {100}
    assert {record.timestamp for record in records} == {1234}


def test_the_fullest_batch_fits_the_wanted_size_as_closely_as_messages_allow() -> None:
    maker = BatchMaker(1024, 16_384)
    size = len(maker.make(maker.max_records, 0))
    assert 16_384 - 1100 < size <= 16_384


def test_a_message_larger_than_a_batch_gets_a_batch_of_its_own() -> None:
    assert BatchMaker(10_000, 1).max_records == 1


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_a_batch_tells_when_its_messages_were_due(codec: Compression) -> None:
    maker = BatchMaker(64, 4096, compression=codec)
    first = maker.make(3, 0, due_ns=111, step_ns=7)
    second = maker.make(3, 0, due_ns=222, step_ns=9)
    assert due_times(memoryview(first)) == (111, 7)
    assert due_times(memoryview(second)) == (222, 9)
    parse_batches(second)


def test_a_batch_of_another_writer_tells_nothing() -> None:
    assert due_times(memoryview(BatchMaker(64, 4096).make(2, 0))) is None
    assert due_times(memoryview(BatchMaker(3, 4096).make(2, 0, due_ns=1, step_ns=1))) is None


def test_transactional_batches_are_marked() -> None:
    (info,) = parse_batches(BatchMaker(10, 500, transactional=True).make(1, 0, producer_id=1))
    assert info.is_transactional
