"""kafka-python behind the common face: 3.x in this environment, 2.0.2 in the legacy one (see legacy.py)."""

from __future__ import annotations

import time
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from harness.clients.message import CODECS, Message

DEADLINE_S = 30.0
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MODERN = not kafka.__version__.startswith("2.")


class KafkaPython:
    def __init__(self, bootstrap: str, api_version: tuple[int, ...] | None = None) -> None:
        pin = ".".join(map(str, api_version)) if api_version else ""
        self.name = f"kafka-python-{kafka.__version__}{'@' + pin if pin else ''}"
        old = api_version is not None and api_version < (0, 11)
        self.codecs = tuple(codec for codec in CODECS if not (old and codec == "zstd"))
        self.has_headers = not old
        self.has_timestamps = api_version is None or api_version >= (0, 10)
        self.can_alter = api_version is None
        self.can_create = api_version is None or not MODERN  # 3.x knows that 0.10.0 had no CreateTopics
        self._common: dict[str, Any] = {"bootstrap_servers": bootstrap}
        if api_version is not None:
            self._common["api_version"] = api_version

    def _admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(**self._common)

    def _consumer(self, **more: Any) -> KafkaConsumer:
        return KafkaConsumer(**self._common, auto_offset_reset="none", enable_auto_commit=False, **more)

    def brokers(self) -> tuple[list[int], int]:
        admin = self._admin()
        try:
            if "api_version" not in self._common or MODERN:
                cluster = admin.describe_cluster()
                return sorted(broker.get("node_id", broker.get("broker_id")) for broker in cluster["brokers"]), cluster[
                    "controller_id"
                ]
            metadata = admin._get_cluster_metadata()
            return sorted(broker[0] for broker in metadata.brokers), metadata.controller_id
        finally:
            admin.close()

    def create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        admin = self._admin()
        try:
            admin.create_topics([NewTopic(topic, partitions, replication, topic_configs=configs)])
        finally:
            admin.close()

    def topics(self) -> list[str]:
        consumer = self._consumer()
        try:
            return sorted(consumer.topics())
        finally:
            consumer.close()

    def partitions(self, topic: str) -> list[int]:
        consumer = self._consumer()
        try:
            return sorted(consumer.partitions_for_topic(topic) or [])
        finally:
            consumer.close()

    def alter_config(self, topic: str, name: str, value: str) -> None:
        admin = self._admin()
        try:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})])
        finally:
            admin.close()

    def config(self, topic: str, name: str) -> str:
        admin = self._admin()
        try:
            answer = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: ""})])
            return _find_config(answer, topic, name)
        finally:
            admin.close()

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        try:
            admin.delete_topics([topic])
        finally:
            admin.close()

    def produce(self, topic: str, partition: int, messages: list[Message], codec: str) -> list[int]:
        producer = KafkaProducer(
            **self._common,
            acks="all",
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
            max_request_size=MAX_MESSAGE_BYTES,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers) if message.headers else None,
                    partition=partition,
                    timestamp_ms=message.timestamp,
                )
                for message in messages
            ]
            producer.flush(DEADLINE_S)
            return [future.get(DEADLINE_S).offset for future in futures]
        finally:
            producer.close()

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        consumer = self._consumer(max_partition_fetch_bytes=MAX_MESSAGE_BYTES)
        try:
            where = TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            found: list[Message] = []
            end = time.monotonic() + DEADLINE_S
            while len(found) < count and time.monotonic() < end:
                for records in consumer.poll(timeout_ms=500).values():
                    for record in records:
                        headers = tuple((name, value) for name, value in record.headers or ())
                        found.append(Message(record.value, record.key, headers, record.timestamp, record.offset))
            return found
        finally:
            consumer.close()

    def end_offset(self, topic: str, partition: int) -> int:
        consumer = self._consumer()
        try:
            where = TopicPartition(topic, partition)
            if "api_version" in self._common:
                consumer.assign([where])
                consumer.seek_to_end(where)
                return int(consumer.position(where))
            return int(consumer.end_offsets([where])[where])
        finally:
            consumer.close()


def _find_config(answer: Any, topic: str, name: str) -> str:
    """The answer's shape differs between 2.x (response structs) and 3.x (plain dicts)."""
    if isinstance(answer, dict):
        for resources in answer.values():
            entry = resources[topic][name]
            return str(entry["value"] if isinstance(entry, dict) else entry)
    for response in answer:
        for resource in response.resources:
            for entry in resource[4]:
                if entry[0] == name:
                    return str(entry[1])
    raise AssertionError(f"no {name} in {answer!r}")
