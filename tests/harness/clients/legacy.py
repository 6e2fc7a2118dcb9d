"""kafka-python 2.0.2, which lives in an environment of its own, driven over JSON lines.

Run by this environment it is the adapter; run as a script by the other interpreter it is the worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
ROOT = TESTS.parent


def legacy_python() -> Path:
    """The interpreter with kafka-python 2.0.2, which `make setup` installs."""
    python = Path(os.environ.get("CHRONIK_LEGACY_PYTHON", ROOT / ".venv-legacy" / "bin" / "python"))
    assert python.exists(), f"{python} is missing; run `make setup`"
    return python


class LegacyKafkaPython:
    """The common face, with every call carried to the worker."""

    def __init__(self, bootstrap: str, api_version: tuple[int, ...] | None = None) -> None:
        self._process = subprocess.Popen(
            [str(legacy_python()), str(Path(__file__).resolve()), bootstrap, json.dumps(api_version)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        about = self._read()
        self.name: str = about["name"]
        self.codecs: tuple[str, ...] = tuple(about["codecs"])
        self.has_headers: bool = about["has_headers"]
        self.has_timestamps: bool = about["has_timestamps"]
        self.can_alter: bool = about["can_alter"]
        self.can_create: bool = about["can_create"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the legacy worker ended"
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def _call(self, method: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def brokers(self) -> tuple[list[int], int]:
        ids, controller = self._call("brokers")
        return ids, controller

    def create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        self._call("create_topic", topic, partitions, replication, configs)

    def topics(self) -> list[str]:
        return list(self._call("topics"))

    def partitions(self, topic: str) -> list[int]:
        return list(self._call("partitions", topic))

    def alter_config(self, topic: str, name: str, value: str) -> None:
        self._call("alter_config", topic, name, value)

    def config(self, topic: str, name: str) -> str:
        return str(self._call("config", topic, name))

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topic", topic)

    def produce(self, topic: str, partition: int, messages: list[Any], codec: str) -> list[int]:
        return list(self._call("produce", topic, partition, [message.to_json() for message in messages], codec))

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Any]:
        from harness.clients.message import Message

        return [Message.from_json(found) for found in self._call("consume", topic, partition, offset, count)]

    def end_offset(self, topic: str, partition: int) -> int:
        return int(self._call("end_offset", topic, partition))


def _work(bootstrap: str, api_version: list[int] | None) -> None:
    sys.path.insert(0, str(TESTS))
    from harness.clients.kafka_python import KafkaPython
    from harness.clients.message import Message

    client = KafkaPython(bootstrap, tuple(api_version) if api_version else None)
    about = ("name", "codecs", "has_headers", "has_timestamps", "can_alter", "can_create")
    print(json.dumps({"result": {field: getattr(client, field) for field in about}}), flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        arguments = call["arguments"]
        try:
            if call["method"] == "produce":
                arguments[2] = [Message.from_json(message) for message in arguments[2]]
            result = getattr(client, call["method"])(*arguments)
            if call["method"] == "consume":
                result = [message.to_json() for message in result]
            print(json.dumps({"result": result}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    _work(sys.argv[1], json.loads(sys.argv[2]))
