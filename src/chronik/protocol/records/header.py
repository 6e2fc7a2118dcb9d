"""The header of a record batch (magic 2): parsing, checking its frame, and the only two fields a broker rewrites.

Everything here looks at the 61 header bytes and the checksum, never at the records: this is the part of the record
format that the hot path of a broker needs. Records themselves are in `reading` and `building`, the formats before
magic 2 in `message_sets`, the rules for what a client may send in `produce_rules`.

Layout, big-endian; the CRC-32C covers everything from `attributes` (byte 21) to the end of the batch:

    0 base_offset q | 8 length i | 12 leader_epoch i | 16 magic b | 17 crc I | 21 attributes h | 23 last_offset_delta i
    27 base_timestamp q | 35 max_timestamp q | 43 producer_id q | 51 producer_epoch h | 53 base_sequence i
    57 record_count i | 61 records
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from fastcrc.crc32 import iscsi

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records.compression import Compression

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_SIZE = 61
LOG_OVERHEAD = 12  # base_offset and length, which the length field does not count
MAGIC_POSITION = 16
CRC_POSITION = 17
CRC_START = 21
CURRENT_MAGIC = 2

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

LAST_SEQUENCE = 0x7FFFFFFF
"""After it, sequences begin at 0 again."""

crc32c: Callable[[Buffer], int] = iscsi  # the Castagnoli polynomial; takes a view without copying it

HEADER = struct.Struct(">qiibIhiqqqhii")
_STAMP_OFFSET = struct.Struct(">q")
_STAMP_EPOCH = struct.Struct(">i")
_LENGTH = struct.Struct(">i")
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD


class BatchInfo(msgspec.Struct, gc=False):
    """What the header of one batch says, and where in its buffer the batch lies."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def end(self) -> int:
        """Position of the first byte after the batch."""
        return self.position + self.size

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & LAST_SEQUENCE

    @property
    def compression(self) -> Compression:
        """The codec of the records; KafkaError(UNSUPPORTED_COMPRESSION_TYPE) when no such codec exists."""
        return Compression.of_attributes(self.attributes)

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the tombstones and markers of this batch; kept in the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None


def next_sequence(last: int) -> int:
    """The sequence that follows, 0 after none at all (−1)."""
    return (last + 1) & LAST_SEQUENCE


def parse_batches(buf: Buffer, *, check_crc: bool = True, allow_partial: bool = False) -> list[BatchInfo]:
    """Parse the headers of all batches in `buf`, in one walk.

    Every byte must belong to a whole batch of magic 2, unless `allow_partial`: then an incomplete batch at the end, as
    brokers may send in a Fetch response, is left out. What a batch claims about itself is checked for consistency
    (length, magic, checksum, counts), its records are not looked at.

    Raises KafkaError: CORRUPT_MESSAGE for broken framing or checksum, UNSUPPORTED_FOR_MESSAGE_FORMAT for another
    magic, INVALID_RECORD for impossible counts.
    """
    view = buf if type(buf) is memoryview else memoryview(buf)
    end = len(view)
    position = 0
    found: list[BatchInfo] = []
    unpack = HEADER.unpack_from
    while position < end:
        if end - position < HEADER_SIZE:
            if allow_partial and _is_cut_short(view, position):
                break
            raise _refusal(view, position)
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = unpack(view, position)
        following = position + LOG_OVERHEAD + length
        if magic != CURRENT_MAGIC or length < _MIN_LENGTH or following > end:
            if allow_partial and _is_cut_short(view, position):
                break
            raise _refusal(view, position)
        if check_crc and crc32c(view[position + CRC_START : following]) != crc:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at byte {position} fails its CRC-32C check: its bytes changed on the way, send it again",
            )
        if last_offset_delta < 0 or not 0 <= record_count <= last_offset_delta + 1:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"the batch at byte {position} claims {record_count} records "
                f"with a last offset delta of {last_offset_delta}, which cannot be",
            )
        found.append(
            BatchInfo(
                position,
                following - position,
                base_offset,
                leader_epoch,
                attributes,
                last_offset_delta,
                base_timestamp,
                max_timestamp,
                producer_id,
                producer_epoch,
                base_sequence,
                record_count,
            )
        )
        position = following
    return found


def parse_header(buf: Buffer, position: int = 0) -> BatchInfo:
    """Parse one header without looking beyond it: for readers that have only the header bytes in hand.

    The checksum is not checked and the batch may end after `buf`. Raises KafkaError as `parse_batches` does.
    """
    view = memoryview(buf)
    if len(view) - position < HEADER_SIZE:
        raise _refusal(view, position)
    fields = HEADER.unpack_from(view, position)
    length, magic, last_offset_delta, record_count = fields[1], fields[3], fields[6], fields[12]
    if magic != CURRENT_MAGIC or length < _MIN_LENGTH:
        raise _refusal(view, position)
    if last_offset_delta < 0 or not 0 <= record_count <= last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch at byte {position} claims {record_count} records "
            f"with a last offset delta of {last_offset_delta}, which cannot be",
        )
    return BatchInfo(position, LOG_OVERHEAD + length, fields[0], fields[2], *fields[5:])


def batch_magic(buf: Buffer) -> int:
    """The magic byte of the first batch or message in `buf`; it lies at the same place in every format."""
    if len(buf) <= MAGIC_POSITION:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{len(buf)} bytes are too few for any record format, which needs at least {MAGIC_POSITION + 1}",
        )
    return buf[MAGIC_POSITION]


def stamp(buf: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write offset and leader epoch into the header of the batch at `position`, the fields the CRC does not cover.

    Bytes 0–7 and 12–15 of the batch change, nothing else.
    """
    _STAMP_OFFSET.pack_into(buf, position, base_offset)
    _STAMP_EPOCH.pack_into(buf, position + LOG_OVERHEAD, leader_epoch)


def _is_cut_short(view: memoryview, position: int) -> bool:
    """Whether what lies at `position` is the beginning of a batch whose end is missing."""
    left = len(view) - position
    if left < LOG_OVERHEAD:
        return True
    (length,) = _LENGTH.unpack_from(view, position + 8)
    if length < _MIN_LENGTH or LOG_OVERHEAD + length <= left:
        return False
    return left <= MAGIC_POSITION or view[position + MAGIC_POSITION] == CURRENT_MAGIC


def _refusal(view: memoryview, position: int) -> KafkaError:
    """Say what is wrong with the frame of the batch at `position`."""
    left = len(view) - position
    if left > MAGIC_POSITION:
        magic = view[position + MAGIC_POSITION]
        if magic != CURRENT_MAGIC:
            return KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"the batch at byte {position} has magic {magic}, only record batches of magic 2 are read here",
            )
    if left >= LOG_OVERHEAD:
        (length,) = _LENGTH.unpack_from(view, position + 8)
        if length < _MIN_LENGTH:
            return KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at byte {position} claims a length of {length}, the smallest batch has {_MIN_LENGTH}",
            )
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch at byte {position} claims a length of {length} but only {left - LOG_OVERHEAD} bytes follow",
        )
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{left} bytes are left at byte {position}, too few for a batch of at least {HEADER_SIZE} bytes",
    )
