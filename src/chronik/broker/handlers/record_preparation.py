"""From the records field of a Produce request to bytes that a log may take: validation, and conversion where it is
needed.

`prepare` is for the loop: it looks at batch headers only. What must look at records is left as a conversion, a pure
function over a copy of the bytes, for a thread. Which checks exist is in protocol.records; here they are put in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.metadata.config_definitions import LONG_MAX
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchInfo, Compression, batch_magic, parse_batches
from chronik.protocol.records.legacy import upconvert
from chronik.protocol.records.produce_rules import FIRST_VERSION_OF_BATCHES, check_produce, check_timestamps
from chronik.protocol.records.transform import check_records, needs_reencoding, reencode, set_log_append_time

if TYPE_CHECKING:
    from chronik.metadata.topic_settings import TopicSettings
    from chronik.protocol.wire import Buffer

CHECKED_INLINE_BYTES_MAX = 8 * 1024
"""Uncompressed batches up to this size may have their keys checked on the loop."""

CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
"""Values of `compression.type` that name a codec; `producer` keeps the one that came."""

_CURRENT_MAGIC = 2
_LOG_APPEND_TIME_FLAG = 0x08


def sent_records(records: Buffer | list[Buffer] | None) -> memoryview:
    """The records field of a partition, a view of the request's own frame; raises KafkaError when it is empty."""
    if not records or not isinstance(records, memoryview):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a produce request must carry at least one record per partition")
    return records


def prepare(records: memoryview, settings: TopicSettings, version: int, now_ms: int) -> list[BatchInfo] | None:
    """Check what a client sent for one partition; raises KafkaError when the log must not take it.

    Returns the batches, stamped in place where the topic has LogAppendTime; None when they have to be converted first.
    """
    if version < FIRST_VERSION_OF_BATCHES and batch_magic(records) < _CURRENT_MAGIC:
        return None
    batches = _parsed(records, version)
    check_produce(batches, version)
    codec = CODECS.get(settings.compression_type)
    if codec is not None and any(needs_reencoding(info, codec) for info in batches):
        return None
    oldest_ms = _oldest_ms(settings, now_ms)
    if settings.compact or (oldest_ms is not None and any(info.record_count > 1 for info in batches)):
        for info in batches:
            if info.compression is not Compression.NONE or info.size > CHECKED_INLINE_BYTES_MAX:
                return None
            view = records[info.position : info.end]
            check_records(view, require_keys=settings.compact, oldest_ms=oldest_ms)
    _apply_timestamps(records, batches, settings, now_ms)
    return batches


def convert(records: Buffer, settings: TopicSettings, version: int, now_ms: int) -> tuple[bytearray, list[BatchInfo]]:
    """The slow way, for a thread: decode, check and re-encode as the topic asks. `records` must be a copy."""
    old_format = batch_magic(records) < _CURRENT_MAGIC
    view = memoryview(upconvert(records) if old_format else records)
    made = bytearray()
    batches = _parsed(view, version)
    if not old_format:
        check_produce(batches, version)
    for info in batches:
        made += reencode(
            view[info.position : info.end],
            compression=CODECS.get(settings.compression_type),
            level=settings.compression_level,
            require_keys=settings.compact,
            oldest_ms=_oldest_ms(settings, now_ms),
        )
    converted = parse_batches(made, check_crc=False)
    _apply_timestamps(memoryview(made), converted, settings, now_ms)
    return made, converted


def _oldest_ms(settings: TopicSettings, now_ms: int) -> int | None:
    """The earliest time a record may have, where the topic limits it: then every record has to be looked at, since a
    batch's header names the time of its first only."""
    if settings.log_append_time or settings.message_timestamp_before_max_ms == LONG_MAX:
        return None
    return now_ms - settings.message_timestamp_before_max_ms


def _parsed(records: memoryview, version: int) -> list[BatchInfo]:
    try:
        return parse_batches(records)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and version >= FIRST_VERSION_OF_BATCHES:
            raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from error
        raise


def _apply_timestamps(view: memoryview, batches: list[BatchInfo], settings: TopicSettings, now_ms: int) -> None:
    """Refuse timestamps that the topic does not allow, or replace them by ours where the topic says so."""
    if not settings.log_append_time:
        before_max_ms = settings.message_timestamp_before_max_ms
        after_max_ms = settings.message_timestamp_after_max_ms
        for info in batches:
            check_timestamps(info, now_ms=now_ms, before_max_ms=before_max_ms, after_max_ms=after_max_ms)
        return
    for info in batches:
        set_log_append_time(view[info.position : info.end], now_ms)
        info.attributes |= _LOG_APPEND_TIME_FLAG
        info.max_timestamp = now_ms
