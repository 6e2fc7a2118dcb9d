"""What every client adapter speaks: a message, and the list of things that a client is asked to do.

Kept free of imports beyond the standard library: the worker of the legacy environment loads it too.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Protocol

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Message:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int | None = None
    offset: int | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "value": _text(self.value),
            "key": _text(self.key),
            "headers": [[name, _text(value)] for name, value in self.headers],
            "timestamp": self.timestamp,
            "offset": self.offset,
        }

    @staticmethod
    def from_json(document: dict[str, Any]) -> Message:
        headers = tuple((name, _bytes(value) or b"") for name, value in document["headers"])
        return Message(
            _bytes(document["value"]), _bytes(document["key"]), headers, document["timestamp"], document["offset"]
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


class Client(Protocol):
    """A Kafka client library behind one face. Every call opens and closes what it needs."""

    name: str
    codecs: tuple[str, ...]
    has_headers: bool
    has_timestamps: bool
    can_alter: bool
    can_create: bool

    def brokers(self) -> tuple[list[int], int]:
        """The ids of the brokers, and the id of the controller."""

    def create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None: ...

    def topics(self) -> list[str]: ...

    def partitions(self, topic: str) -> list[int]: ...

    def alter_config(self, topic: str, name: str, value: str) -> None: ...

    def config(self, topic: str, name: str) -> str: ...

    def delete_topic(self, topic: str) -> None: ...

    def produce(self, topic: str, partition: int, messages: list[Message], codec: str) -> list[int]:
        """Sends with acks=all and returns the offsets that were acknowledged."""

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Message]: ...

    def end_offset(self, topic: str, partition: int) -> int: ...
