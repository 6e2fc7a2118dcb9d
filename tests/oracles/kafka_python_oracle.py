"""Kafka messages through kafka-python 3, which reads Kafka's definitions at run time and keeps the oldest versions."""

import pkgutil
import uuid
from functools import cache
from importlib import import_module
from typing import Any

import kafka.protocol as kafka_protocol
from kafka.protocol.schemas.fields.codecs import BitField

from chronik.protocol.schema import FieldPlan, StructPlan, plan
from chronik.protocol.wire import Message

AUTHORIZED_OPERATIONS = "authorizedoperations"
"""kafka-python gives `topic_…`, `group_…` and `cluster_authorized_operations` this name, and sets for the bits."""


@cache
def _message_classes() -> dict[str, Any]:
    found = {}
    for module in pkgutil.walk_packages(kafka_protocol.__path__, "kafka.protocol."):
        if ".old" in module.name or "generate_stubs" in module.name:
            continue
        for name, value in vars(import_module(module.name)).items():
            if name.endswith(("Request", "Response")) and getattr(value, "_struct", None) is not None:
                found[name] = value
    return found


def message_class(name: str, version: int) -> Any:
    """kafka-python's class, or None if it does not have the message at that version."""
    cls = _message_classes().get(name)
    return cls if cls is not None and version <= cls.max_version else None


def decode(cls: Any, version: int, data: bytes) -> Any:
    message = cls.decode(data, version=version)
    message._header = None  # encode() wants the attribute
    return message


def encode(message: Any, version: int) -> bytes:
    return bytes(message.encode(version=version))


def from_ours(cls: Any, version: int, message: Message) -> Any:
    """The kafka-python message with the values of ours."""
    values = _values(cls._struct, version, message, plan(type(message), version))
    return cls(version=version, **values)


def _values(struct: Any, version: int, message: Message, struct_plan: StructPlan) -> dict[str, Any]:
    theirs = {name.replace("_", ""): field for name, field in struct.fields.items()}
    values = {}
    for field in struct_plan.fields:
        value = getattr(message, field.name)
        if not field.present or (
            field.tag is not None and value == (field.factory() if field.factory else field.default)
        ):
            continue
        their_field = theirs.get(field.name.replace("_", "")) or theirs[AUTHORIZED_OPERATIONS]
        values[their_field.name] = _value(their_field, version, value, field)
    return values


def _value(their_field: Any, version: int, value: Any, field: FieldPlan) -> Any:
    if value is None:
        return None
    if field.is_array:
        return [_element(their_field, version, element, field) for element in value]
    return _element(their_field, version, value, field)


def _element(their_field: Any, version: int, value: Any, field: FieldPlan) -> Any:
    if field.struct is not None:
        return their_field.data_class(version=version, **_values(their_field, version, value, field.struct))
    if field.wire is not None and field.wire.name == "uuid":
        return uuid.UUID(bytes=value)
    if their_field.name.replace("_", "") == AUTHORIZED_OPERATIONS:
        return BitField.from_32_bit_field(value)
    return value
