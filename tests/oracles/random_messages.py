"""Random instances of our own messages, built from the schema plan of one version. Seeded, so a failure replays."""

from random import Random
from typing import Any

from chronik.protocol.api import APIS, Api, request_class, response_class
from chronik.protocol.schema import FieldPlan, StructPlan, plan
from chronik.protocol.wire import Message

INTEGER_LIMITS = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
DATES_BELOW_MS = 1 << 42
"""kio turns timestamps into dates, which end long before 2⁶³."""
LARGEST_ERROR_CODE = 127
TEXT = "abcXYZ019 ._-äπ漢🙂"
LONG_LENGTHS = (126, 127, 128, 300)
"""Around the step from one to two bytes of a varint length."""


def every_message() -> list[tuple[Api, type[Message]]]:
    """Request and response of every API."""
    return [(api, find(api.key)) for api in APIS.values() for find in (request_class, response_class)]


class MessageGenerator:
    """Builds random messages. With `tame` only values that every oracle can represent."""

    def __init__(self, seed: object, *, tame: bool) -> None:
        self.random = Random(repr(seed))
        self.tame = tame

    def message(self, cls: type[Message], version: int) -> Any:
        return self.struct(plan(cls, version))

    def struct(self, struct_plan: StructPlan) -> Message:
        values = {f.name: self.value(f) for f in struct_plan.fields if f.present}
        return struct_plan.cls(**values)

    def value(self, field: FieldPlan) -> Any:
        if field.tag is not None and self.random.random() < 0.5:
            return field.factory() if field.factory else field.default
        if field.nullable and self.random.random() < 0.3:
            return None
        if field.is_array:
            return [self.element(field) for _ in range(self.array_length(field))]
        return self.element(field)

    def array_length(self, field: FieldPlan) -> int:
        if field.wire is not None and self.random.random() < 0.1:
            return self.random.choice((15, 16, 17, 130))
        return self.random.choice((0, 1, 1, 2, 3))

    def element(self, field: FieldPlan) -> Any:
        if field.struct is not None:
            return self.struct(field.struct)
        assert field.wire is not None
        kind = field.wire.name
        if kind in INTEGER_LIMITS:
            return self.integer(field.name, kind)
        if kind == "bool":
            return self.random.random() < 0.5
        if kind == "float64":
            return self.random.choice((0.0, -1.5, 1e300, self.random.random()))
        if kind == "uuid":
            return bytes(16) if self.random.random() < 0.2 else self.random.randbytes(16)
        length = self.length()
        if kind == "string":
            return "".join(self.random.choice(TEXT) for _ in range(length))
        return self.random.randbytes(length)

    def integer(self, name: str, kind: str) -> int:
        low, high = INTEGER_LIMITS[kind]
        if self.tame:
            if kind == "int16" and name.endswith("error_code"):
                return self.random.randint(-1, LARGEST_ERROR_CODE)
            low, high = max(low, 0), min(high, DATES_BELOW_MS)
        return self.random.choice((low, high, 0, 1, self.random.randint(low, high)))

    def length(self) -> int:
        if self.random.random() < 0.1:
            return self.random.choice(LONG_LENGTHS)
        return self.random.choice((0, 1, 3, 8))
