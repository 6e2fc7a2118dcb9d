"""Kafka messages through kafka-python 2.0.2, run by its own interpreter: one JSON question per line, one JSON answer.

Questions are `{"op": "list"}`, `{"op": "encode", "message", "version", "values"}` and
`{"op": "decode", "message", "version", "hex"}`. Values are lists in the order of the fields; bytes are `{"hex": …}`.
This file runs without the project: the other environment has nothing but kafka-python.
"""

import importlib
import json
import sys

MODULES = ("produce", "fetch", "offset", "metadata", "admin", "commit", "group")
KAFKA_NAMES = {
    "ApiVersion": "ApiVersions",
    "GroupCoordinator": "FindCoordinator",
    "Offset": "ListOffsets",
    "SaslHandShake": "SaslHandshake",
}


def message_classes():
    """Every versioned request and response class, by Kafka's name of the message and the version."""
    found = {}
    for module in MODULES:
        for name, cls in vars(importlib.import_module("kafka.protocol." + module)).items():
            stem, _, version = name.rpartition("_v")
            if not version.isdigit():
                continue
            for kind in ("Request", "Response"):
                if stem.endswith(kind):
                    api = stem[: -len(kind)]
                    found[KAFKA_NAMES.get(api, api) + kind, int(version)] = cls
    return found


def from_json(value):
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def to_json(value):
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def answer(question, classes):
    if question["op"] == "list":
        return sorted([name, version] for name, version in classes)
    cls = classes[question["message"], question["version"]]
    if question["op"] == "encode":
        message = cls(*from_json(question["values"]))  # held by a name: its encode() keeps only a weak reference
        return message.encode().hex()
    message = cls.decode(bytes.fromhex(question["hex"]))
    return to_json([getattr(message, name) for name in cls.SCHEMA.names])


def main():
    classes = message_classes()
    for line in sys.stdin:
        try:
            reply = {"ok": answer(json.loads(line), classes)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
