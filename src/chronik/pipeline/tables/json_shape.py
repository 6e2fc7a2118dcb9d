"""What JSON values look like, and the columns that follow from it.

A shape counts the kinds of values seen at each field. Shapes of many tasks are merged on the driver, which settles on
columns: whole numbers are BIGINT, other numbers DOUBLE, objects structs, lists arrays. A field with values of several
kinds gets the kind seen most often; the others do not fit and are rescued. Columns that exist never change their type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

MAX_COLUMNS = 1_000
"""Fields of a record that become columns, counted with those of nested objects; the rest is rescued."""

MAX_DEPTH = 8
"""How deep objects and lists may be nested to become columns."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Path = tuple[str | None, ...]
"""Names of fields from the outside in; None stands for the items of a list."""

ITEMS = None

_OWN_PREFIX = "value_"

_FORBIDDEN_IN_NAMES = {*" ,;{}()=", *map(chr, range(ord(" ")))}
"""What Delta has no names with, and control characters: a name that passes through C ends at its first NUL."""


class Shape:
    """Kinds of values seen in one place, and the shapes below it."""

    __slots__ = ("fields", "item", "kinds")

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.fields: dict[str, Shape] = {}
        self.item: Shape | None = None

    def observe(self, value: Any, depth: int = 0) -> None:
        kind = kind_of(value)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if depth >= MAX_DEPTH:
            return
        if kind == "object":
            for name, content in value.items():
                self.at((name,)).observe(content, depth + 1)
        elif kind == "array":
            if self.item is None:
                self.item = Shape()
            for content in value:
                self.item.observe(content, depth + 1)

    def at(self, path: Path) -> Shape:
        """The shape of a field, made if it is not there."""
        shape = self
        for name in path:
            if name is ITEMS:
                if shape.item is None:
                    shape.item = Shape()
                shape = shape.item
            else:
                found = shape.fields.get(name)
                if found is None:
                    if len(shape.fields) >= MAX_COLUMNS:
                        return Shape()
                    found = shape.fields[name] = Shape()
                shape = found
        return shape

    def merge(self, other: Shape) -> None:
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count
        for name, shape in other.fields.items():
            self.at((name,)).merge(shape)
        if other.item is not None:
            self.at((ITEMS,)).merge(other.item)

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"kinds": self.kinds}
        if self.fields:
            document["fields"] = {name: shape.to_document() for name, shape in self.fields.items()}
        if self.item is not None:
            document["item"] = self.item.to_document()
        return document

    @classmethod
    def of_document(cls, document: dict[str, Any]) -> Shape:
        shape = cls()
        shape.kinds = dict(document["kinds"])
        shape.fields = {name: cls.of_document(content) for name, content in document.get("fields", {}).items()}
        if "item" in document:
            shape.item = cls.of_document(document["item"])
        return shape


def kind_of(value: Any) -> str:
    kind = type(value)
    if value is None:
        return "null"
    if kind is str:
        return "string"
    if kind is bool:
        return "boolean"
    if kind is int:
        return "integer" if INT64_MIN <= value <= INT64_MAX else "huge"
    if kind is float:
        return "number"
    if kind is msgspec.Raw:  # a number that no double holds
        return "huge"
    return "object" if kind is dict else "array"


def with_new_fields(columns: pa.Schema, shape: Shape, taken: Iterable[str] = ()) -> pa.Schema:
    """The columns, and new ones for the fields of `shape` that they lack. Nothing that exists is changed.

    `taken` are names that columns cannot have because the table uses them itself; such fields get `value_` in front.
    """
    room = _Room(MAX_COLUMNS - sum(_count(field.type) for field in columns))
    return pa.schema(_merged_fields(list(columns), shape, {name.casefold() for name in taken}, 0, room))


class _Room:
    """How many more columns there may be, those of nested objects among them."""

    def __init__(self, left: int) -> None:
        self.left = left


def _count(kind: pa.DataType) -> int:
    """How many columns a type counts for: itself, and the fields of its objects."""
    if pa.types.is_list(kind):
        return _count(kind.value_type)
    return 1 + sum(_count(kind.field(index).type) for index in range(kind.num_fields))


def _merged_fields(fields: list[pa.Field], shape: Shape, taken: set[str], depth: int, room: _Room) -> list[pa.Field]:
    by_name = {field.name: index for index, field in enumerate(fields)}
    folded = {field.name.casefold() for field in fields}
    merged = list(fields)
    for name, below in shape.fields.items():
        column = column_name(name, taken)
        if column in by_name:
            index = by_name[column]
            merged[index] = merged[index].with_type(_grown(merged[index].type, below, depth + 1, room))
            continue
        if not usable(name) or column.casefold() in folded or room.left <= 0:
            continue
        room.left -= 1
        kind = _type_of(below, depth + 1, room)
        if kind is None:
            room.left += 1
        else:
            merged.append(pa.field(column, kind))
            folded.add(column.casefold())
    return merged


def column_name(field: str, taken: Iterable[str]) -> str:
    """The column of a field: its name, or `value_` and its name where the table has a column of that name itself.

    A field that is named `value_key`, as the column of a field `key` is, gets `value_` in front as well: two fields
    never share a column.
    """
    bare = field.casefold()
    while bare.startswith(_OWN_PREFIX):
        bare = bare.removeprefix(_OWN_PREFIX)
    return _OWN_PREFIX + field if bare in taken else field


def usable(name: str) -> bool:
    """Whether a Delta column can have this name."""
    return bool(name) and name != "*" and not _FORBIDDEN_IN_NAMES & set(name)


def _grown(kind: pa.DataType, shape: Shape, depth: int, room: _Room) -> pa.DataType:
    """A type with the fields that its objects lack; numbers, texts and the like stay as they are."""
    if depth >= MAX_DEPTH:
        return kind
    if pa.types.is_struct(kind) and shape.fields:
        return pa.struct(_merged_fields([kind.field(i) for i in range(kind.num_fields)], shape, set(), depth, room))
    if pa.types.is_list(kind) and shape.item is not None:
        return pa.list_(pa.field("element", _grown(kind.value_type, shape.item, depth + 1, room)))
    return kind


def _type_of(shape: Shape, depth: int, room: _Room) -> pa.DataType | None:
    """The type for a field of this shape, or None while nothing that has a type was seen."""
    seen = {kind: count for kind, count in shape.kinds.items() if kind not in ("null", "huge")}
    if "number" in seen:
        seen["number"] += seen.pop("integer", 0)
    for kind in sorted(seen, key=lambda kind: (-seen[kind], kind)):
        if kind == "object":
            fields = _merged_fields([], shape, set(), depth, room) if depth < MAX_DEPTH else []
            found = pa.struct(fields) if fields else None
        elif kind == "array":
            item = _type_of(shape.item, depth + 1, room) if shape.item is not None and depth < MAX_DEPTH else None
            found = pa.list_(pa.field("element", item)) if item is not None else None
        else:
            found = {"string": pa.string(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}[kind]
        if found is not None:
            return found
    return None
