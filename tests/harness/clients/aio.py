"""aiokafka behind the common face."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from harness.clients.message import CODECS, Message

T = TypeVar("T")
DEADLINE_S = 30.0
MAX_MESSAGE_BYTES = 4 * 1024 * 1024


class AioKafka:
    has_headers = True
    has_timestamps = True
    can_alter = True
    can_create = True
    codecs = CODECS

    def __init__(self, bootstrap: str) -> None:
        self.name = f"aiokafka-{aiokafka.__version__}"
        self._bootstrap = bootstrap

    def _with_admin(self, action: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        async def run() -> T:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                return await action(admin)
            finally:
                await admin.close()

        return asyncio.run(asyncio.wait_for(run(), DEADLINE_S))

    def _with_consumer(self, action: Callable[[AIOKafkaConsumer], Awaitable[T]]) -> T:
        async def run() -> T:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                enable_auto_commit=False,
                auto_offset_reset="none",
                max_partition_fetch_bytes=MAX_MESSAGE_BYTES,
            )
            await consumer.start()
            try:
                return await action(consumer)
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(run(), DEADLINE_S))

    def brokers(self) -> tuple[list[int], int]:
        cluster = self._with_admin(lambda admin: admin.describe_cluster())
        return sorted(broker["node_id"] for broker in cluster["brokers"]), cluster["controller_id"]

    def create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        new = NewTopic(topic, partitions, replication, topic_configs=configs)
        response = self._with_admin(lambda admin: admin.create_topics([new]))
        assert all(error[1] == 0 for error in response.topic_errors), response

    def topics(self) -> list[str]:
        return sorted(self._with_admin(lambda admin: admin.list_topics()))

    def partitions(self, topic: str) -> list[int]:
        described = self._with_admin(lambda admin: admin.describe_topics([topic]))
        return sorted(partition["partition"] for partition in described[0]["partitions"])

    def alter_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        self._with_admin(lambda admin: admin.alter_configs([resource]))

    def config(self, topic: str, name: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: ""})
        responses = self._with_admin(lambda admin: admin.describe_configs([resource]))
        for response in responses:
            for found in response.resources:
                for entry in found[4]:
                    if entry[0] == name:
                        return str(entry[1])
        raise AssertionError(f"no {name} in {responses!r}")

    def delete_topic(self, topic: str) -> None:
        self._with_admin(lambda admin: admin.delete_topics([topic]))

    def produce(self, topic: str, partition: int, messages: list[Message], codec: str) -> list[int]:
        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                acks="all",
                enable_idempotence=True,
                compression_type=None if codec == "none" else codec,
                max_request_size=MAX_MESSAGE_BYTES,
                linger_ms=5,
            )
            await producer.start()
            try:
                pending: list[Any] = [
                    await producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        headers=list(message.headers),
                        partition=partition,
                        timestamp_ms=message.timestamp,
                    )
                    for message in messages
                ]
                return [(await future).offset for future in pending]
            finally:
                await producer.stop()

        return asyncio.run(asyncio.wait_for(run(), DEADLINE_S))

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        async def run(consumer: AIOKafkaConsumer) -> list[Message]:
            where = TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            found: list[Message] = []
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found.extend(
                        Message(record.value, record.key, tuple(record.headers), record.timestamp, record.offset)
                        for record in records
                    )
            return found

        return self._with_consumer(run)

    def end_offset(self, topic: str, partition: int) -> int:
        where = TopicPartition(topic, partition)

        async def run(consumer: AIOKafkaConsumer) -> int:
            consumer.assign([where])
            return int((await consumer.end_offsets([where]))[where])

        return self._with_consumer(run)
