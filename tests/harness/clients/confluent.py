"""confluent-kafka (librdkafka) behind the common face."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from harness.clients.message import CODECS, Message

DEADLINE_S = 30.0
MAX_MESSAGE_BYTES = 4 * 1024 * 1024


class Confluent:
    has_headers = True
    has_timestamps = True
    can_alter = True
    can_create = True
    codecs = CODECS

    def __init__(self, bootstrap: str) -> None:
        self.name = f"confluent-kafka-{confluent_kafka.__version__}"
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self._common)

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **self._common,
                "group.id": "assigned-only",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "max.partition.fetch.bytes": MAX_MESSAGE_BYTES,
            }
        )

    def brokers(self) -> tuple[list[int], int]:
        cluster = self._admin.describe_cluster().result(DEADLINE_S)
        return sorted(node.id for node in cluster.nodes), cluster.controller.id

    def create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        for future in self._admin.create_topics([NewTopic(topic, partitions, replication, config=configs)]).values():
            future.result(DEADLINE_S)

    def topics(self) -> list[str]:
        return sorted(self._admin.list_topics(timeout=DEADLINE_S).topics)

    def partitions(self, topic: str) -> list[int]:
        return sorted(self._admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)

    def alter_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(DEADLINE_S)

    def config(self, topic: str, name: str) -> str:
        futures = self._admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
        return str(next(iter(futures.values())).result(DEADLINE_S)[name].value)

    def delete_topic(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result(DEADLINE_S)

    def produce(self, topic: str, partition: int, messages: list[Message], codec: str) -> list[int]:
        producer = Producer(
            {
                **self._common,
                "acks": "all",
                "compression.type": codec,
                "enable.idempotence": True,
                "message.max.bytes": MAX_MESSAGE_BYTES,
            }
        )
        offsets: dict[int, int] = {}
        failures: list[str] = []

        def delivered(number: int) -> Any:
            def report(error: Any, message: Any) -> None:
                if error is not None:
                    failures.append(str(error))
                else:
                    offsets[number] = message.offset()

            return report

        for number, message in enumerate(messages):
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=partition,
                timestamp=message.timestamp or 0,
                on_delivery=delivered(number),
            )
            producer.poll(0)
        left = producer.flush(DEADLINE_S)
        assert left == 0 and not failures, (left, failures[:3])
        return [offsets[number] for number in range(len(messages))]

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            found: list[Message] = []
            end = time.monotonic() + DEADLINE_S
            while len(found) < count and time.monotonic() < end:
                for record in consumer.consume(500, timeout=0.5):
                    assert record.error() is None, record.error()
                    headers = tuple((name, value) for name, value in record.headers() or ())
                    found.append(Message(record.value(), record.key(), headers, record.timestamp()[1], record.offset()))
            return found
        finally:
            consumer.close()

    def end_offset(self, topic: str, partition: int) -> int:
        consumer = self._consumer()
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)[1])
        finally:
            consumer.close()
