"""The `.snapshot` file of producer state, in Kafka's format, so that recovery need not replay the whole log.

Kafka keeps the last batch of each producer only. A retry of an older batch after a restart would then count as out of
order, so the batches before it follow in a trailer: the checksum covers it, and Kafka's own reader stops before it.
"""

from __future__ import annotations

import struct

from fastcrc.crc32 import iscsi

from chronik.protocol.records.header import LAST_SEQUENCE
from chronik.storage.producers import NO_OFFSET, NO_SEQUENCE, ProducerEntry, ProducerStates, RememberedBatch

SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024
VERSION = 1

_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, transaction start
_ENTRY = struct.Struct(">qhiqiqiq")
_TRAILER_MAGIC = b"CHRK"
_OLDER_HEAD = struct.Struct(">qi")
_OLDER_BATCH = struct.Struct(">iiqqq")


class BadSnapshot(ValueError):
    """A snapshot is torn or not what it should be."""


def encode_snapshot(states: ProducerStates) -> bytes:
    parts: list[bytes] = [_COUNT.pack(len(states.entries))]
    older: list[bytes] = []
    for entry in states.entries.values():
        last = entry.batches[-1] if entry.batches else None
        parts.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last.last_sequence if last else NO_SEQUENCE,
                last.last_offset if last else NO_OFFSET,
                last.last_offset - last.base_offset if last else 0,
                last.timestamp if last else entry.timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
            )
        )
        if len(entry.batches) > 1:
            older.append(_OLDER_HEAD.pack(entry.producer_id, len(entry.batches) - 1))
            older.extend(_OLDER_BATCH.pack(*batch) for batch in entry.batches[:-1])
    if older:
        parts.append(_TRAILER_MAGIC)
        parts.extend(older)
    body = b"".join(parts)
    return _PREFIX.pack(VERSION, iscsi(body)) + body


def decode_snapshot(raw: bytes, now_ms: int) -> ProducerStates:
    """The state that a snapshot holds; silence is counted from `now_ms`. Raises BadSnapshot."""
    if len(raw) < _PREFIX.size + _COUNT.size:
        raise BadSnapshot(f"{len(raw)} bytes are too few for a producer snapshot")
    version, crc = _PREFIX.unpack_from(raw)
    if version != VERSION:
        raise BadSnapshot(f"version {version} is not known, only {VERSION} is")
    body = memoryview(raw)[_PREFIX.size :]
    if iscsi(body) != crc:
        raise BadSnapshot("the checksum does not match")
    (count,) = _COUNT.unpack_from(body)
    end = _COUNT.size + count * _ENTRY.size
    if count < 0 or end > len(body):
        raise BadSnapshot(f"{count} producers are announced, {len(body)} bytes are there")
    states = ProducerStates()
    for fields in _ENTRY.iter_unpack(body[_COUNT.size : end]):
        states.add_loaded(_decode_entry(fields, now_ms))
    if bytes(body[end : end + len(_TRAILER_MAGIC)]) == _TRAILER_MAGIC:
        _decode_older(body[end + len(_TRAILER_MAGIC) :], states)
    states.sort_open()
    return states


def _decode_entry(fields: tuple[int, ...], now_ms: int) -> ProducerEntry:
    producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, transaction_start = fields
    entry = ProducerEntry(producer_id, epoch, now_ms)
    entry.coordinator_epoch = coordinator_epoch
    entry.transaction_start = transaction_start
    entry.timestamp = timestamp
    entry.last_offset = last_offset
    if last_sequence >= 0:
        base_sequence = (last_sequence - delta) & LAST_SEQUENCE
        entry.batches.append(RememberedBatch(base_sequence, last_sequence, last_offset - delta, last_offset, timestamp))
    return entry


def _decode_older(trailer: memoryview, states: ProducerStates) -> None:
    position = 0
    while position < len(trailer):
        try:
            producer_id, count = _OLDER_HEAD.unpack_from(trailer, position)
            position += _OLDER_HEAD.size
            batches = [
                RememberedBatch(*_OLDER_BATCH.unpack_from(trailer, position + index * _OLDER_BATCH.size))
                for index in range(count)
            ]
        except struct.error as error:
            raise BadSnapshot("the list of older batches is cut short") from error
        position += count * _OLDER_BATCH.size
        entry = states.entries.get(producer_id)
        if entry is not None:
            entry.batches[:0] = batches
