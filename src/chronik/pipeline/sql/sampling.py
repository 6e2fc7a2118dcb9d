"""Which columns the JSON values of a topic have that were not landed yet: from a sample of its records.

The beginning and the end of what is not landed are looked at, within limits. A field that the sample does not show has
no column yet, and is found in `_rescued`. What was seen once is remembered, so that columns do not come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa

from chronik.client import Cluster
from chronik.pipeline.range_reader import consumer_settings, read_range
from chronik.pipeline.ranges import OffsetRange
from chronik.pipeline.tables.json_rows import decode_exactly
from chronik.pipeline.tables.json_shape import Shape, with_new_fields
from chronik.pipeline.tables.layout import OWN_COLUMNS

SAMPLE_OFFSETS = 2_000
"""Offsets looked at, at each end of what is not landed, of one partition."""

SAMPLE_PARTITIONS = 16


class Sampler:
    """What is known about the values of one topic."""

    def __init__(self) -> None:
        self.shape = Shape()
        self._seen: dict[int, list[tuple[int, int]]] = {}

    def look(self, cluster: Cluster, ranges: Sequence[OffsetRange]) -> None:
        """Look at what is new in the ranges; what was looked at before is not read again."""
        settings = consumer_settings(partition_max_bytes=1024 * 1024)
        for piece in ranges[:SAMPLE_PARTITIONS]:
            for start, end in _ends(piece):
                for fresh in self._fresh(piece.partition, start, end):
                    wanted = OffsetRange(piece.topic, piece.partition, *fresh)
                    for batch in read_range(cluster, wanted, settings, columns=["value"], fail_on_data_loss=False):
                        self._observe(batch.column("value").to_pylist())

    def columns(self, known: pa.Schema) -> pa.Schema:
        """The columns of the table, and those that the sample adds."""
        return with_new_fields(known, self.shape, OWN_COLUMNS)

    def _observe(self, values: Iterable[bytes | None]) -> None:
        for value in values:
            if value is None:
                continue
            try:
                document = decode_exactly(value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if type(document) is dict:
                self.shape.observe(document)

    def _fresh(self, partition: int, start: int, end: int) -> list[tuple[int, int]]:
        """The part of a range that was not looked at before, from behind the last that was."""
        seen = self._seen.setdefault(partition, [])
        for first, last in seen:
            if first <= start < last:
                start = min(last, end)
        if start >= end:
            return []
        seen.append((start, end))
        seen.sort()
        merged: list[tuple[int, int]] = []
        for first, last in seen:
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        self._seen[partition] = merged
        return [(start, end)]


def _ends(piece: OffsetRange) -> list[tuple[int, int]]:
    if piece.size <= 2 * SAMPLE_OFFSETS:
        return [(piece.start, piece.end)]
    return [(piece.start, piece.start + SAMPLE_OFFSETS), (piece.end - SAMPLE_OFFSETS, piece.end)]
