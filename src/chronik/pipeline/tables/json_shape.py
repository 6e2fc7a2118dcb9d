"""What JSON values look like, and the columns that follow from it.

A shape counts the kinds of values seen at each field. Shapes of many tasks are merged on the driver, which settles on
columns: whole numbers are BIGINT, other numbers DOUBLE, objects structs, lists arrays. A field with values of several
kinds gets the kind seen most often; the others do not fit and are rescued. Columns that exist never change their type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

MAX_COLUMNS = 1_000
"""Fields of a record that become columns, counted with those of nested objects; the rest is rescued."""

MAX_DEPTH = 8
"""How deep objects and lists may be nested to become columns."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_FORBIDDEN_IN_NAMES = set(" ,;{}()\n\t=")


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

    def at(self, path: Iterable[str]) -> Shape:
        """The shape of a field, made if it is not there. `*` in a path stands for the items of a list."""
        shape = self
        for name in path:
            if name == "*":
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
            self.at(("*",)).merge(other.item)

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
    return "object" if kind is dict else "array"


def with_new_fields(columns: pa.Schema, shape: Shape, taken: Iterable[str] = ()) -> pa.Schema:
    """The columns, and new ones for the fields of `shape` that they lack. Nothing that exists is changed.

    `taken` are names that columns cannot have because the table uses them itself; such fields get `value_` in front.
    """
    merged = _merged_fields(list(columns), shape, {name.casefold() for name in taken}, depth=0)
    return pa.schema(merged)


def _merged_fields(fields: list[pa.Field], shape: Shape, taken: set[str], depth: int) -> list[pa.Field]:
    room = MAX_COLUMNS - len(fields)
    by_name = {field.name: index for index, field in enumerate(fields)}
    folded = {field.name.casefold() for field in fields}
    merged = list(fields)
    for name, below in shape.fields.items():
        column = column_name(name, taken)
        if column in by_name:
            index = by_name[column]
            merged[index] = merged[index].with_type(_grown(merged[index].type, below, depth + 1))
            continue
        if not usable(name) or column.casefold() in folded or room <= 0:
            continue
        kind = _type_of(below, depth + 1)
        if kind is not None:
            merged.append(pa.field(column, kind))
            folded.add(column.casefold())
            room -= 1
    return merged


def column_name(field: str, taken: Iterable[str]) -> str:
    """The column of a field: its name, or `value_` and its name where the table has a column of that name itself."""
    return f"value_{field}" if field.casefold() in taken else field


def usable(name: str) -> bool:
    """Whether a Delta column can have this name."""
    return bool(name) and name != "*" and not _FORBIDDEN_IN_NAMES & set(name)


def _grown(kind: pa.DataType, shape: Shape, depth: int) -> pa.DataType:
    """A type with the fields that its objects lack; numbers, texts and the like stay as they are."""
    if depth >= MAX_DEPTH:
        return kind
    if pa.types.is_struct(kind) and shape.fields:
        return pa.struct(_merged_fields([kind.field(i) for i in range(kind.num_fields)], shape, set(), depth))
    if pa.types.is_list(kind) and shape.item is not None:
        return pa.list_(pa.field("element", _grown(kind.value_type, shape.item, depth + 1)))
    return kind


def _type_of(shape: Shape, depth: int) -> pa.DataType | None:
    """The type for a field of this shape, or None while nothing that has a type was seen."""
    seen = {kind: count for kind, count in shape.kinds.items() if kind not in ("null", "huge")}
    if "number" in seen:
        seen["number"] += seen.pop("integer", 0)
    for kind in sorted(seen, key=lambda kind: (-seen[kind], kind)):
        if kind == "object":
            fields = _merged_fields([], shape, set(), depth) if depth < MAX_DEPTH else []
            found = pa.struct(fields) if fields else None
        elif kind == "array":
            item = _type_of(shape.item, depth + 1) if shape.item is not None and depth < MAX_DEPTH else None
            found = pa.list_(pa.field("element", item)) if item is not None else None
        else:
            found = {"string": pa.string(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}[kind]
        if found is not None:
            return found
    return None
