"""Ranges of offsets, and how they are dealt out to tasks. Pure: no broker is asked here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chronik.client.metadata import TopicPartition

OFFSETS_PER_TASK = 100_000
"""Ranges smaller than this share a task until it holds so many; a task of its own costs more than reading them."""

MAX_RANGES_PER_TASK = 512


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def deal(ranges: Iterable[OffsetRange], min_tasks: int = 0) -> list[list[OffsetRange]]:
    """The ranges of each task: small ones together, large ones split while there are fewer than `min_tasks`."""
    pieces = [piece for piece in ranges if piece.size]
    if min_tasks:
        pieces = _split(pieces, min_tasks)
        limit = max(sum(piece.size for piece in pieces) // max(min_tasks, 1), 1)
    else:
        limit = OFFSETS_PER_TASK
    tasks: list[list[OffsetRange]] = []
    gathered = 0
    for piece in sorted(pieces, key=lambda piece: (piece.topic, piece.partition, piece.start)):
        if tasks and gathered + piece.size <= limit and len(tasks[-1]) < MAX_RANGES_PER_TASK:
            tasks[-1].append(piece)
            gathered += piece.size
        else:
            tasks.append([piece])
            gathered = piece.size
    return tasks


def _split(ranges: Sequence[OffsetRange], min_tasks: int) -> list[OffsetRange]:
    """Split ranges in proportion to their size, so that there are about `min_tasks` of them."""
    total = sum(piece.size for piece in ranges)
    split: list[OffsetRange] = []
    for piece in ranges:
        parts = min(max(round(piece.size * min_tasks / total), 1), piece.size)
        bounds = [piece.start + piece.size * index // parts for index in range(parts + 1)]
        split += [OffsetRange(piece.topic, piece.partition, start, end) for start, end in itertools.pairwise(bounds)]
    return split


def share(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Ends that hold about `limit` offsets in all, dealt out in proportion to what each partition has waiting.

    Every partition that has something waiting gets at least one offset, so that none starves.
    """
    waiting = {place: max(end - starts.get(place, 0), 0) for place, end in ends.items()}
    total = sum(waiting.values())
    if total <= limit:
        return dict(ends)
    shared: dict[TopicPartition, int] = {}
    for place, end in ends.items():
        if waiting[place]:
            shared[place] = starts.get(place, 0) + min(max(waiting[place] * limit // total, 1), waiting[place])
        else:
            shared[place] = end
    return shared
