"""Our side of the conversation with `legacy_kafka_python.py`, which runs in an environment of its own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from chronik.protocol.schema import FieldPlan, StructPlan, plan
from chronik.protocol.wire import Message

REPOSITORY = Path(__file__).parents[2]
PYTHON_VARIABLE = "CHRONIK_LEGACY_PYTHON"
DEFAULT_PYTHON = REPOSITORY / ".venv-legacy" / "bin" / "python"
SCRIPT = Path(__file__).with_name("legacy_kafka_python.py")


class LegacyOracle:
    """kafka-python 2.0.2 as a child process that answers one question at a time."""

    def __init__(self) -> None:
        python = Path(os.environ.get(PYTHON_VARIABLE, DEFAULT_PYTHON))
        if not python.exists():
            raise AssertionError(
                f"there is no {python}: run `make setup`, which builds the environment with kafka-python 2.0.2, "
                f"or set {PYTHON_VARIABLE} to an interpreter that has it"
            )
        self.process = subprocess.Popen(
            [str(python), str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)

    def ask(self, **question: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        assert "error" not in reply, f"kafka-python 2.0.2 answered {reply['error']} to {question}"
        return reply["ok"]

    def messages(self) -> list[tuple[str, int]]:
        return [(name, version) for name, version in self.ask(op="list")]

    def encode(self, message: Message, version: int) -> bytes:
        values = _struct_values(plan(type(message), version), message)
        return bytes.fromhex(self.ask(op="encode", message=type(message).__name__, version=version, values=values))

    def decode(self, name: str, version: int, data: bytes) -> list[Any]:
        """The values in `data`, in the order of the fields."""
        values: list[Any] = self.ask(op="decode", message=name, version=version, hex=data.hex())
        return values


def values_of(message: Message, version: int) -> list[Any]:
    """What the oracle's `decode` gives for this message."""
    return _struct_values(plan(type(message), version), message)


def _struct_values(struct_plan: StructPlan, message: Message) -> list[Any]:
    return [_field_value(field, getattr(message, field.name)) for field in struct_plan.plain_fields()]


def _field_value(field: FieldPlan, value: Any) -> Any:
    if value is None:
        return None
    if field.is_array:
        return [_element_value(field, element) for element in value]
    return _element_value(field, value)


def _element_value(field: FieldPlan, value: Any) -> Any:
    if field.struct is None:
        return {"hex": bytes(value).hex()} if isinstance(value, bytes | memoryview) else value
    values = _struct_values(field.struct, value)
    # kafka-python declares an array of one-field structs as an array of that field
    return values[0] if len(values) == 1 else values
