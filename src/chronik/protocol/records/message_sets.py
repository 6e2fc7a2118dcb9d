"""Message sets of magic 0 and 1, the formats before Kafka 0.11: their messages, read and written one by one.

A message set is a row of messages. A compressed one is a *wrapper*: a message whose value is a compressed message set.
Conversion from and to batches of magic 2 is in `legacy`; nothing is ever stored in these formats.

    offset q | size i | crc I | magic b | attributes b | timestamp q (magic 1) | key | value     (CRC-32 from magic on)

Rules of the wrappers:

1. Magic 0: the inner messages carry absolute offsets. Magic 1: they carry offsets relative to the first, and the
   wrapper carries the offset of the last.
2. Magic 1: a wrapper of type LogAppendTime overrides the timestamps of its messages.
3. Magic 0 with lz4: the frame header has the wrong checksum (see `lz4_frames`); a right one is accepted too.
4. Wrappers do not nest, and the messages inside have the magic of the wrapper.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records.compression import MAX_DECOMPRESSED_BYTES, Compression, compress, decompress
from chronik.protocol.records.header import LOG_APPEND_TIME_FLAG, LOG_OVERHEAD, MAGIC_POSITION, NO_TIMESTAMP, Buffer
from chronik.protocol.records.lz4_frames import break_header, repair_header
from chronik.protocol.records.reading import Record

MAX_MESSAGES_PER_SET = 1_000_000
"""The most messages that are taken out of one message set."""

_ENTRY = struct.Struct(">qiIbb")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_CRC = struct.Struct(">I")
_CRC_START = MAGIC_POSITION
_MIN_SIZE = {0: 14, 1: 22}
_NULL = b"\xff\xff\xff\xff"


class Message(msgspec.Struct):
    """One message as it stands in its set; of a wrapper, `value` is the compressed set inside it."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None

    @property
    def compression(self) -> Compression:
        codec = Compression.of_attributes(self.attributes)
        if codec is Compression.ZSTD:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd does not exist in message format {self.magic}; it needs record batches (Produce v7 or newer)",
            )
        return codec

    @property
    def log_append_time(self) -> bool:
        return self.magic > 0 and bool(self.attributes & LOG_APPEND_TIME_FLAG)


def iterate_messages(message_set: Buffer) -> Iterator[Message]:
    """Walk the messages of one level of a set, checking sizes and checksums; wrappers are not opened.

    Raises KafkaError(CORRUPT_MESSAGE) for broken framing or checksum, INVALID_RECORD for another magic.
    """
    view = memoryview(message_set)
    end = len(view)
    position = 0
    while position < end:
        left = end - position
        if left < _ENTRY.size:
            raise _corrupt(position, f"{left} bytes are left, too few for a message")
        offset, size, crc, magic, attributes = _ENTRY.unpack_from(view, position)
        smallest = _MIN_SIZE.get(magic)
        if smallest is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"the message at byte {position} has magic {magic} in a set of magic 0 or 1"
            )
        following = position + LOG_OVERHEAD + size
        if size < smallest or following > end:
            raise _corrupt(position, f"it claims {size} bytes, {left - LOG_OVERHEAD} are there")
        if zlib.crc32(view[position + _CRC_START : following]) != crc:
            raise _corrupt(position, "its CRC-32 does not match, send it again")
        cursor = position + _ENTRY.size
        timestamp = NO_TIMESTAMP
        if magic == 1:
            (timestamp,) = _INT64.unpack_from(view, cursor)
            cursor += 8
        key, cursor = _read_field(view, cursor, following, position)
        value, cursor = _read_field(view, cursor, following, position)
        if cursor != following:
            raise _corrupt(position, f"{following - cursor} bytes follow its value")
        yield Message(offset, magic, attributes, timestamp, key, value)
        position = following


def open_wrapper(wrapper: Message, limit: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompress the message set inside a wrapper, at most `limit` bytes of it."""
    if wrapper.value is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the compressed message at offset {wrapper.offset} has no value")
    codec = wrapper.compression
    data: Buffer = wrapper.value
    if codec is Compression.LZ4 and wrapper.magic == 0:
        data = repair_header(data)
    return decompress(codec, data, limit)


def read_message_set(message_set: Buffer, *, limit: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """All records of a set of magic 0 or 1, wrappers opened, with absolute offsets and the timestamps that hold.

    Messages of magic 0 have no timestamp (−1). `limit` bounds the decompressed bytes of all wrappers together.
    """
    records: list[Record] = []
    magic = None
    for message in iterate_messages(message_set):
        if magic is None:
            magic = message.magic
        elif message.magic != magic:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"a message of magic {message.magic} follows one of magic {magic} in one set"
            )
        if message.compression is Compression.NONE:
            records.append(_record(message, message.offset, message.timestamp))
        else:
            opened = open_wrapper(message, limit)
            limit -= len(opened)
            records += _inner_records(message, opened)
        if len(records) > MAX_MESSAGES_PER_SET:
            raise _too_many()
    return records


def _inner_records(wrapper: Message, message_set: Buffer) -> list[Record]:
    inner: list[Message] = []
    for message in iterate_messages(message_set):
        if message.compression is not Compression.NONE:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"the compressed message at offset {wrapper.offset} holds another compressed message; compress once",
            )
        if message.magic != wrapper.magic:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"the compressed message at offset {wrapper.offset} of magic {wrapper.magic} "
                f"holds a message of magic {message.magic}",
            )
        inner.append(message)
        if len(inner) > MAX_MESSAGES_PER_SET:
            raise _too_many()
    if not inner:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"the compressed message at offset {wrapper.offset} holds no messages"
        )
    base = wrapper.offset - inner[-1].offset if wrapper.magic == 1 else 0
    if wrapper.log_append_time:
        return [_record(message, base + message.offset, wrapper.timestamp) for message in inner]
    return [_record(message, base + message.offset, message.timestamp) for message in inner]


def write_message(
    out: bytearray, magic: int, offset: int, timestamp: int, key: Buffer | None, value: Buffer | None, attributes: int
) -> None:
    """Append one message, with its checksum."""
    start = len(out)
    out += _ENTRY.pack(offset, 0, 0, magic, attributes)
    if magic == 1:
        out += _INT64.pack(timestamp)
    for field in (key, value):
        if field is None:
            out += _NULL
        else:
            out += _INT32.pack(len(field))
            out += field
    _INT32.pack_into(out, start + 8, len(out) - start - LOG_OVERHEAD)
    with memoryview(out) as view:
        crc = zlib.crc32(view[start + _CRC_START :])
    _CRC.pack_into(out, start + LOG_OVERHEAD, crc)


def write_message_set(
    out: bytearray, magic: int, records: list[Record], *, compression: Compression, log_append_time: bool
) -> None:
    """Append `records` as messages of `magic`, in one wrapper when compressed; their headers have no place there."""
    if not records:
        return
    attributes = LOG_APPEND_TIME_FLAG if magic == 1 and log_append_time else 0
    if compression is Compression.NONE:
        for record in records:
            write_message(out, magic, record.offset, record.timestamp, record.key, record.value, attributes)
        return
    inner = bytearray()
    base = records[0].offset if magic == 1 else 0
    for record in records:
        write_message(inner, magic, record.offset - base, record.timestamp, record.key, record.value, attributes)
    packed = compress(compression, inner)
    if compression is Compression.LZ4 and magic == 0:
        packed = break_header(packed)
    newest = max(record.timestamp for record in records)
    write_message(out, magic, records[-1].offset, newest, None, packed, attributes | compression)


def _record(message: Message, offset: int, timestamp: int) -> Record:
    key, value = message.key, message.value
    return Record(offset, timestamp, None if key is None else bytes(key), None if value is None else bytes(value))


def _read_field(view: memoryview, cursor: int, end: int, message_position: int) -> tuple[memoryview | None, int]:
    if end - cursor < 4:
        raise _corrupt(message_position, "a key or value length is cut short")
    (length,) = _INT32.unpack_from(view, cursor)
    cursor += 4
    if length < 0:
        return None, cursor
    if length > end - cursor:
        raise _corrupt(message_position, f"a key or value claims {length} bytes, {end - cursor} are left")
    return view[cursor : cursor + length], cursor + length


def _corrupt(position: int, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the message at byte {position} is broken: {reason}")


def _too_many() -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_RECORD, f"the message set holds more than {MAX_MESSAGES_PER_SET} messages; send smaller sets"
    )
