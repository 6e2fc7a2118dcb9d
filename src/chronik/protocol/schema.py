"""Reads a message class into the plan of one version: which fields are there, of what type, in what order.

The plan is what `decoder` and `encoder` write code from. Nothing here touches bytes.
"""

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from chronik.protocol.api import APIS
from chronik.protocol.wire import Message, V, Wire, version_range


class UnsupportedVersion(ValueError):
    """The message has no such version."""


class FieldPlan:
    """One field as one version has it. Exactly one of `wire` and `struct` says what it, or its element, is."""

    __slots__ = ("default", "factory", "is_array", "name", "nullable", "present", "struct", "tag", "wire")

    def __init__(self, name: str) -> None:
        self.name = name
        self.wire: Wire | None = None
        self.struct: StructPlan | None = None
        self.is_array = False
        self.nullable = False
        self.present = True
        self.tag: int | None = None
        self.default: Any = None
        self.factory: Callable[[], Any] | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether the field always takes the same number of bytes."""
        return self.wire is not None and self.wire.size > 0 and not self.is_array

    def min_size(self, flexible: bool) -> int:
        """Fewest bytes this field can take: what an array of n such elements needs at least."""
        if self.is_array:
            return 1 if flexible else 4
        if self.struct is not None:
            return 1 if self.nullable else self.struct.min_size
        return self.element_min_size(flexible)

    def element_min_size(self, flexible: bool) -> int:
        """Fewest bytes one element of this array (or this plain field) can take."""
        if self.struct is not None:
            return self.struct.min_size
        wire = cast(Wire, self.wire)
        if wire.size:
            return wire.size
        if flexible:
            return 1
        return 2 if wire.name == "string" else 4


class StructPlan:
    """All fields of one struct at one version, in the order of the class (which is the order on the wire)."""

    __slots__ = ("cls", "fields", "flexible", "min_size", "version")

    def __init__(self, cls: type[Message], version: int, flexible: bool) -> None:
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.fields = _field_plans(cls, version, flexible)
        self.min_size = sum(f.min_size(flexible) for f in self.plain_fields()) + (1 if flexible else 0)

    def plain_fields(self) -> list[FieldPlan]:
        """Fields of this version that are written in place."""
        return [f for f in self.fields if f.present and f.tag is None]

    def tagged_fields(self) -> list[FieldPlan]:
        """Fields of this version that are written as tagged fields, in the order of their tags."""
        return sorted((f for f in self.fields if f.present and f.tag is not None), key=lambda f: cast(int, f.tag))


def message_versions(cls: type[Message]) -> tuple[int, int, int]:
    """Lowest version, highest version, and first flexible version of a top-level message.

    Requests and responses name their API, and the registry knows its versions. Data that is not an API message (what is
    kept in internal topics, the consumer protocol) says its own versions.
    """
    api = cls.__dict__.get("API")
    if api is not None:
        entry = APIS[api]
        return entry.min_version, entry.max_version, entry.flexible_from
    versions = cls.__dict__.get("VERSIONS")
    if versions is None:
        raise UnsupportedVersion(f"{cls.__name__} is part of another message and has no versions of its own")
    low, high = version_range(versions)
    return low, high, version_range(cls.__dict__.get("FLEXIBLE", "32767"))[0]


def plan(cls: type[Message], version: int) -> StructPlan:
    """The plan of a top-level message at a version it has."""
    low, high, flexible_from = message_versions(cls)
    if not low <= version <= high:
        raise UnsupportedVersion(f"{cls.__name__} has versions {low} to {high}, not {version}")
    return StructPlan(cls, version, version >= flexible_from)


def _field_plans(cls: type[Message], version: int, flexible: bool) -> list[FieldPlan]:
    plans = []
    defaults = dict(zip(reversed(cls.__struct_fields__), reversed(cls.__struct_defaults__), strict=False))
    for name, annotation in cls.__annotations__.items():
        if name not in defaults:  # a ClassVar
            continue
        field = FieldPlan(name)
        _set_default(field, defaults[name])
        _read_annotation(field, annotation, version, flexible)
        plans.append(field)
    return plans


def _set_default(field: FieldPlan, default: Any) -> None:
    """msgspec keeps a mutable default as an object with a `factory`."""
    factory = getattr(default, "factory", None)
    if factory is None:
        field.default = default
    else:
        field.factory = factory


def _read_annotation(field: FieldPlan, annotation: Any, version: int, flexible: bool) -> None:
    where = V("0+")
    target = annotation
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        for mark in marks:
            if isinstance(mark, V):
                where, target = mark, _without_mark(inner, marks)
    low, high = version_range(where.versions)
    field.present = low <= version <= high
    field.tag = where.tag
    if not field.present:
        return
    members = get_args(target) if get_origin(target) in (Union, UnionType) else (target,)
    optional = type(None) in members
    if optional:
        target = next(m for m in members if m is not type(None))
    if get_origin(target) is list:
        field.is_array = True
        (target,) = get_args(target)
    if isinstance(target, type) and issubclass(target, Message):
        field.struct = StructPlan(target, version, flexible)
    else:
        field.wire = _wire_type(field.name, target)
    absent_not_null = field.tag is not None and field.struct is not None and not field.is_array and not where.nullable
    if optional and not absent_not_null:
        low, high = version_range(where.nullable) if where.nullable else (0, version)
        field.nullable = low <= version <= high


def _without_mark(inner: Any, marks: list[Any]) -> Any:
    """``Annotated[Int32, V("3+")]`` is flattened by `typing`; give the wire type back to the bare type."""
    wire = next((m for m in marks if isinstance(m, Wire)), None)
    return inner if wire is None else Annotated[inner, wire]


def _wire_type(name: str, annotation: Any) -> Wire:
    if get_origin(annotation) is Annotated:
        for mark in get_args(annotation)[1:]:
            if isinstance(mark, Wire):
                return mark
    raise TypeError(f"field {name} has no wire type: {annotation!r}")
