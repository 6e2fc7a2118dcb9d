"""Snapshots on disk: written aside, synced, renamed into place, checksummed, the last two kept.

    file     magic, header length u32, header crc u32, header (msgpack `SnapshotMeta`), data

A snapshot that arrives from a leader in chunks is written to a file of its own (`.part`), verified as a whole, and only
then takes its place. What is not here: the log (`wal.py`), and which snapshot goes with which log (`storage.py`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from chronik.raft.files import AppendFile, FileSystem
from chronik.raft.types import SnapshotChunk, SnapshotMeta

log = structlog.get_logger()

SNAPSHOTS_KEPT = 2
SNAPSHOT_CHUNK_BYTES = 1024 * 1024
_FAMILY = b"CHRSNAP"
_VERSION = b"1"
_MAGIC = _FAMILY + _VERSION
_LENGTHS = struct.Struct("<II")
_PREFIX = "snapshot-"
_SUFFIX = ".snap"
_PART_SUFFIX = ".part"
_CORRUPT_SUFFIX = ".corrupt"


class SnapshotCorrupt(Exception):
    """The file or the received bytes are not the snapshot they claim to be."""


class SnapshotTooNew(Exception):
    """A newer version wrote the file, and this one cannot read it. Nothing was changed."""


_decode_meta = msgspec.msgpack.Decoder(SnapshotMeta).decode


def _header(meta: SnapshotMeta) -> bytes:
    header = msgspec.msgpack.encode(meta)
    return _MAGIC + _LENGTHS.pack(len(header), zlib.crc32(header)) + header


def _name(meta: SnapshotMeta) -> str:
    return f"{_PREFIX}{meta.index:020d}-{meta.term:010d}{_SUFFIX}"


def _too_new(path: Path) -> str:
    return f"{path} was written by a newer Chronik. Nothing was changed; start this node with the newer version again"


class _Incoming(msgspec.Struct):
    meta: SnapshotMeta
    path: Path
    file: AppendFile
    received: int = 0
    checksum: int = 0


class SnapshotStore:
    """The snapshots in one folder. All calls block."""

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        self._fs = fs
        self._folder = folder
        self._kept: list[SnapshotMeta] = []
        self._header_bytes: dict[tuple[int, int], int] = {}
        self._incoming: _Incoming | None = None

    @property
    def kept(self) -> list[SnapshotMeta]:
        """Intact snapshots on disk, oldest first."""
        return list(self._kept)

    def open(self) -> tuple[SnapshotMeta, bytes] | None:
        """The newest intact snapshot with its data. Damaged ones are set aside under another name, and logged."""
        names = self._fs.names(self._folder)
        for name in names:
            if name.endswith((_PART_SUFFIX, ".tmp")):
                self._fs.remove(self._folder / name)
        newest: tuple[SnapshotMeta, bytes] | None = None
        for name in sorted(n for n in names if n.startswith(_PREFIX) and n.endswith(_SUFFIX)):
            try:
                meta, data = self._load(self._folder / name)
            except SnapshotCorrupt as error:
                log.error("set a damaged snapshot aside", file=name, reason=str(error))
                self._fs.rename(self._folder / name, self._folder / (name + _CORRUPT_SUFFIX))
                continue
            self._kept.append(meta)
            newest = (meta, data)
        self._fs.sync_folder(self._folder)
        return newest

    def _load(self, path: Path) -> tuple[SnapshotMeta, bytes]:
        content = self._fs.read(path)
        start = len(_MAGIC) + _LENGTHS.size
        version = content[len(_FAMILY) : len(_MAGIC)]
        if content.startswith(_FAMILY) and version > _VERSION:
            raise SnapshotTooNew(_too_new(path))
        if len(content) < start or not content.startswith(_MAGIC):
            raise SnapshotCorrupt(f"{path} does not begin as a snapshot does")
        length, crc = _LENGTHS.unpack_from(content, len(_MAGIC))
        header = content[start : start + length]
        if len(header) < length or zlib.crc32(header) != crc:
            raise SnapshotCorrupt(f"the header of {path} does not match its checksum")
        try:
            meta = _decode_meta(header)
        except msgspec.DecodeError as error:
            raise SnapshotTooNew(_too_new(path)) from error
        data = content[start + length :]
        if len(data) != meta.size or zlib.crc32(data) != meta.checksum or _name(meta) != path.name:
            raise SnapshotCorrupt(f"the data of {path} does not match its checksum")
        self._header_bytes[(meta.index, meta.term)] = start + length
        return meta, data

    def write(self, meta: SnapshotMeta, data: Sequence[bytes | bytearray | memoryview]) -> SnapshotMeta:
        """Stores a snapshot taken here; returns its meta with size and checksum filled in."""
        checksum = 0
        for buffer in data:
            checksum = zlib.crc32(buffer, checksum)
        meta = msgspec.structs.replace(meta, size=sum(len(buffer) for buffer in data), checksum=checksum)
        path = self._folder / (_name(meta) + ".tmp")
        if self._fs.exists(path):
            self._fs.remove(path)
        header = _header(meta)
        try:
            file = self._fs.open_append(path)
            try:
                file.append([header, *data])
                file.sync()
            finally:
                file.close()
        except OSError:
            if self._fs.exists(path):  # half a snapshot on a full disk helps nobody
                self._fs.remove(path)
            raise
        self._place(path, meta, len(header))
        return meta

    def _place(self, path: Path, meta: SnapshotMeta, header_bytes: int) -> None:
        self._fs.rename(path, self._folder / _name(meta))
        self._fs.sync_folder(self._folder)
        self._header_bytes[(meta.index, meta.term)] = header_bytes
        self._kept = sorted((m for m in self._kept if m.index != meta.index), key=lambda m: m.index)
        self._kept.append(meta)
        self._kept.sort(key=lambda m: m.index)

    def read(self, index: int, term: int) -> bytes:
        """The data of a kept snapshot, verified."""
        for meta in self._kept:
            if (meta.index, meta.term) == (index, term):
                return self._load(self._folder / _name(meta))[1]
        raise SnapshotCorrupt(f"no snapshot of index {index} and term {term} is kept here")

    def read_chunk(self, index: int, term: int, offset: int, max_bytes: int) -> SnapshotChunk:
        """A piece of a kept snapshot for a follower. Not available when the snapshot is gone or `offset` is past it."""
        for meta in self._kept:
            if (meta.index, meta.term) == (index, term) and 0 <= offset <= meta.size:
                length = min(max_bytes, SNAPSHOT_CHUNK_BYTES, meta.size - offset)
                position = self._header_bytes[(index, term)] + offset
                data = self._fs.read(self._folder / _name(meta), position, length) if length else b""
                return SnapshotChunk(offset, meta.size, data)
        return SnapshotChunk(offset, 0, b"", available=False)

    def prune(self, pinned: set[int]) -> SnapshotMeta | None:
        """Removes all but the last two and those whose index is `pinned`; returns the oldest of the last two."""
        for meta in self._kept[:-SNAPSHOTS_KEPT]:
            if meta.index not in pinned:
                self._fs.remove(self._folder / _name(meta))
                self._kept.remove(meta)
                self._header_bytes.pop((meta.index, meta.term), None)
        return self._kept[-SNAPSHOTS_KEPT:][0] if self._kept else None

    # --- a snapshot that arrives in pieces -----------------------------------------------------------------------

    def receive(self, meta: SnapshotMeta) -> int:
        """Begins, or goes on, receiving `meta`; returns the offset of the next byte wanted."""
        if self._incoming is not None and self._incoming.meta == meta:
            return self._incoming.received
        self.stop_receiving()
        path = self._folder / (_name(meta) + _PART_SUFFIX)
        if self._fs.exists(path):
            self._fs.remove(path)
        self._incoming = _Incoming(meta, path, self._fs.open_append(path))
        self._incoming.file.append([_header(meta)])
        return 0

    def receive_chunk(self, offset: int, data: bytes | memoryview) -> int:
        """Takes the next piece; returns the offset of the next byte wanted."""
        incoming = self._incoming
        if incoming is None or offset != incoming.received or offset + len(data) > incoming.meta.size:
            self.stop_receiving()
            raise SnapshotCorrupt(f"a snapshot chunk at offset {offset} does not follow what was received")
        incoming.file.append([data])
        incoming.checksum = zlib.crc32(data, incoming.checksum)
        incoming.received += len(data)
        return incoming.received

    def finish_receiving(self, meta: SnapshotMeta) -> None:
        """All pieces are here: verifies and syncs them. They take their place with `install`."""
        incoming = self._incoming
        if incoming is None or incoming.meta != meta or incoming.received != meta.size:
            raise SnapshotCorrupt("the snapshot was not received whole")
        if incoming.checksum != meta.checksum:
            self.stop_receiving()
            raise SnapshotCorrupt("the received snapshot does not match its checksum")
        incoming.file.sync()

    def install(self, meta: SnapshotMeta) -> bytes:
        """Puts a received snapshot in its place and returns its data."""
        incoming = self._incoming
        if incoming is None or incoming.meta != meta or incoming.received != meta.size:
            raise SnapshotCorrupt(f"snapshot {meta.index} was to be installed but was not received")
        incoming.file.close()
        self._incoming = None
        self._place(incoming.path, meta, len(_header(meta)))
        return self.read(meta.index, meta.term)

    def stop_receiving(self) -> None:
        """Throws away what was received so far."""
        if self._incoming is not None:
            self._incoming.file.close()
            self._fs.remove(self._incoming.path)
            self._incoming = None
