"""Walking the batches of a log file from header to header, in bounded memory, with or without their checksums.

Used by threads: recovery, searches by time, producer-state replay, compaction. The read path for clients is in
`segment` and `log_reads`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fastcrc.crc32 import iscsi

from chronik.protocol.errors import KafkaError
from chronik.protocol.records import HEADER_SIZE, BatchInfo, parse_header
from chronik.protocol.records.header import CURRENT_MAGIC
from chronik.storage.epochs import NO_EPOCH, EpochCache
from chronik.storage.files import Buffer, File

WALK_CHUNK_BYTES = 1024 * 1024
"""Read at a time when every byte matters (checksums)."""

HEADERS_CHUNK_BYTES = 16 * 1024
"""Read at a time when only headers matter; larger batches are stepped over."""

FRAME = struct.Struct(">qi11xi")
"""Base offset, length, last offset delta: what finding a position needs of a header."""

LENGTH_OVERHEAD = 12

_CHECKED_FRAME = struct.Struct(">qiib6xi")
NO_LIMIT = (1 << 63) - 1
SMALLEST_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD

_CRC = struct.Struct(">I")
_CRC_AT = 17
_CRC_FROM = 21
_MAGIC = b"\x02"
_MAGIC_AT = 16
_OFFSET_BYTES = 8


class DamagedBatch(Exception):
    """The bytes at `position` are not a whole, valid batch."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason


def walk(
    file: File, start: int, end: int, *, check_crc: bool, floor: int = 0, limit: int = NO_LIMIT
) -> Iterator[BatchInfo]:
    """Yield the batches between two positions; `BatchInfo.position` is the position in the file.

    Offsets ascend, from `floor` on, and stay below `limit`. The checksum does not cover them: one that leaps ahead of
    the batch behind it is damage as well. Raises DamagedBatch at the first that is torn or wrong. Memory stays at one
    chunk, whatever a batch claims.
    """
    chunk_bytes = WALK_CHUNK_BYTES if check_crc else HEADERS_CHUNK_BYTES
    position = chunk_start = start
    chunk = b""
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk = file.read_at(position, min(chunk_bytes, end - position))
            chunk_start, at = position, 0
            if len(chunk) < HEADER_SIZE:
                raise DamagedBatch(position, f"{len(chunk)} bytes are left, too few for a batch header")
        try:
            info = parse_header(chunk, at)
        except KafkaError as error:
            raise DamagedBatch(position, error.message) from error
        if info.size > end - position:
            raise DamagedBatch(position, f"the batch claims {info.size} bytes, {end - position} are left")
        if check_crc:
            if at + info.size > len(chunk) and info.size <= chunk_bytes:
                chunk = file.read_at(position, min(chunk_bytes, end - position))
                chunk_start, at = position, 0
            (stored,) = _CRC.unpack_from(chunk, at + _CRC_AT)
            if batch_crc(file, position, info.size, chunk, at) != stored:
                raise DamagedBatch(position, f"the batch of offset {info.base_offset} fails its CRC-32C check")
        info.position = position
        if info.base_offset != floor:
            _check_order(file, info, floor, end)
        floor = info.base_offset + info.last_offset_delta + 1
        if floor > limit:
            raise DamagedBatch(position, f"offset {floor - 1} does not belong before {limit}")
        yield info
        position += info.size


def _check_order(file: File, batch: BatchInfo, floor: int, end: int) -> None:
    """A batch that does not follow the one before it closely: a gap of compaction, or a damaged offset?"""
    if batch.base_offset < floor:
        raise DamagedBatch(batch.position, f"offset {batch.base_offset} comes after {floor - 1}")
    following = batch_after(file, batch, end)
    if following is not None and floor <= following.base_offset <= batch.last_offset:
        raise DamagedBatch(
            batch.position, f"offset {batch.last_offset} comes before {following.base_offset}: it was damaged"
        )


def batch_after(file: File, batch: BatchInfo, end: int) -> BatchInfo | None:
    """The header of the next batch, if a whole and valid one follows."""
    position = batch.position + batch.size
    following = header_at(file, position) if position < end else None
    if following is None or position + following.size > end:
        return None
    header = file.read_at(position, HEADER_SIZE)
    (stored,) = _CRC.unpack_from(header, _CRC_AT)
    return following if batch_crc(file, position, following.size, header, 0) == stored else None


def header_at(file: File, position: int) -> BatchInfo | None:
    """The header of the batch at a position, or None when there is none."""
    raw = file.read_at(position, HEADER_SIZE)
    try:
        return parse_header(raw)
    except KafkaError:
        return None


def batch_crc(file: File, position: int, size: int, chunk: bytes, at: int) -> int:
    """CRC-32C of a batch that begins at `at` of `chunk`; what the chunk lacks is read piece by piece."""
    crc: int = iscsi(memoryview(chunk)[at + _CRC_FROM : at + size])
    done = min(len(chunk) - at, size)
    while done < size:
        piece = file.read_at(position + done, min(WALK_CHUNK_BYTES, size - done))
        if not piece:
            return -1
        crc = iscsi(piece, crc)
        done += len(piece)
    return crc


def valid_prefix(data: Buffer, size: int, offset: int, limit: int, epochs: EpochCache) -> tuple[int, int, str | None]:
    """(bytes of whole and valid batches, offset after them, what is wrong after them) at the start of `data`.

    Of `data` the first `size` bytes count; what follows them, if anything, is the beginning of the next batch. The
    reader asked for `offset`, all offsets are below `limit`. An incomplete batch at the end is nothing wrong. The
    offset is −1 when there is no valid batch. What the checksum does not cover is compared with what else is known:
    the offsets of the neighbours, the epochs that the log remembers.
    """
    view = memoryview(data)
    position = 0
    next_offset = -1
    while size - position >= HEADER_SIZE:
        base_offset, length, epoch, magic, last_delta = _CHECKED_FRAME.unpack_from(view, position)
        if length < SMALLEST_LENGTH or magic != CURRENT_MAGIC:
            return position, next_offset, f"a batch claims a length of {length} and magic {magic}"
        following = position + LENGTH_OVERHEAD + length
        if following > size:
            break
        (stored,) = _CRC.unpack_from(view, position + _CRC_AT)
        if iscsi(view[position + _CRC_FROM : following]) != stored:
            return position, next_offset, f"the batch of offset {base_offset} fails its CRC-32C check"
        known_epoch = epochs.at(base_offset)
        if known_epoch not in (epoch, NO_EPOCH):
            return position, next_offset, f"offset {base_offset} claims epoch {epoch}, it was written in {known_epoch}"
        after = base_offset + last_delta + 1
        bound = limit
        if base_offset > (offset if next_offset < 0 else next_offset) and following + _OFFSET_BYTES <= len(view):
            bound = int.from_bytes(view[following : following + _OFFSET_BYTES], "big", signed=True)
        if after > bound or base_offset < next_offset:
            return position, next_offset, f"offset {base_offset} is not in its place"
        next_offset = after
        position = following
    return position, next_offset, None


def find_next_batch(file: File, start: int, end: int, offsets: range) -> int | None:
    """Position of the first whole, valid batch after damage, with a base offset in `offsets`; None when there is none.

    Looks at every place where the magic byte could be. Slow, but only ever used on a damaged file.
    """
    position = start
    while end - position >= HEADER_SIZE:
        chunk = file.read_at(position, min(WALK_CHUNK_BYTES, end - position))
        if len(chunk) < HEADER_SIZE:
            return None
        last = len(chunk) - HEADER_SIZE
        at = chunk.find(_MAGIC, _MAGIC_AT)
        while at >= 0 and at - _MAGIC_AT <= last:
            candidate = at - _MAGIC_AT
            base_offset, length, _ = FRAME.unpack_from(chunk, candidate)
            if length >= SMALLEST_LENGTH and base_offset in offsets:
                size = LENGTH_OVERHEAD + length
                (stored,) = _CRC.unpack_from(chunk, candidate + _CRC_AT)
                if (
                    position + candidate + size <= end
                    and batch_crc(file, position + candidate, size, chunk, candidate) == stored
                ):
                    return position + candidate
            at = chunk.find(_MAGIC, at + 1)
        position += last + 1
    return None
