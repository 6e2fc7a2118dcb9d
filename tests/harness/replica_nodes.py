"""Replica managers of several nodes in one process: real metadata, logs in memory, requests that are plain calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from chronik.metadata import commands
from chronik.metadata.commands import (
    CreateTopic,
    LeaderChange,
    RegisterBroker,
    SetPartitionLeader,
    UpdateBrokerStatus,
)
from chronik.metadata.configs import ConfigView
from chronik.metadata.model import BrokerStatus, Result
from chronik.metadata.store import MetadataStore
from chronik.replication.lease import Lease
from chronik.replication.manager import ReplicaManager
from chronik.replication.partition import Partition
from harness.simulated_log import SimulatedLogs


class OneLog:
    """A consensus that agrees at once: every store applies every entry, in one order."""

    def __init__(self) -> None:
        self.stores: list[MetadataStore] = []
        self.entries: list[tuple[int, bytes]] = []
        self.refuse_with: Exception | None = None

    async def propose(self, data: bytes, timeout_s: float) -> object:
        await asyncio.sleep(0)
        if self.refuse_with is not None:
            raise self.refuse_with
        return self.commit(data)

    def commit(self, data: bytes) -> Result:
        self.entries.append((len(self.entries) + 1, data))
        results = [store.apply([self.entries[-1]])[0] for store in self.stores]
        result = results[0]
        assert isinstance(result, Result)
        return result

    async def read_barrier(self, timeout_s: float) -> None:
        return None


Handler = Callable[[int, bytes], Any]


class Wires:
    """Requests between nodes as calls; `cut` pairs do not reach each other."""

    def __init__(self) -> None:
        self.handlers: dict[tuple[int, str], Handler] = {}
        self.cut: set[tuple[int, int]] = set()
        self.requests: list[tuple[int, int, str]] = []

    def end(self, node_id: int) -> WireEnd:
        return WireEnd(self, node_id)


class WireEnd:
    def __init__(self, wires: Wires, node_id: int) -> None:
        self._wires = wires
        self._node_id = node_id

    def serve(self, kind: str, handler: Handler) -> None:
        self._wires.handlers[self._node_id, kind] = handler

    async def request(self, peer: int, kind: str, payload: bytes, *, channel: str, timeout_s: float) -> bytes:
        await asyncio.sleep(0)
        if (self._node_id, peer) in self._wires.cut:
            raise ConnectionError(f"node {peer} is out of reach")
        self._wires.requests.append((self._node_id, peer, kind))
        async with asyncio.timeout(timeout_s):
            answer = self._wires.handlers[peer, kind](self._node_id, payload)
            if inspect.isawaitable(answer):
                answer = await answer
        return answer if isinstance(answer, bytes) else b"".join(answer)


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Nodes:
    """A cluster of replica managers whose metadata is always the same."""

    def __init__(self, *node_ids: int, clock: Clock | None = None, static: dict[str, str] | None = None) -> None:
        self.consensus = OneLog()
        self.wires = Wires()
        self.clock = clock or Clock()
        self.stores: dict[int, MetadataStore] = {}
        self.logs: dict[int, SimulatedLogs] = {}
        self.managers: dict[int, ReplicaManager] = {}
        for node_id in node_ids:
            store = self.stores[node_id] = MetadataStore(self.consensus)
            self.consensus.stores.append(store)
            logs = self.logs[node_id] = SimulatedLogs()
            self.managers[node_id] = ReplicaManager(
                node_id,
                incarnation(node_id),
                store,
                logs,  # type: ignore[arg-type]
                configs=ConfigView(store.image, node_id, static),
                transport=self.wires.end(node_id),
                lease=Lease.permanent(self.clock),
                clock=self.clock,
            )

    def start(self, *, register: bool = True) -> None:
        for manager in self.managers.values():
            manager.start()
        if register:
            for node_id in self.managers:
                self.register(node_id)

    def stop(self) -> None:
        for manager in self.managers.values():
            manager.stop()

    def commit(self, command: commands.Command) -> Result:
        return self.consensus.commit(commands.encode(command))

    def register(self, node_id: int, *, incarnation_number: int = 0) -> None:
        seen = self.consensus.stores[0].image.brokers.get(node_id)
        self.commit(
            RegisterBroker(
                node_id,
                incarnation(node_id, incarnation_number),
                "localhost",
                9000 + node_id,
                seen_epoch=seen.epoch if seen is not None else -1,
            )
        )
        self.commit(UpdateBrokerStatus(node_id, BrokerStatus.ONLINE))

    def create(self, topic: str, *assignments: tuple[int, ...], number: int = 1, **configs: str) -> bytes:
        topic_id = (topic + str(number)).encode().ljust(16, b".")[:16]
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        assert self.commit(CreateTopic(topic, topic_id, assignments, settings)).ok
        return topic_id

    def elect(self, topic: str, index: int, leader: int, isr: tuple[int, ...] | None = None) -> None:
        image = self.consensus.stores[0].image
        info = image.topics[topic].partitions[index]
        change = LeaderChange(image.topics[topic].topic_id, index, leader, info.partition_epoch, isr)
        result = self.commit(SetPartitionLeader([change]))
        assert isinstance(result.value, list) and result.value[0].ok, result

    def partition(self, node_id: int, topic: str, index: int = 0) -> Partition:
        return self.managers[node_id].partition(topic, index)


def incarnation(node_id: int, number: int = 0) -> bytes:
    return bytes([node_id, number]).ljust(16, b"i")


async def settle(condition: Callable[[], object], what: str, turns: int = 2000) -> None:
    """Gives the loop turns until the condition holds. No clock is involved beyond the loop's own timers."""
    for turn in range(turns):
        if condition():
            return
        await asyncio.sleep(0 if turn < turns // 2 else 0.002)
    raise AssertionError(f"did not come about: {what}")
