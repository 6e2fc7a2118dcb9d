"""What a client may send in a Produce request, as far as the batch headers tell.

The frame of the batches was checked by `parse_batches`; rules that need the records are in `transform.check_records`.
Kafka checks the same in ProduceRequest and LogValidator. What depends on a partition's state (sequences, transactions,
sizes) belongs to its log.
"""

from __future__ import annotations

from collections.abc import Sequence

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records.compression import Compression
from chronik.protocol.records.header import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchInfo,
)

FIRST_VERSION_OF_BATCHES = 3
"""From this version of Produce on, a partition's records are exactly one batch of magic 2."""

FIRST_VERSION_OF_ZSTD = 7

_REFUSED_FLAGS = CONTROL_FLAG | DELETE_HORIZON_FLAG | LOG_APPEND_TIME_FLAG
_LAST_CODEC = max(Compression)


def check_produce(batches: Sequence[BatchInfo], version: int) -> None:
    """Refuse batches of magic 2 that a client may not send in Produce of this version.

    Message sets of magic 0 and 1, which versions 0–2 carry, are converted first (`legacy.upconvert`); like Kafka,
    batches of magic 2 are taken in those versions too. Raises KafkaError: INVALID_RECORD, INVALID_TIMESTAMP or
    UNSUPPORTED_COMPRESSION_TYPE.
    """
    if len(batches) != 1 and (not batches or version >= FIRST_VERSION_OF_BATCHES):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"a partition's records in Produce v{version} must be exactly one batch, here are {len(batches)}",
        )
    for info in batches:
        attributes = info.attributes
        if info.record_count != info.last_offset_delta + 1:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"a batch counts {info.record_count} records but its last offset delta is {info.last_offset_delta}; "
                "they must agree",
            )
        codec = attributes & COMPRESSION_MASK
        if codec:
            _check_codec(codec, version)
        elif info.record_count * 7 > info.size:  # the smallest record has seven bytes
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"a batch of {info.size} bytes cannot hold {info.record_count} records"
            )
        if attributes & _REFUSED_FLAGS:
            raise _refused_flag(attributes)
        if info.producer_id >= 0:
            _check_producer(info)
        elif attributes & TRANSACTIONAL_FLAG:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch carries no producer id")


def check_timestamps(info: BatchInfo, *, now_ms: int, before_max_ms: int, after_max_ms: int) -> None:
    """Refuse a batch whose timestamps lie too far in the past or the future for its topic.

    `before_max_ms` and `after_max_ms` are the topic's `message.timestamp.before.max.ms` and `…after.max.ms`. The
    header names the first and the newest timestamp, which is as far as this looks.
    """
    newest = info.max_timestamp
    if newest != NO_TIMESTAMP and newest - now_ms > after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {newest} is {newest - now_ms} ms ahead of the broker's clock; the topic allows {after_max_ms} "
            "(message.timestamp.after.max.ms)",
        )
    first = info.base_timestamp
    if first != NO_TIMESTAMP and now_ms - first > before_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {first} is {now_ms - first} ms behind the broker's clock; the topic allows {before_max_ms} "
            "(message.timestamp.before.max.ms)",
        )


def _check_codec(codec: int, version: int) -> None:
    if codec > _LAST_CODEC:
        Compression.of_attributes(codec)  # raises, with the names of the codecs there are
    if codec == Compression.ZSTD and version < FIRST_VERSION_OF_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce v{version} may not carry zstd, which came with v{FIRST_VERSION_OF_ZSTD}; "
            "upgrade the producer or use another codec",
        )


def _check_producer(info: BatchInfo) -> None:
    if info.producer_epoch < 0 or info.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"a batch of producer {info.producer_id} needs an epoch and a sequence of 0 or more, "
            f"not {info.producer_epoch} and {info.base_sequence}",
        )


def _refused_flag(attributes: int) -> KafkaError:
    if attributes & LOG_APPEND_TIME_FLAG:
        return KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            "a producer may not set the timestamp type LogAppendTime; the broker does, by message.timestamp.type",
        )
    what = "control records" if attributes & CONTROL_FLAG else "a delete horizon"
    return KafkaError(ErrorCode.INVALID_RECORD, f"clients may not write {what}, only brokers do")
