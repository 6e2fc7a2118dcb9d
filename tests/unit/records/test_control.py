"""Control records, as other clients read them."""

from __future__ import annotations

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from kafka.record import MemoryRecords

from chronik.protocol.errors import KafkaError
from chronik.protocol.records import Record, build_batch, parse_batches, read_records
from chronik.protocol.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
    control_key,
    control_type,
    read_end_transaction_marker,
)


def marker(committed: bool) -> bytearray:
    return build_end_transaction_marker(
        committed=committed,
        producer_id=42,
        producer_epoch=7,
        coordinator_epoch=3,
        timestamp=1234,
        base_offset=99,
        leader_epoch=5,
    )


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_a_control_batch_of_its_producer(committed: bool) -> None:
    (info,) = parse_batches(marker(committed))
    assert info.is_control and info.is_transactional
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (42, 7, -1)
    assert (info.base_offset, info.last_offset, info.record_count, info.leader_epoch) == (99, 99, 1, 5)
    assert read_end_transaction_marker(marker(committed)) == EndTransactionMarker(committed, 3)


@pytest.mark.parametrize(("committed", "theirs"), [(True, COMMIT_MARKER), (False, ABORT_MARKER)])
def test_other_clients_understand_the_marker(committed: bool, theirs: ControlRecord) -> None:
    (batch,) = list(MemoryRecords(bytes(marker(committed))))
    assert batch.is_control_batch
    (record,) = list(batch)
    assert ControlRecord.parse(bytes(record.key)) == theirs
    assert (record.offset, record.timestamp) == (99, 1234)


def test_the_bytes_of_a_marker_are_those_of_kafka() -> None:
    (record,) = read_records(marker(True))
    assert record.key == b"\x00\x00\x00\x01"
    assert record.value == b"\x00\x00\x00\x00\x00\x03"


def test_control_records_of_other_kinds_are_no_transaction_markers() -> None:
    batch = build_batch([Record(0, 0, control_key(ControlType.LEADER_CHANGE), b"\x00")], control=True)
    assert read_end_transaction_marker(batch) is None


def test_types_of_a_later_time_are_unknown_and_not_an_error() -> None:
    assert control_type(b"\x00\x00\x00\x63") is ControlType.UNKNOWN


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x00"])
def test_keys_that_are_no_control_keys_are_refused(key: bytes | None) -> None:
    with pytest.raises(KafkaError):
        control_type(key)


def test_a_marker_with_a_short_value_or_two_records_is_refused() -> None:
    key = control_key(ControlType.COMMIT)
    for records in (
        [Record(0, 0, key, b"\x00")],
        [Record(0, 0, key, None)],
        [Record(i, 0, key, b"\0" * 6) for i in (0, 1)],
    ):
        with pytest.raises(KafkaError):
            read_end_transaction_marker(build_batch(records, control=True))
