"""Filters that Spark pushes down, as bounds on what is read.

Bounds only ever leave out what a filter would drop anyway, and every filter goes back to Spark to be applied to the
rows: a bound that is too wide costs time, never a wrong row. An upper bound on the timestamp gives none: clients choose
timestamps, so a record of an earlier time may come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from chronik.client.metadata import TopicPartition


@dataclass(frozen=True)
class Bounds:
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int | None = None
    from_timestamp_ms: int | None = None

    def admits(self, place: TopicPartition) -> bool:
        in_topics = self.topics is None or place.topic in self.topics
        return in_topics and (self.partitions is None or place.partition in self.partitions)


class NarrowingReader(DataSourceReader):
    """A reader that filters narrow, if Spark pushes them down, and that is as right if it does not.

    Pushdown is off in Spark unless a session turns it on, and Spark then refuses readers that override `pushFilters`,
    lest they rely on it. This one does not rely on it: so what it has there passes for the method that it inherits.
    """

    bounds: Bounds = Bounds()

    @property
    def pushFilters(self) -> _Narrowing:
        return _Narrowing(self)


class _Narrowing:
    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: NarrowingReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.bounds = bounds_of(filters)
        return filters


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """What filters, all of which must hold, say about where to read."""
    bounds = Bounds()
    for one in filters:
        for column, kind, value in _parts(one):
            bounds = _narrow(bounds, column, kind, value)
    return bounds


def _parts(one: Filter) -> Iterator[tuple[str, str, Any]]:
    attribute = getattr(one, "attribute", None)
    if not attribute or len(attribute) != 1:
        return
    kinds = {EqualTo: "in", In: "in", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
    kind = kinds.get(type(one))
    if kind is not None:
        value = getattr(one, "value")  # noqa: B009 - Filter itself declares no value
        yield attribute[0], kind, (value,) if isinstance(one, EqualTo) else value


def _narrow(bounds: Bounds, column: str, kind: str, value: Any) -> Bounds:
    if column == "topic" and kind == "in":
        chosen = frozenset(map(str, value))
        return replace(bounds, topics=chosen if bounds.topics is None else bounds.topics & chosen)
    if column == "partition" and kind == "in":
        numbers = frozenset(number for number in value if isinstance(number, int))
        return replace(bounds, partitions=numbers if bounds.partitions is None else bounds.partitions & numbers)
    if column == "offset":
        return _narrow_offset(bounds, kind, value)
    if column == "timestamp":
        times = value if kind == "in" else (value,)
        if kind in (">", ">=", "in") and times and all(isinstance(at, datetime) for at in times):
            first = min(_milliseconds(at) for at in times)
            return replace(bounds, from_timestamp_ms=max(bounds.from_timestamp_ms or first, first))
    return bounds


def _narrow_offset(bounds: Bounds, kind: str, value: Any) -> Bounds:
    numbers = value if kind == "in" else (value,)
    if not numbers or not all(isinstance(number, int) for number in numbers):
        return bounds
    low, high = min(numbers), max(numbers)
    first = {"in": low, ">": low + 1, ">=": low}.get(kind, 0)
    end = {"in": high + 1, "<": high, "<=": high + 1}.get(kind)
    bounds = replace(bounds, first_offset=max(bounds.first_offset, first))
    if end is not None:
        bounds = replace(bounds, end_offset=end if bounds.end_offset is None else min(bounds.end_offset, end))
    return bounds


def _milliseconds(at: datetime) -> int:
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000) - 1  # one less: floats round
