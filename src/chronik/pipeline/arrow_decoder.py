"""From raw record batches to Arrow, with numpy: the i-th record of every batch at once.

A record says how long it is, so where a record begins is known only after the one before it. Walking one batch is
therefore a loop; walking many batches side by side is the same loop for all of them, with numpy doing the width. What
is inside the records is then read field by field, all records at once.

Every length is checked: records must fill their batch exactly and fields their record. Where they do not, the
record-by-record decoder of `chronik.protocol.records` is asked to say what is wrong. Checksums are the business of the
client that fetched the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from chronik.pipeline.arrow_schema import CREATE_TIME, HEADERS, LOG_APPEND_TIME, TIMESTAMP, TOPIC_COLUMNS
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import HEADER_SIZE, BatchInfo, Buffer, Compression, decompress, read_records
from chronik.protocol.records.compression import MAX_DECOMPRESSED_BYTES

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

MAX_ROWS = 32_768
"""Rows of one Arrow batch; Spark is fastest with ten to fifty thousand."""

MAX_CHUNK_BYTES = 64 * 1024 * 1024
"""Decompressed bytes that are decoded at once; one batch that is larger is decoded alone."""

_MIN_LOCKSTEP_BATCHES = 16
_MAX_VARINT_BYTES = 10
_MIN_RECORD_BODY_BYTES = 6
_MAX_MS = (2**63 - 1) // 1000
_MIN_MS = -_MAX_MS


class _Fields(NamedTuple):
    """Where the fields of each record lie in the buffer, and its numbers."""

    offset: Ints
    timestamp_ms: Ints
    log_append: npt.NDArray[np.bool_]
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints
    header_count: Ints
    headers_at: Ints
    following: Ints

    def pick(self, index: npt.NDArray[Any] | slice) -> _Fields:
        columns: Any = [column[index] for column in self]
        return _Fields(*columns)


class _Malformed(Exception):
    """Something does not add up; the caller finds out what."""


def decode_batches(
    data: Buffer,
    batches: Sequence[BatchInfo],
    *,
    topic: str,
    partition: int,
    start: int = 0,
    end: int | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of `batches`, which lie in `data`, with offsets from `start` up to, not including, `end`.

    Control batches are left out; batches of aborted transactions are for the caller to leave out. Timestamps beyond
    what microseconds can hold become the largest or smallest that they can. Raises KafkaError for what is malformed.
    """
    names = list(columns) if columns is not None else TOPIC_COLUMNS.names
    schema = pa.schema([TOPIC_COLUMNS.field(name) for name in names])
    for group, buffer, sections in _groups(data, [i for i in batches if i.record_count and not i.is_control]):
        try:
            fields = _locate(buffer, group, sections)
            headers = _locate_headers(buffer, fields) if fields.header_count.any() else None
        except (_Malformed, IndexError):
            raise _diagnosis(data, group) from None
        wanted = fields.offset >= start
        if end is not None:
            wanted &= fields.offset < end
        rows = np.flatnonzero(wanted)
        for first in range(0, len(rows), MAX_ROWS):
            chosen = rows[first : first + MAX_ROWS]
            everything = len(chosen) == chosen[-1] - chosen[0] + 1
            picked = fields.pick(slice(chosen[0], chosen[-1] + 1) if everything else chosen)
            arrays = {name: _column(name, buffer, picked, headers, chosen, topic, partition) for name in names}
            yield pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)


# -- from batches to one buffer ---------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Batches that decode together: one buffer that holds their records sections, and (start, end) of each in it."""

    batches: list[BatchInfo]
    buffer: memoryview
    sections: Ints


def _groups(data: Buffer, batches: Sequence[BatchInfo]) -> Iterator[_Group]:
    """Batches in groups of at most MAX_CHUNK_BYTES, counted after decompression: a topic may compress very well."""
    view = memoryview(data)
    gathered: list[tuple[BatchInfo, Buffer]] = []
    size = 0
    for info in batches:
        part: Buffer = view[info.position + HEADER_SIZE : info.end]
        if info.compression is not Compression.NONE:
            part = decompress(info.compression, part, MAX_DECOMPRESSED_BYTES)
        if gathered and size + len(part) > MAX_CHUNK_BYTES:
            yield _group(view, gathered)
            size = 0
        gathered.append((info, part))
        size += len(part)
    if gathered:
        yield _group(view, gathered)


def _group(view: memoryview, gathered: list[tuple[BatchInfo, Buffer]]) -> _Group:
    """The group of what was gathered, which is given up. Nothing is copied if none is compressed."""
    batches = [info for info, _ in gathered]
    parts = [part for _, part in gathered]
    gathered.clear()  # so that memory holds it once while it is decoded
    if all(info.compression is Compression.NONE for info in batches):
        bounds = [(info.position + HEADER_SIZE, info.end) for info in batches]
        return _Group(batches, view, np.array(bounds, np.int64))
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1]))
    return _Group(batches, memoryview(b"".join(parts)), np.stack((starts, ends), axis=1))


# -- where things are -------------------------------------------------------------------------------------------------


def _read_varints(buffer: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The zigzag varints at positions, and the positions after them."""
    first = buffer[at].astype(np.int64)
    raw = first & 0x7F
    after = at + 1
    longer = np.flatnonzero(first >= 0x80)
    shift = 7
    while longer.size:
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise _Malformed
        byte = buffer[after[longer]].astype(np.int64)
        raw[longer] |= (byte & 0x7F) << shift
        after[longer] += 1
        shift += 7
        longer = longer[byte >= 0x80]
    unsigned = raw.view(np.uint64)
    return (unsigned >> np.uint64(1)).view(np.int64) ^ -(raw & 1), after


def _locate(view: memoryview, group: Sequence[BatchInfo], sections: Ints) -> _Fields:
    buffer = np.frombuffer(view, np.uint8)
    counts = np.array([info.record_count for info in group], np.int64)
    if (counts * (_MIN_RECORD_BODY_BYTES + 1) > sections[:, 1] - sections[:, 0]).any():
        raise _Malformed  # before anything is allocated for so many
    body, following = _locate_records(buffer, sections, counts)
    batch = np.repeat(np.arange(len(group)), counts)
    timestamp_delta, at = _read_varints(buffer, body + 1)  # the first byte is the attributes: none are defined
    offset_delta, at = _read_varints(buffer, at)
    key_length, key_at = _read_varints(buffer, at)
    value_length, value_at = _read_varints(buffer, _after(key_at, key_length, following))
    header_count, headers_at = _read_varints(buffer, _after(value_at, value_length, following))
    if (header_count < 0).any() or (header_count * 2 > following - headers_at).any():
        raise _Malformed
    if (headers_at[header_count == 0] != following[header_count == 0]).any():
        raise _Malformed
    last_delta = np.array([info.last_offset_delta for info in group], np.int64)[batch]
    if (offset_delta < 0).any() or (offset_delta > last_delta).any():
        raise _Malformed
    base_timestamp = np.array([info.base_timestamp for info in group], np.int64)
    max_timestamp = np.array([info.max_timestamp for info in group], np.int64)
    log_append = np.array([info.log_append_time for info in group], np.bool_)
    timestamp = np.where(log_append[batch], max_timestamp[batch], base_timestamp[batch] + timestamp_delta)
    base_offset = np.array([info.base_offset for info in group], np.int64)
    return _Fields(
        base_offset[batch] + offset_delta,
        timestamp,
        log_append[batch],
        key_at,
        key_length,
        value_at,
        value_length,
        header_count,
        headers_at,
        following,
    )


def _after(at: Ints, length: Ints, limit: Ints) -> Ints:
    """Where a field of a length, or of none (negative), ends; it must not reach beyond its record."""
    ends = at + np.maximum(length, 0)
    if (length > limit - at).any() or (ends > limit).any():
        raise _Malformed
    return ends


def _locate_records(buffer: Bytes, sections: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Where the body of every record begins and ends: in lockstep while that is worth it, then batch by batch."""
    total = int(counts.sum())
    body = np.empty(total, np.int64)
    following = np.empty(total, np.int64)
    first_row = np.concatenate(([0], np.cumsum(counts)[:-1]))
    order = np.argsort(-counts, kind="stable")
    left = counts[order]
    at = sections[order, 0].copy()
    rows = first_row[order]
    step = 0
    # Batches with records left at each step form a prefix, since the largest come first.
    alive = np.searchsorted(-left, -np.arange(int(left[0]) + 1), side="left")
    while step < left[0] and alive[step] >= _MIN_LOCKSTEP_BATCHES:
        width = int(alive[step])
        length, start = _read_varints(buffer, at[:width])
        if (length < _MIN_RECORD_BODY_BYTES).any() or (length > len(buffer)).any():
            raise _Malformed
        body[rows[:width] + step] = start
        at[:width] = start + length
        following[rows[:width] + step] = at[:width]
        step += 1
    plain = buffer.data
    for place, index in enumerate(order.tolist()):
        position = int(at[place])
        for row in range(int(rows[place]) + step, int(rows[place] + left[place])):
            position = _read_record(plain, position, row, body, following)
        if position != sections[index, 1]:
            raise _Malformed
    return body, following


def _read_record(plain: memoryview, position: int, row: int, body: Ints, following: Ints) -> int:
    byte = plain[position]
    position += 1
    length = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise _Malformed
        byte = plain[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
    if length & 1 or length >> 1 < _MIN_RECORD_BODY_BYTES or length >> 1 > len(plain):
        raise _Malformed
    body[row] = position
    position += length >> 1
    following[row] = position
    return position


class _Headers(NamedTuple):
    """Where the headers lie: those of row r are `first_of[r]` to `first_of[r + 1]`."""

    first_of: Ints
    name_at: Ints
    name_length: Ints
    value_at: Ints
    value_length: Ints


def _locate_headers(view: memoryview, fields: _Fields) -> _Headers:
    """The headers of all records: the j-th header of every record that has so many, at once."""
    buffer = np.frombuffer(view, np.uint8)
    counts = fields.header_count
    first_of = np.concatenate(([0], np.cumsum(counts)))
    total = int(first_of[-1])
    name_at, name_length, value_at, value_length = (np.zeros(total, np.int64) for _ in range(4))
    rows = np.flatnonzero(counts)
    at = fields.headers_at[rows]
    limit = fields.following[rows]
    step = 0
    while rows.size:
        length, start = _read_varints(buffer, at)
        if (length < 0).any():
            raise _Malformed
        content_length, content = _read_varints(buffer, _after(start, length, limit))
        index = first_of[rows] + step
        name_at[index], name_length[index], value_at[index], value_length[index] = (
            start,
            length,
            content,
            content_length,
        )
        at = _after(content, content_length, limit)
        step += 1
        more = counts[rows] > step
        if (at[~more] != limit[~more]).any():
            raise _Malformed
        rows, at, limit = rows[more], at[more], limit[more]
    return _Headers(first_of, name_at, name_length, value_at, value_length)


# -- columns ----------------------------------------------------------------------------------------------------------


def _column(
    name: str,
    view: memoryview,
    fields: _Fields,
    headers: _Headers | None,
    rows: npt.NDArray[np.intp],
    topic: str,
    partition: int,
) -> pa.Array:
    count = len(fields.offset)
    if name == "key":
        return _gather(view, fields.key_at, fields.key_length, pa.binary())
    if name == "value":
        return _gather(view, fields.value_at, fields.value_length, pa.binary())
    if name == "topic":
        text = topic.encode()
        ends = np.arange(count + 1, dtype=np.int32) * len(text)
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])
    if name == "partition":
        return pa.array(np.full(count, partition, np.int32))
    if name == "offset":
        return pa.array(fields.offset)
    if name == "timestamp":
        microseconds = np.clip(fields.timestamp_ms, _MIN_MS, _MAX_MS) * 1000
        return pa.Array.from_buffers(TIMESTAMP, count, [None, pa.py_buffer(microseconds)])
    if name == "timestampType":
        return pa.array(np.where(fields.log_append, LOG_APPEND_TIME, CREATE_TIME).astype(np.int32))
    return _headers_column(view, headers, rows)


def _gather(view: memoryview, at: Ints, length: Ints, kind: pa.DataType) -> pa.Array:
    """Bytes at positions as an Arrow column, copied once by Arrow.

    The buffer is given to Arrow as an array that alternates between what is wanted and what lies between.
    """
    count = len(at)
    if not count:
        return pa.array([], kind)
    ends = np.empty(2 * count, np.int32)
    ends[0::2] = at
    ends[1::2] = at + np.maximum(length, 0)
    alternating = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(ends), pa.py_buffer(view)])
    missing = length < 0
    wanted = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=missing if missing.any() else None)
    return alternating.take(wanted)


def _headers_column(view: memoryview, headers: _Headers | None, rows: npt.NDArray[np.intp]) -> pa.Array:
    """Lists of headers; a record without any has NULL, as with Spark's Kafka source."""
    if headers is None:
        return pa.nulls(len(rows), HEADERS)
    counts = headers.first_of[rows + 1] - headers.first_of[rows]
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    if not ends[-1]:
        return pa.nulls(len(rows), HEADERS)
    index = np.repeat(headers.first_of[rows] - ends[:-1], counts) + np.arange(int(ends[-1]))
    names = _as_text(_gather(view, headers.name_at[index], headers.name_length[index], pa.binary()))
    contents = _gather(view, headers.value_at[index], headers.value_length[index], pa.binary())
    pairs = pa.StructArray.from_arrays([names, contents], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(ends), pairs, mask=pa.array(counts == 0)).cast(HEADERS)


def _as_text(names: pa.Array) -> pa.Array:
    """Names of headers; what is no UTF-8 in them is replaced, as Java does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


def _diagnosis(data: Buffer, group: Sequence[BatchInfo]) -> KafkaError:
    """Have the record-by-record decoder say what is wrong."""
    view = memoryview(data)
    for info in group:
        try:
            read_records(view[info.position : info.end])
        except KafkaError as error:
            return KafkaError(error.code, f"the batch at offset {info.base_offset} cannot be read: {error.message}")
    return KafkaError(
        ErrorCode.INVALID_RECORD,
        f"a batch at offsets {group[0].base_offset} to {group[-1].last_offset} holds records that do not add up",
    )
