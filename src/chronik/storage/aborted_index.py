"""The `.txnindex` of a segment: which transactions with records here were aborted, in Kafka's format.

34 bytes per entry: version (i16), producer id, first offset, last offset (that of the marker), and the last stable
offset when the entry was written (i64 each). Only segments with an aborted transaction have the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

ABORTED_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join([ABORTED_ENTRY.pack(_VERSION, *entry) for entry in entries])


def decode_aborted(raw: bytes) -> list[AbortedTransaction]:
    """The whole entries of a file; a torn one at the end is left out, recovery writes it again."""
    entries: list[AbortedTransaction] = []
    for version, *fields in ABORTED_ENTRY.iter_unpack(raw[: len(raw) - len(raw) % ABORTED_ENTRY.size]):
        if version != _VERSION:
            break
        entries.append(AbortedTransaction(*fields))
    return entries
