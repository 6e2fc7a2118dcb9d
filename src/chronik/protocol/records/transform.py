"""Batches that must not be stored as they came: LogAppendTime, a topic's own `compression.type`; and deep validation.

Pure functions. `set_log_append_time` touches the header only and costs one checksum; everything else decodes records,
so a caller with an event loop runs it elsewhere.
"""

from __future__ import annotations

import struct

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records.compression import MAX_DECOMPRESSED_BYTES, Compression, compress
from chronik.protocol.records.header import (
    COMPRESSION_MASK,
    CRC_POSITION,
    CRC_START,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchInfo,
    Buffer,
    crc32c,
    parse_header,
)
from chronik.protocol.records.reading import Record, batch_payload, decode_records

MAX_RECORDS_CHECKED = 1_000_000
"""The most records a batch may hold where each of them has to be looked at."""

_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES_POSITION = 21
_MAX_TIMESTAMP_POSITION = 35


def needs_reencoding(info: BatchInfo, compression: Compression | None) -> bool:
    """Whether a batch must be re-encoded for a topic of this `compression.type` (None: `producer`, keep the codec)."""
    return compression is not None and info.attributes & COMPRESSION_MASK != compression


def set_log_append_time(batch: bytearray | memoryview, append_time_ms: int) -> None:
    """Give all records of the batch at the start of `batch` the time of their append, in place, with a new checksum."""
    info = parse_header(batch)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, info.attributes | LOG_APPEND_TIME_FLAG)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, append_time_ms)
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START : info.size]))


def reencode(
    batch: Buffer,
    *,
    compression: Compression | None = None,
    level: int | None = None,
    log_append_time: int | None = None,
    require_keys: bool = False,
    oldest_ms: int | None = None,
    limit: int = MAX_DECOMPRESSED_BYTES,
) -> bytearray:
    """A copy of the batch with another codec and, or, LogAppendTime; offsets, producer and records stay as they are.

    `compression` None keeps the codec, `level` None is the codec's default. The records are validated as in
    `check_records`, since nothing but whole records should get a fresh checksum. Raises KafkaError.
    """
    info, payload = batch_payload(batch, limit=limit)
    _check_decoded(info, payload, require_keys=require_keys, oldest_ms=oldest_ms)
    if not needs_reencoding(info, compression):
        made = bytearray(batch[: info.size])
    else:
        assert compression is not None
        made = bytearray(batch[:HEADER_SIZE])
        made += compress(compression, payload, level)
        _LENGTH.pack_into(made, 8, len(made) - LOG_OVERHEAD)
        _ATTRIBUTES.pack_into(made, _ATTRIBUTES_POSITION, info.attributes & ~COMPRESSION_MASK | compression)
        _CRC.pack_into(made, CRC_POSITION, crc32c(memoryview(made)[CRC_START:]))
    if log_append_time is not None:
        set_log_append_time(made, log_append_time)
    return made


def check_records(
    batch: Buffer,
    *,
    require_keys: bool = False,
    oldest_ms: int | None = None,
    limit: int = MAX_DECOMPRESSED_BYTES,
) -> list[Record]:
    """Validate every record of a batch from a client, and return them.

    Beyond what decoding checks, offsets must count up from the base offset without a gap; with `require_keys`, as on a
    compacted topic, every record needs a key; none may have a time before `oldest_ms`. Raises
    KafkaError(INVALID_RECORD), INVALID_TIMESTAMP or CORRUPT_MESSAGE.
    """
    info, payload = batch_payload(batch, limit=limit)
    return _check_decoded(info, payload, require_keys=require_keys, oldest_ms=oldest_ms)


def _check_decoded(info: BatchInfo, payload: bytes, *, require_keys: bool, oldest_ms: int | None) -> list[Record]:
    if info.record_count > MAX_RECORDS_CHECKED:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch holds {info.record_count} records, more than the {MAX_RECORDS_CHECKED} that a topic with "
            "compaction or its own codec takes at once; send smaller batches",
        )
    records = decode_records(info, payload)
    expected = info.base_offset
    for record in records:
        if record.offset != expected:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"record {expected - info.base_offset} of the batch has offset delta "
                f"{record.offset - info.base_offset}; the records of a batch count up from 0",
            )
        if require_keys and record.key is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"record {expected - info.base_offset} of the batch has no key, which a compacted topic needs",
            )
        if oldest_ms is not None and NO_TIMESTAMP != record.timestamp < oldest_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"record {expected - info.base_offset} of the batch has timestamp {record.timestamp}; the topic allows "
                f"none before {oldest_ms} (message.timestamp.before.max.ms)",
            )
        expected += 1
    return records
