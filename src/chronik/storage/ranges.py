"""A small set of byte ranges: which parts of a segment were checked since the process started."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

RANGES_MAX = 64
"""Separate ranges remembered per segment; beyond that the smallest is forgotten, and checked again when read."""


class RangeSet:
    """Disjoint half-open ranges [start, end), merged as they touch."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if len(self._starts) > RANGES_MAX:
            lengths = [self._ends[i] - self._starts[i] for i in range(len(self._starts))]
            smallest = lengths.index(min(lengths))
            del self._starts[smallest]
            del self._ends[smallest]

    def covers(self, start: int, end: int) -> bool:
        at = bisect_right(self._starts, start)
        return at > 0 and self._ends[at - 1] >= end

    def cut(self, end: int) -> None:
        """Forget everything at and after `end`."""
        while self._starts and self._starts[-1] >= end:
            self._starts.pop()
            self._ends.pop()
        if self._ends and self._ends[-1] > end:
            self._ends[-1] = end
