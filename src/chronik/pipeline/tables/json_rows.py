"""JSON values into typed columns, exactly or not at all.

A value that its column cannot hold as it is stays out of the column and is kept, by its field's name, among the misfits
(`_rescued`). A number is never rounded, a text never parsed into a number, a number never printed into a text. Only for
columns of a given schema texts are read as dates and timestamps, since JSON has none.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from chronik.pipeline.tables.json_shape import ITEMS, Path, Shape, column_name

Fitter = Callable[[Any, Path, "Misfits"], Any]

NO_FIT = object()

_NAMES_REMEMBERED = 4_096
_DIGITS_OF_EVERY_DOUBLE = sys.float_info.dig
_DIGITS_AT_MOST = 800  # no double has more than 767
_FINER_THAN_MICROSECONDS = re.compile(r"[.,]\d{6}0*[1-9]")


class Misfits:
    """What did not fit in one record, by field; and the shape of fields that no column exists for."""

    __slots__ = ("unknown", "values")

    def __init__(self, unknown: Shape | None) -> None:
        self.values: dict[str, Any] = {}
        self.unknown = unknown

    def add(self, path: Path, value: Any) -> None:
        if value is not None:
            self.values[".".join(_part(name) for name in path if name is not None)] = value

    def add_unknown(self, path: Path, value: Any) -> None:
        self.add(path, value)
        if self.unknown is not None and value is not None:
            self.unknown.at(path).observe(value, len(path))


def exact_number(text: str) -> float | msgspec.Raw:
    """A number that is not whole as a double, if a double prints as that number; else as it is written.

    What has up to 15 digits always does. What has more is compared with what its double gives with as many digits, and
    with as many as tell it from other doubles.
    """
    number = float(text)
    if (len(text) <= _DIGITS_OF_EVERY_DOUBLE and "e" not in text and "E" not in text) or repr(number) == text:
        return number
    digits = text.lower().partition("e")[0].strip("-0.").replace(".", "")
    if not digits or (len(digits) <= _DIGITS_OF_EVERY_DOUBLE and sys.float_info.min <= abs(number) < math.inf):
        return number
    if number == 0.0 or math.isinf(number):
        return msgspec.Raw(text.encode())
    written = Decimal(text)
    printed = (repr(number), f"{number:.{min(len(digits), _DIGITS_AT_MOST)}g}")
    return number if written in map(Decimal, printed) else msgspec.Raw(text.encode())


decode_exactly = msgspec.json.Decoder(float_hook=exact_number).decode
"""A document in which a number that no double holds stays as it is written."""


def _part(name: str) -> str:
    """A name in a path, which has dots between names: in backticks if it has dots itself, so no two paths are alike."""
    return "`" + name.replace("`", "``") + "`" if "." in name or "`" in name else name


def record_fitter(columns: pa.Schema, taken: frozenset[str]) -> Fitter:
    """Fits a whole record, an object, into the columns; fields whose names are taken go to `value_…`."""
    fitters = {field.name: fitter_of(field.type) for field in columns}
    return _object_fitter(fitters, lru_cache(_NAMES_REMEMBERED)(lambda name: column_name(name, taken)))


def fitter_of(kind: pa.DataType) -> Fitter:
    """How values are fitted to a type; ValueError for a type that JSON values cannot have here."""
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return _nested(_object_fitter({field.name: fitter_of(field.type) for field in fields}, str))
    if pa.types.is_list(kind):
        return _list_fitter(fitter_of(kind.value_type))
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        return _plain(lambda value: type(value) is int and -(1 << (bits - 1)) <= value < 1 << (bits - 1))
    simple = _SIMPLE.get(kind)
    if simple is None:
        raise ValueError(
            f"a column of type {kind} cannot be filled from JSON; use BIGINT, INT, SMALLINT, TINYINT, DOUBLE, STRING, "
            "BOOLEAN, DATE, TIMESTAMP, ARRAY or STRUCT"
        )
    return simple


def _object_fitter(fitters: Mapping[str, Fitter], column_of: Callable[[str], str]) -> Fitter:
    def fit(value: Any, path: Path, misfits: Misfits) -> Any:
        fitted: dict[str, Any] = {}
        for name, content in value.items():
            column = column_of(name)
            fitter = fitters.get(column)
            if fitter is None:
                misfits.add_unknown((*path, name), content)
            elif content is not None:
                found = fitter(content, (*path, name), misfits)
                if found is NO_FIT:
                    misfits.add((*path, name), content)
                else:
                    fitted[column] = found
        return fitted

    return fit


def _nested(fit: Fitter) -> Fitter:
    return lambda value, path, misfits: fit(value, path, misfits) if type(value) is dict else NO_FIT


def _list_fitter(item: Fitter) -> Fitter:
    """A list fits if all its items do: one that does not takes the whole list to the misfits."""

    def fit(value: Any, path: Path, misfits: Misfits) -> Any:
        if type(value) is not list:
            return NO_FIT
        inside = Misfits(misfits.unknown)
        fitted = [None if content is None else item(content, (*path, ITEMS), inside) for content in value]
        return NO_FIT if inside.values or any(found is NO_FIT for found in fitted) else fitted

    return fit


def _plain(fits: Callable[[Any], bool]) -> Fitter:
    return lambda value, path, misfits: value if fits(value) else NO_FIT


def _fit_number(value: Any, path: Path, misfits: Misfits) -> Any:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) < 1 << 1000 and int(float(value)) == value:
        return float(value)
    return NO_FIT


def _fit_date(value: Any, path: Path, misfits: Misfits) -> Any:
    try:
        return date.fromisoformat(value) if type(value) is str and len(value) == 10 else NO_FIT
    except ValueError:
        return NO_FIT


def _fit_timestamp(value: Any, path: Path, misfits: Misfits) -> Any:
    """ISO 8601 with an offset; without one nobody knows which moment is meant, so it does not fit.

    Nor does what is finer than a microsecond, which would be cut off, or before the year 1 or after 9999 in UTC.
    """
    if type(value) is not str or _FINER_THAN_MICROSECONDS.search(value):
        return NO_FIT
    try:
        moment = datetime.fromisoformat(value)
        return NO_FIT if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return NO_FIT


_SIMPLE: dict[pa.DataType, Fitter] = {
    pa.string(): _plain(lambda value: type(value) is str),
    pa.bool_(): _plain(lambda value: type(value) is bool),
    pa.float64(): _fit_number,
    pa.date32(): _fit_date,
    pa.timestamp("us", tz="UTC"): _fit_timestamp,
}
