"""Kafka messages through kio, an independent implementation of the protocol generated from Kafka's own definitions."""

import datetime
import io
import uuid
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
UNSIGNED = {"uint16": 16, "uint32": 32}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@cache
def kio_class(api_key: int, kind: str, version: int) -> Any:
    """kio's class of a `request` or `response`, or None if kio does not have that version."""
    schema = api_key_map.get(api_key)
    if schema is None or find_spec(f"kio.schema.{schema}.v{version}") is None:
        return None
    module = import_module(f"kio.schema.{schema}.v{version}.{kind}")
    name = "".join(word.capitalize() for word in schema.split("_")) + kind.capitalize()
    return getattr(module, name)


@cache
def kio_data_class(schema: str, name: str, version: int) -> Any:
    """kio's class of a self-versioned format that is not an API message."""
    return getattr(import_module(f"kio.schema.{schema}.v{version}.data"), name)


def decode(cls: Any, data: bytes) -> Any:
    """The kio entity in `data`, which it must fill."""
    entity, size = entity_reader(cls)(data, 0)
    assert size == len(data), f"kio read {size} of {len(data)} bytes"
    return entity


def encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def random_entity(cls: Any, random: Random) -> Any:
    """A random kio entity: null wherever kio's types allow it, extremes of every integer."""
    values = {}
    for field in fields(cls):
        if "tag" in field.metadata and random.random() < 0.4:
            continue
        values[field.name] = _random_value(field.type, field.metadata, random)
    return cls(**_with_tag_defaults(cls, values))


def _with_tag_defaults(cls: Any, values: dict[str, Any]) -> dict[str, Any]:
    """A tagged field without a default of its own is absent when it is empty."""
    for field in fields(cls):
        if field.name not in values and field.default.__class__.__name__ == "_MISSING_TYPE":
            empty = _strip_none(field.type)[0]
            values[field.name] = (
                () if get_origin(empty) is tuple else _random_value(field.type, field.metadata, Random(0))
            )
    return values


def _strip_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (UnionType, Union):
        members = [m for m in get_args(annotation) if m is not NoneType]
        return members[0], True
    return annotation, False


def _random_value(annotation: Any, metadata: Any, random: Random) -> Any:
    annotation, optional = _strip_none(annotation)
    if optional and "tag" not in metadata and random.random() < 0.3:
        return None
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)[0]
        return tuple(_random_value(inner, metadata, random) for _ in range(random.choice((0, 1, 1, 2))))
    kind = metadata.get("kafka_type")
    if kind is None:
        return random_entity(annotation, random)
    return _random_primitive(kind, random)


def _random_primitive(kind: str, random: Random) -> Any:
    if kind in INTEGERS:
        limit = 1 << INTEGERS[kind]
        return random.choice((-limit, limit - 1, 0, -1, random.randrange(-limit, limit)))
    if kind in UNSIGNED:
        return random.randrange(1 << UNSIGNED[kind])
    if kind == "string":
        return "".join(random.choice("abcπ漢") for _ in range(random.choice((0, 1, 5, 60, 200))))
    if kind in ("bytes", "records"):
        return random.randbytes(random.choice((0, 1, 5, 127, 300)))
    if kind == "uuid":
        return uuid.UUID(int=random.randrange(1, 1 << 128))
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.random()
    if kind == "error_code":
        return random.choice(list(ErrorCode))
    if kind == "timedelta_i32":
        return datetime.timedelta(milliseconds=random.randrange(-(1 << 31), 1 << 31))
    if kind == "timedelta_i64":
        return datetime.timedelta(milliseconds=random.randrange(1 << 40))
    assert kind == "datetime_i64", kind
    return EPOCH + datetime.timedelta(milliseconds=random.randrange(1 << 41))
