"""The clients of PyPI by name, each with the version it is pinned to, if any."""

from __future__ import annotations

from harness.clients.aio import AioKafka
from harness.clients.confluent import Confluent
from harness.clients.kafka_python import KafkaPython
from harness.clients.legacy import LegacyKafkaPython
from harness.clients.message import Client

CLIENTS = (
    "kafka-python",
    "kafka-python@0.10.0",
    "kafka-python-2.0.2",
    "kafka-python-2.0.2@0.10.0",
    "confluent-kafka",
    "aiokafka",
)


def make_client(name: str, bootstrap: str) -> Client:
    if name.startswith("kafka-python"):
        version = (0, 10, 0) if name.endswith("@0.10.0") else None
        if "2.0.2" in name:
            return LegacyKafkaPython(bootstrap, version)
        return KafkaPython(bootstrap, version)
    return Confluent(bootstrap) if name == "confluent-kafka" else AioKafka(bootstrap)
