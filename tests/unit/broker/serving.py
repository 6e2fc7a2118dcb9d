"""A broker in the test's own process: real metadata, replicas, router and sockets; logs in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

from chronik.broker.context import Services
from chronik.broker.limits import BrokerLimits
from chronik.broker.listener import Listener
from chronik.broker.router import Router
from chronik.broker.table import SERVED_APIS, ServedApi
from chronik.config import NodeConfig, load_config
from chronik.metadata.commands import CreateTopic
from chronik.metadata.configs import ConfigView
from chronik.metadata.store import MetadataStore
from chronik.protocol.api import response_class
from chronik.protocol.codec import decode_response, encode_request
from chronik.protocol.records import Compression, Record, build_batch
from chronik.protocol.wire import Message
from chronik.replication.lease import Lease
from chronik.replication.manager import ReplicaManager
from harness.metadata_double import SharedLog, bring_up, incarnation
from unit.broker.memory_log import MemoryLog, MemoryLogs
from unit.broker.wire_client import WireClient

M = TypeVar("M", bound=Message)

NODE_ID = 1
NOW_TIMESTAMP = 1_700_000_000_000


class KafkaClient(WireClient):
    """Speaks in messages. Correlation ids count up and are checked."""

    _next_id = 0
    client_id = "test"

    def send(self, request: Message, version: int) -> int:
        correlation_id = self._next_id
        self._next_id += 1
        for buffer in encode_request(request, version, correlation_id, self.client_id):
            self.writer.write(buffer)
        return correlation_id

    async def receive(self, cls: type[M], version: int, correlation_id: int) -> M:
        received, message = decode_response(cls, version, memoryview(await self.read_frame()))
        assert received == correlation_id, f"answer {received} came where {correlation_id} was due"
        return message

    async def ask(self, request: Message, version: int) -> Any:
        """Send a request and wait for its answer."""
        sent = self.send(request, version)
        return await self.receive(response_class(type(request).API), version, sent)  # type: ignore[attr-defined]


class ServedNode:
    """One node, number 1, of a cluster whose other nodes exist in metadata only."""

    def __init__(
        self,
        config: NodeConfig,
        limits: BrokerLimits,
        table: tuple[ServedApi, ...],
        coordinators: dict[str, Any] | None = None,
    ) -> None:
        self.history = SharedLog()
        self.store = self.history.join(MetadataStore())
        self.logs = MemoryLogs()
        self.lease = Lease.permanent()
        self.configs = ConfigView(self.store.image, NODE_ID, config.broker)
        self.replicas = ReplicaManager(
            NODE_ID,
            incarnation(NODE_ID),
            self.store,
            self.logs,  # type: ignore[arg-type]
            configs=self.configs,
            lease=self.lease,
        )
        self.controller = NODE_ID
        self.services = Services(
            config=config,
            store=self.store,
            replicas=self.replicas,
            configs=self.configs,
            controller_id=lambda: self.controller,
            coordinators=coordinators,
        )
        self.router = Router(self.services, table)
        self.listener = Listener(self.router, limits=limits, metrics=self.services.metrics)
        self.services.fetch_budget = self.listener.responses.fetch_budget
        self.address = ("", 0)
        self._clients: list[KafkaClient] = []

    @classmethod
    async def start(
        cls,
        *,
        brokers: int = 1,
        static: dict[str, str] | None = None,
        limits: BrokerLimits | None = None,
        table: tuple[ServedApi, ...] = SERVED_APIS,
        data_dir: Path = Path(),
        coordinators: dict[str, Any] | None = None,
    ) -> ServedNode:
        config = load_config(environment={}, flags={"data_dir": str(data_dir)}, broker_flags=static or {})
        node = cls(config, limits or BrokerLimits(), table, coordinators)
        node.replicas.start()
        if brokers:
            await bring_up(node.store, *range(1, brokers + 1))
        node.address = await node.listener.start("127.0.0.1", 0)
        return node

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        await self.listener.close()
        self.router.close()
        self.replicas.stop()

    async def connect(self) -> KafkaClient:
        client = await KafkaClient.connect(self.address)
        assert isinstance(client, KafkaClient)
        self._clients.append(client)
        return client

    async def create_topic(
        self, name: str, partitions: int = 1, replicas: tuple[int, ...] = (NODE_ID,), **configs: str
    ) -> bytes:
        """A topic straight in metadata; configs with underscores for dots. Returns its id."""
        topic_id = bytes([len(self.store.image.topics) + 1]) * 16
        named = {key.replace("_", "."): value for key, value in configs.items()}
        result = await self.store.propose(CreateTopic(name, topic_id, (replicas,) * partitions, named))
        assert result.ok, result
        return topic_id

    def log(self, topic: str, partition: int = 0) -> MemoryLog:
        found = self.replicas.partition(topic, partition).log
        assert isinstance(found, MemoryLog)
        return found

    def append(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Append one batch as a producer would."""
        self.replicas.partition(topic, partition).append(
            memoryview(bytearray(batch_of(*values))), required_acks=1, now_ms=NOW_TIMESTAMP
        )


def batch_of(
    *values: bytes, compression: Compression = Compression.NONE, key: bytes | None = b"k", **more: Any
) -> bytes:
    """One batch with a record per value, with offsets from 0."""
    records = [Record(offset, NOW_TIMESTAMP + offset, key, value) for offset, value in enumerate(values)]
    return bytes(build_batch(records, compression=compression, **more))


async def settled() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)
