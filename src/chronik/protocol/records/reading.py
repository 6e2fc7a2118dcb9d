"""From the bytes of a batch to its records. Used where records themselves matter: clients, compaction, conversion."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records.compression import MAX_DECOMPRESSED_BYTES, Compression, decompress
from chronik.protocol.records.header import HEADER_SIZE, BatchInfo, Buffer, parse_header
from chronik.protocol.records.varint import INT64_MAX, INT64_MIN, read_varint, wrap_int64

_MIN_RECORD_BYTES = 7  # one byte each: length, attributes, two deltas, key and value length, header count


class Record(msgspec.Struct):
    """One record. Header names that are not UTF-8 survive a round trip (surrogate escapes)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def read_records(batch: Buffer, *, limit: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """Decode the records of the one batch at the start of `batch`, with their absolute offsets and timestamps.

    The checksum is not checked here; lengths are, each against the bytes that are there. Decompression is bounded by
    `limit`. Raises KafkaError for whatever is not a well-formed batch.
    """
    return decode_records(*batch_payload(batch, limit=limit))


def batch_payload(batch: Buffer, *, limit: int = MAX_DECOMPRESSED_BYTES) -> tuple[BatchInfo, bytes]:
    """The header and the decompressed records section of the one batch at the start of `batch`."""
    info = parse_header(batch)
    if len(batch) < info.size:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the batch claims {info.size} bytes but only {len(batch)} are there"
        )
    section = memoryview(batch)[HEADER_SIZE : info.size]
    codec = info.compression
    if codec is Compression.NONE or not info.record_count:
        payload = bytes(section)
    else:
        payload = bytes(decompress(codec, section, limit))
    if info.record_count * _MIN_RECORD_BYTES > len(payload):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch claims {info.record_count} records but holds only {len(payload)} bytes of them",
        )
    return info, payload


def decode_records(info: BatchInfo, payload: bytes) -> list[Record]:
    """Decode a decompressed records section, which must hold exactly the records that the header counts."""
    base_offset = info.base_offset
    last_offset_delta = info.last_offset_delta
    base_timestamp = info.base_timestamp
    fixed_timestamp = info.max_timestamp if info.log_append_time else None
    records: list[Record] = []
    position = 0
    # One-byte varints, most of those inside a record, are read in place: a call for each would double the time.
    try:
        for _ in range(info.record_count):
            length, position = read_varint(payload, position)
            end = position + length
            byte = payload[position + 1]  # position + 0 holds the attributes of a record: none are defined
            if byte < 0x80:
                timestamp_delta = (byte >> 1) ^ -(byte & 1)
                position += 2
            else:
                timestamp_delta, position = read_varint(payload, position + 1)
            byte = payload[position]
            if byte < 0x80:
                offset_delta = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                offset_delta, position = read_varint(payload, position)
            byte = payload[position]
            if byte < 0x80 and not byte & 1:
                start = position + 1
                position = start + (byte >> 1)
                key: bytes | None = payload[start:position]
            else:
                key, position = _read_bytes(payload, position)
            byte = payload[position]
            if byte < 0x80 and not byte & 1:
                start = position + 1
                position = start + (byte >> 1)
                value: bytes | None = payload[start:position]
            else:
                value, position = _read_bytes(payload, position)
            if payload[position] == 0:
                headers: Sequence[tuple[str, bytes | None]] = ()
                position += 1
            else:
                headers, position = _read_headers(payload, position)
            if position != end:
                raise _lying_length(len(records), length, position - end)
            if not 0 <= offset_delta <= last_offset_delta:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"record {len(records)} has offset delta {offset_delta}, the batch ends at {last_offset_delta}",
                )
            timestamp = base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp
            if not INT64_MIN <= timestamp <= INT64_MAX:
                timestamp = wrap_int64(timestamp)
            records.append(Record(base_offset + offset_delta, timestamp, key, value, headers))
    except IndexError:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the records end in the middle of record {len(records) + 1} of {info.record_count}",
        ) from None
    if position != len(payload):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{len(payload) - position} bytes follow the last of the {info.record_count} records of the batch",
        )
    return records


def _read_bytes(payload: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(payload, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(payload):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"a key or value at byte {position} claims {length} bytes, {len(payload) - position} are left",
        )
    return payload[position:end], end


def _read_headers(payload: bytes, position: int) -> tuple[list[tuple[str, bytes | None]], int]:
    count, position = read_varint(payload, position)
    # Every header takes two bytes or more, so a count beyond that is a lie told before anything is allocated.
    if count < 0 or 2 * count > len(payload) - position:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a record claims {count} headers, which cannot fit")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(payload, position)
        if name is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a record header has no name, every header needs one")
        value, position = _read_bytes(payload, position)
        headers.append((name.decode("utf-8", "surrogateescape"), value))
    return headers, position


def _lying_length(index: int, length: int, excess: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_RECORD,
        f"record {index} claims {length} bytes but its fields take {length + excess}",
    )
