"""Record batches made in advance, so that building them is not what a benchmark measures.

All messages of a load have one size, so a batch of k messages is the beginning of the fullest batch with another
header. Per send only the header is written and the checksum taken. The first message of a batch can carry the times at
which its messages were due, for whoever reads them.
"""

from __future__ import annotations

import random
import struct

from chronik.protocol.records import Compression, Record, build_batch
from chronik.protocol.records.compression import compress
from chronik.protocol.records.header import (
    CRC_POSITION,
    CRC_START,
    CURRENT_MAGIC,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    crc32c,
)
from chronik.protocol.records.reading import batch_payload
from chronik.protocol.records.varint import read_varint

LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DUE_TIMES = struct.Struct(">4sqq")
DUE_MARK = b"cbt1"
"""Begins a value that tells when the messages of its batch were due: the first, and the step in nanoseconds."""

MAX_RECORDS = 50_000
CACHED_COMPRESSIONS = 256

_CRC = struct.Struct(">I")
_FIRST_RECORD_PREFIX_MAX = 16


class BatchMaker:
    """Makes batches of up to `max_records` equal-sized messages."""

    def __init__(
        self,
        message_bytes: int,
        batch_bytes: int,
        *,
        compression: Compression = Compression.NONE,
        transactional: bool = False,
        seed: int = 1,
    ) -> None:
        if message_bytes < 0:
            raise ValueError(f"a message of {message_bytes} bytes cannot be made; use 0 or more")
        self._compression = compression
        self._attributes = int(compression) | (TRANSACTIONAL_FLAG if transactional else 0)
        source = random.Random(seed)
        one = len(_section(message_bytes, 1, source)[0])
        self.max_records = min(max((batch_bytes - HEADER_SIZE) // max(one, 1), 1), MAX_RECORDS)
        self._section, self._ends = _section(message_bytes, self.max_records, source)
        self._compressed: dict[int, bytes] = {}
        self._can_stamp = message_bytes >= DUE_TIMES.size
        self._value_at = _value_position(self._section)

    def make(
        self,
        count: int,
        timestamp_ms: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        due_ns: int | None = None,
        step_ns: int = 0,
    ) -> bytearray:
        """A batch of `count` messages. With `due_ns` the first tells when they were due, if it is large enough."""
        batch = bytearray(HEADER_SIZE)
        stamped = due_ns is not None and self._can_stamp
        if stamped:
            DUE_TIMES.pack_into(self._section, self._value_at, DUE_MARK, due_ns, step_ns)
        batch += self._records(count, fresh=stamped)
        HEADER.pack_into(
            batch,
            0,
            0,
            len(batch) - LOG_OVERHEAD,
            -1,
            CURRENT_MAGIC,
            0,
            self._attributes,
            count - 1,
            timestamp_ms,
            timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
        return batch

    def _records(self, count: int, *, fresh: bool) -> bytes | memoryview:
        plain = memoryview(self._section)[: self._ends[count - 1]]
        if self._compression is Compression.NONE:
            return plain
        if fresh:
            return compress(self._compression, plain)
        known = self._compressed.get(count)
        if known is None:
            known = compress(self._compression, plain)
            if len(self._compressed) < CACHED_COMPRESSIONS:
                self._compressed[count] = known
        return known


def due_times(batch: memoryview) -> tuple[int, int] | None:
    """When the messages of a batch were due, as (first, step) in nanoseconds; None if it does not say."""
    _, payload = batch_payload(batch)
    position = _value_position(payload)
    if len(payload) < position + DUE_TIMES.size:
        return None
    mark, due_ns, step_ns = DUE_TIMES.unpack_from(payload, position)
    return (due_ns, step_ns) if mark == DUE_MARK else None


def _section(message_bytes: int, count: int, source: random.Random) -> tuple[bytearray, list[int]]:
    """The records of the fullest batch, and where each ends. Letters at random, as Kafka's own tool sends."""
    records = [Record(index, 0, None, bytes(source.choices(LETTERS, k=message_bytes)), []) for index in range(count)]
    section = build_batch(records)[HEADER_SIZE:]
    ends: list[int] = []
    position = 0
    head = bytes(section)
    for _ in range(count):
        length, start = read_varint(head, position)
        position = start + length
        ends.append(position)
    return section, ends


def _value_position(section: bytes | bytearray) -> int:
    """Where the value of the first record begins: after length, attributes, two deltas, no key, and its length."""
    head = bytes(section[:_FIRST_RECORD_PREFIX_MAX])
    _, position = read_varint(head, 0)
    position += 1
    for _ in range(4):
        _, position = read_varint(head, position)
    return position
