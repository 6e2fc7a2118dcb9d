"""What a config definition is: a name, a type, a default, who may set it, and which values it takes.

Definitions are data (`topic_configs`, `broker_configs`). Which value holds for a resource is in `configs`.
Messages about bad values follow Kafka's wording, because tools and tests of clients look at it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum

import msgspec

from chronik.protocol.errors import ErrorCode, KafkaError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
SHORT_MAX = 2**15 - 1
MAX_VALUE_BYTES = 32 * 1024  # of one config value; a schema is the longest there is


class ConfigType(IntEnum):
    """Kafka's codes, as DescribeConfigs reports them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Kafka's codes for where a value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Scope(IntEnum):
    """Who may change a broker config while the broker runs."""

    READ_ONLY = 0
    PER_BROKER = 1
    CLUSTER_WIDE = 2


Value = bool | int | float | str | tuple[str, ...]
Check = Callable[[Value], str | None]


class Synonym(msgspec.Struct, frozen=True):
    """Another name for the same setting; `factor` turns its unit into this one's."""

    name: str
    factor: int = 1


class ConfigDef(msgspec.Struct, frozen=True):
    """One setting. `default` is in the form in which it is written; None means unset."""

    name: str
    type: ConfigType
    default: str | None
    doc: str
    check: Check | None = None
    synonyms: tuple[Synonym, ...] = ()
    scope: Scope = Scope.CLUSTER_WIDE

    @property
    def sensitive(self) -> bool:
        return self.type == ConfigType.PASSWORD

    def parse(self, text: str) -> Value:
        """The typed value; raises KafkaError(INVALID_CONFIG) that says what is wrong with the text."""
        if len(text) > MAX_VALUE_BYTES:
            raise self._invalid(text[:40] + "…", f"Value is longer than {MAX_VALUE_BYTES} characters")
        value = self._convert(text.strip())
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise self._invalid(text, problem)
        return value

    def _convert(self, text: str) -> Value:
        if self.type == ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._invalid(text, "Expected value to be either true or false")
            return text.lower() == "true"
        if self.type in _INTEGER_LIMITS:
            return self._integer(text)
        if self.type == ConfigType.DOUBLE:
            return self._fraction(text)
        if self.type == ConfigType.LIST:
            return tuple(part.strip() for part in text.split(",")) if text else ()
        return text

    def _integer(self, text: str) -> int:
        limit = _INTEGER_LIMITS[self.type]
        if not _WHOLE_NUMBER.match(text) or not -limit - 1 <= int(text) <= limit:
            raise self._invalid(text, f"Not a number of type {self.type.name}")
        return int(text)

    def _fraction(self, text: str) -> float:
        if not _FRACTION.match(text):  # `float` takes more: NaN, which is neither below a limit nor above it
            raise self._invalid(text, "Not a number of type DOUBLE")
        return float(text)

    def _invalid(self, text: str, problem: str) -> KafkaError:
        shown = "[hidden]" if self.sensitive else text
        return KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {shown} for configuration {self.name}: {problem}")


_INTEGER_LIMITS = {ConfigType.INT: INT_MAX, ConfigType.SHORT: SHORT_MAX, ConfigType.LONG: LONG_MAX}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_FRACTION = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2})?\Z")


def at_least(minimum: float) -> Check:
    def check(value: Value) -> str | None:
        return f"Value must be at least {minimum}" if float(value) < minimum else None  # type: ignore[arg-type]

    return check


def between(minimum: float, maximum: float) -> Check:
    def check(value: Value) -> str | None:
        number = float(value)  # type: ignore[arg-type]
        if number < minimum:
            return f"Value must be at least {minimum}"
        return f"Value must be no more than {maximum}" if number > maximum else None

    return check


def between_or(minimum: int, maximum: int, special: int) -> Check:
    """A range, or one value that stands for the default."""
    inside = between(minimum, maximum)

    def check(value: Value) -> str | None:
        return (
            None
            if value == special or inside(value) is None
            else (f"Value must be between {minimum} and {maximum} or equal to {special}")
        )

    return check


def one_of(*allowed: str) -> Check:
    def check(value: Value) -> str | None:
        return None if value in allowed else f"String must be one of: {', '.join(allowed)}"

    return check


def only(fixed: str | None) -> Check:
    """A setting that tools read and nobody can change."""

    def check(value: Value) -> str | None:
        if as_text(value) == fixed:
            return None
        return "It cannot be set in Chronik" if fixed is None else f"It is always {fixed} in Chronik"

    return check


def each_of(*allowed: str) -> Check:
    """A list whose every item is one of these, none of them twice, and not an empty one."""

    def check(value: Value) -> str | None:
        items = value if isinstance(value, tuple) else ()
        if not items:
            return f"At least one value is needed: {', '.join(allowed)}"
        if len(set(items)) != len(items):
            return "A value is given twice"
        wrong = next((item for item in items if item not in allowed), None)
        return None if wrong is None else f"String must be one of: {', '.join(allowed)}"

    return check


def throttled_replicas(value: Value) -> str | None:
    """`*`, or `partition:broker` pairs."""
    items = value if isinstance(value, tuple) else ()
    if items in ((), ("*",)) or all(_REPLICA_PAIR.match(item) for item in items):
        return None
    return (
        "Must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


_REPLICA_PAIR = re.compile(r"[0-9]+:[0-9]+\Z")


def as_text(value: Value) -> str:
    """A typed value in the form in which configs are written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def table_of(definitions: list[ConfigDef]) -> dict[str, ConfigDef]:
    return {definition.name: definition for definition in definitions}
