"""An internal topic as its coordinators see it: where a key belongs, who leads there, and how the topic comes to be."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import structlog

from chronik.cluster.internal_topics import internal_topic
from chronik.cluster.placement import Cursor, place_in
from chronik.metadata.commands import CreateTopic
from chronik.metadata.store import as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from chronik.metadata.configs import ConfigView
    from chronik.metadata.model import BrokerInfo
    from chronik.metadata.store import MetadataStore

log = structlog.get_logger()

CREATE_TIMEOUT_S = 3.0
LEADER_WAIT_S = 1.0


def java_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 code units, in 32 bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(data), 2):
        value = (31 * value + (data[position] << 8 | data[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partitions: int) -> int:
    """The partition of an internal topic that a key belongs to, as in Kafka."""
    hashed = java_hash(key)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions


class InternalTopicAccess:
    """Finds and creates one internal topic. Whoever asks first creates it; others wait for the same proposal."""

    def __init__(self, store: MetadataStore, configs: ConfigView, name: str) -> None:
        self.name = name
        self._store = store
        self._configs = configs
        self._cursor = Cursor(random.randrange(1 << 16))
        self._creating: asyncio.Task[None] | None = None

    @property
    def partitions(self) -> int:
        """How many partitions the topic has; 0 when there is no topic."""
        topic = self._store.image.topics.get(self.name)
        return len(topic.partitions) if topic is not None else 0

    def leader_of(self, key: str) -> BrokerInfo | None:
        """The broker that coordinates a key, if there is one and it is alive."""
        image = self._store.image
        topic = image.topics.get(self.name)
        if topic is None:
            return None
        return image.brokers.get(image.alive_leader(topic.partitions[partition_for(key, len(topic.partitions))]))

    async def ensure(self) -> None:
        """Returns when the topic exists here. Raises KafkaError(COORDINATOR_NOT_AVAILABLE) when that takes too long."""
        if self.partitions:
            return
        if self._creating is None or self._creating.done():
            self._creating = asyncio.get_running_loop().create_task(self._create())
        try:
            await asyncio.shield(self._creating)
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error

    async def wait_for_leader(self, key: str) -> BrokerInfo | None:
        """The leader, given a moment to be elected."""
        if self.leader_of(key) is None:
            await self._store.wait_until(lambda image: self.leader_of(key) is not None, LEADER_WAIT_S)
        return self.leader_of(key)

    async def _create(self) -> None:
        image = self._store.image
        wanted = internal_topic(self.name, image, self._configs)
        try:
            placement = place_in(image, wanted.partitions, wanted.replication_factor, self._cursor)
            command = CreateTopic(wanted.name, os.urandom(16), placement.assignments, wanted.configs)
            result = await self._store.propose(command, CREATE_TIMEOUT_S)
        except Exception as error:
            raise as_kafka_error(error) from error
        if result.ok:
            log.info("created an internal topic", topic=self.name, partitions=wanted.partitions)
        elif result.error is not ErrorCode.TOPIC_ALREADY_EXISTS:
            result.raise_for_error()
