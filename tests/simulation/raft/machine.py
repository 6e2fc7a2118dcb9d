"""The state machine that the simulated nodes replicate: a running digest of everything applied, in order."""

from __future__ import annotations

import zlib

import msgspec

from chronik.raft.types import Entry, EntryKind


class Machine(msgspec.Struct, array_like=True):
    """Two machines with equal index and digest have applied the same entries in the same order, each once."""

    index: int = 0
    digest: int = 0
    count: int = 0

    def apply(self, entry: Entry) -> None:
        self.index = entry.index
        if entry.kind is EntryKind.DATA:
            self.digest = zlib.crc32(entry.data, self.digest)
            self.count += 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Machine:
        return msgspec.msgpack.decode(data, type=cls)
