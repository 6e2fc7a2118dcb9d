"""A node in the test's own process that coordinates groups: real metadata, logs on disk, router and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chronik.broker.context import Services
from chronik.broker.limits import BrokerLimits
from chronik.broker.listener import Listener
from chronik.broker.router import Router
from chronik.config import load_config
from chronik.groups.coordinator import GroupCoordinator
from chronik.metadata.commands import CreateTopic, LeaderChange, SetPartitionLeader
from chronik.metadata.configs import ConfigView
from chronik.metadata.model import NO_LEADER
from chronik.metadata.store import MetadataStore
from chronik.protocol.wire import Message
from chronik.replication.lease import Lease
from chronik.replication.manager import ReplicaManager
from chronik.storage.manager import LogManager
from harness.metadata_double import SharedLog, bring_up, incarnation
from unit.broker.serving import KafkaClient

NODE_ID = 1
DEADLINE_S = 5.0
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1",
    "offsets.topic.num.partitions": "4",
    "durability": "os",
}


class CoordinatingNode:
    def __init__(self, root: Path, settings: dict[str, str]) -> None:
        config = load_config(environment={}, flags={"data_dir": str(root)}, broker_flags={**SETTINGS, **settings})
        self.store = SharedLog().join(MetadataStore())
        configs = ConfigView(self.store.image, NODE_ID, config.broker)
        self.logs = LogManager(root / "logs")
        self.replicas = ReplicaManager(
            NODE_ID, incarnation(NODE_ID), self.store, self.logs, configs=configs, lease=Lease.permanent()
        )
        self.skipped_ms = 0
        self.groups = GroupCoordinator(self.store, self.replicas, configs, clock_ms=self._clock_ms)
        services = Services(
            config=config,
            store=self.store,
            replicas=self.replicas,
            configs=configs,
            controller_id=lambda: NODE_ID,
            coordinators={"groups": self.groups},
        )
        self.listener = Listener(Router(services), limits=BrokerLimits(), metrics=services.metrics)
        self.address = ("", 0)
        self.client: KafkaClient

    def _clock_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self.skipped_ms

    @classmethod
    async def start(cls, root: Path, **settings: str) -> CoordinatingNode:
        node = cls(root, {name.replace("_", "."): value for name, value in settings.items()})
        await node.logs.start()
        node.groups.start()
        node.replicas.start()
        await bring_up(node.store, NODE_ID)
        node.address = await node.listener.start("127.0.0.1", 0)
        node.client = await node.connect()
        return node

    async def stop(self) -> None:
        await self.client.close()
        self.groups.stop()
        await self.listener.close()
        self.replicas.stop()
        await self.logs.close()

    async def connect(self) -> KafkaClient:
        client = await KafkaClient.connect(self.address)
        assert isinstance(client, KafkaClient)
        return client

    async def ask(self, request: Message, version: int) -> Any:
        return await self.client.ask(request, version)

    async def create_topic(self, name: str, partitions: int = 3) -> bytes:
        topic_id = bytes([len(self.store.image.topics) + 1]) * 16
        result = await self.store.propose(CreateTopic(name, topic_id, ((NODE_ID,),) * partitions, {}))
        assert result.ok, result
        return topic_id

    async def move_lead(self, topic: str, partition: int, leader: int) -> None:
        """Metadata gives the lead to a node, or to nobody."""
        info = self.store.image.topics[topic]
        change = LeaderChange(info.topic_id, partition, leader, info.partitions[partition].partition_epoch)
        result = await self.store.propose(SetPartitionLeader([change]))
        assert result.ok, result

    async def reload(self, partition: int) -> None:
        """The lead of a partition of the offsets topic goes and comes back: everything is read from the log."""
        await self.move_lead("__consumer_offsets", partition, NO_LEADER)
        await self.move_lead("__consumer_offsets", partition, NODE_ID)
        await self.until(lambda: not self.groups.shards.are_loading, "loaded")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        end = asyncio.get_running_loop().time() + DEADLINE_S
        while not condition():
            assert asyncio.get_running_loop().time() < end, f"waited in vain: {what}"
            await asyncio.sleep(0.002)
