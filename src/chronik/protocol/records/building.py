"""From records to the bytes of a batch of magic 2, checksum included."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from chronik.protocol.records.compression import Compression, compress
from chronik.protocol.records.header import (
    CONTROL_FLAG,
    CRC_POSITION,
    CRC_START,
    CURRENT_MAGIC,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    crc32c,
)
from chronik.protocol.records.reading import Record
from chronik.protocol.records.varint import SMALL_VARINTS, append_varint

_CRC = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
_NULL = b"\x01"  # the varint of −1
_SMALL = len(SMALL_VARINTS)


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    last_offset_delta: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """Build one batch.

    Records carry their absolute offsets, which increase and are not below `base_offset`. `last_offset_delta` is given
    by compaction, whose batches keep the offset range they had before records were taken out; they may even be empty.
    `log_append_time` gives every record that timestamp. `delete_horizon_ms` is kept in the base timestamp, as Kafka's
    log cleaner does. Raises ValueError for offsets that do not fit.
    """
    if last_offset_delta is None:
        if not records:
            raise ValueError("an empty batch needs its last_offset_delta")
        last_offset_delta = records[-1].offset - base_offset
    attributes = int(compression) if records else 0
    if transactional:
        attributes |= TRANSACTIONAL_FLAG
    if control:
        attributes |= CONTROL_FLAG
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_FLAG
        max_timestamp = log_append_time
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = delete_horizon_ms

    batch = bytearray(HEADER_SIZE)
    if compression is Compression.NONE:
        last = append_records(batch, records, base_offset, base_timestamp)
    else:
        section = bytearray()
        last = append_records(section, records, base_offset, base_timestamp)
        if records:
            batch += compress(compression, section)
    if last > last_offset_delta:
        raise ValueError(f"a record has offset delta {last}, beyond the last offset delta {last_offset_delta}")

    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        CURRENT_MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def set_producer(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Give a finished batch to a producer, in place: its header and its checksum change, its records do not."""
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))


def append_records(out: bytearray, records: Sequence[Record], base_offset: int, base_timestamp: int) -> int:
    """Append the records section to `out`, uncompressed; the offset delta of the last record, or −1."""
    previous = -1
    for record in records:
        delta = record.offset - base_offset
        if delta <= previous:
            raise ValueError(
                f"offset {record.offset} does not come after the one before it (base offset {base_offset}); "
                "give the records of a batch increasing offsets"
            )
        previous = delta
        body = bytearray(1)
        _append_number(body, record.timestamp - base_timestamp)
        _append_number(body, delta)
        _append_bytes(body, record.key)
        _append_bytes(body, record.value)
        headers = record.headers
        if headers:
            _append_number(body, len(headers))
            for name, value in headers:
                _append_bytes(body, name.encode("utf-8", "surrogateescape"))
                _append_bytes(body, value)
        else:
            body.append(0)
        _append_number(out, len(body))
        out += body
    return previous


def _append_number(out: bytearray, value: int) -> None:
    if 0 <= value < _SMALL:
        out += SMALL_VARINTS[value]
    else:
        append_varint(out, value)


def _append_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out += _NULL
        return
    _append_number(out, len(data))
    out += data
