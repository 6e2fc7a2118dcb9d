"""A simulated broker: the real replica manager in a process of its own, over disks that outlive it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from chronik.metadata.commands import RegisterBroker
from chronik.metadata.configs import ConfigView
from chronik.metadata.model import Result
from chronik.metadata.store import MetadataStore
from chronik.replication.lease import Lease
from chronik.replication.manager import ReplicaManager
from harness.simulated_log import Disk, SimulatedLogs, SlowReads
from simulation.replication.controller import HEARTBEAT_S, Entry
from simulation.replication.network import CONTROLLER, SimulatedTransport
from simulation.replication.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from simulation.replication.world import World

SLOW_SYNC_S = 0.4


class SimulatedNode:
    """One process of one node. A restart makes a new one over the same disks."""

    def __init__(
        self, world: World, node_id: int, life: int, directory: int, disks: dict[tuple[str, int], Disk]
    ) -> None:
        self.world = world
        self.node_id = node_id
        self.directory = directory
        self.disks = disks
        self.paused_until = -1.0
        self.incarnation = bytes([node_id, life % 256, life // 256]).ljust(16, b"i")
        self.loop = VirtualLoop(lambda: world.now)
        self._rng = random.Random(world.rng.random())
        self._proposals: dict[int, asyncio.Future[Result]] = {}
        self._next_proposal = 0
        self._grants: list[tuple[int, float]] = []
        self.transport = SimulatedTransport(world.network, self)
        self.store = MetadataStore(self)
        self.lease = Lease(lambda: world.now)
        self.slow_reads = self._draw_slow_reads(life)
        self.logs = SimulatedLogs(disks, self._sync_later, self.slow_reads)
        static = {"replica.lag.time.max.ms": str(int(world.conditions.lag_limit_s * 1000))}
        self.replicas = ReplicaManager(
            node_id,
            self.incarnation,
            self.store,
            self.logs,  # type: ignore[arg-type]
            configs=ConfigView(self.store.image, node_id, static),
            transport=self.transport,
            lease=self.lease,
            clock=lambda: world.now,
            isr_timeout_s=world.conditions.isr_timeout_s,
        )
        self.replicas.on_leadership(lambda partition, leads: world.history.leadership(self, partition, leads))
        self.loop.inside(self._start)

    def _start(self) -> None:
        self.replicas.start()
        self.loop.create_task(self._live())

    @property
    def paused(self) -> bool:
        return self.world.now < self.paused_until

    def _draw_slow_reads(self, life: int) -> SlowReads | None:
        """With dice of their own, so that a history without them is the same as ever."""
        conditions, seed = self.world.conditions, self.world.seed
        if not conditions.slow_read_share or self.world.healing:
            return None
        dice = random.Random(f"reads of node {self.node_id} in life {life} of seed {seed}")
        return SlowReads(dice, conditions.slow_read_share, conditions.slow_read_s)

    def _sync_later(self, finish: Callable[[], None]) -> None:
        conditions = self.world.conditions
        slow = self._rng.random() < conditions.slow_sync_share and not self.world.healing
        seconds = (SLOW_SYNC_S if slow else conditions.sync_s) * self._rng.uniform(0.5, 1.5)
        self.loop.call_later(seconds, finish)

    def crash(self, power_cut: bool) -> None:
        """The process is gone at once; the disk keeps what a disk keeps."""
        self.loop.dead = True
        self.logs.close()
        for disk in self.disks.values():
            disk.crash(self._rng if power_cut else None)

    # registration and heartbeats

    async def _live(self) -> None:
        while True:
            broker = self.store.image.brokers.get(self.node_id)
            if broker is None or broker.incarnation != self.incarnation:
                await self._register(broker.epoch if broker is not None else -1)
            else:
                self._heartbeat(broker.epoch)
            await asyncio.sleep(HEARTBEAT_S)

    async def _register(self, seen_epoch: int) -> None:
        directory_id = bytes([self.node_id, self.directory]).ljust(16, b"d")
        command = RegisterBroker(
            self.node_id, self.incarnation, "node", 9000, directory_id=directory_id, seen_epoch=seen_epoch
        )
        try:
            await self.store.propose(command, timeout_s=1.0)
        except TimeoutError:
            return

    def _heartbeat(self, registration: int) -> None:
        world, applied, sent_at = self.world, self.store.image.applied_index, self.world.now
        world.network.send(
            self.node_id,
            CONTROLLER,
            lambda: world.controller.heartbeat(self.node_id, registration, applied, sent_at),
            "heartbeats",
        )

    def lease_granted(self, until: float, index: int) -> None:
        """The promise holds for who knows what the controller knew: a lease counts once its metadata is applied."""
        self._grants.append((index, until))
        self._take_grants()

    def _take_grants(self) -> None:
        applied = self.store.image.applied_index
        for index, until in self._grants:
            if index <= applied:
                self.lease.renew(until)
        self._grants = [grant for grant in self._grants if grant[0] > applied]

    # metadata

    def catch_up(self, log: list[Entry]) -> None:
        for index, data, proposer, number in log[self.store.image.applied_index :]:
            result = self.store.apply([(index, data)])[0]
            assert isinstance(result, Result)
            waiting = self._proposals.pop(number, None) if proposer == self.node_id else None
            if waiting is not None and not waiting.done():
                waiting.set_result(result)
        self._take_grants()

    async def propose(self, data: bytes, timeout_s: float) -> object:
        self._next_proposal += 1
        number = self._next_proposal * 1000 + int.from_bytes(self.incarnation[1:3], "little")
        waiting: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._proposals[number] = waiting
        world = self.world
        world.network.send(
            self.node_id, CONTROLLER, lambda: world.controller.propose(data, self.node_id, number), "metadata"
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        finally:
            self._proposals.pop(number, None)

    async def read_barrier(self, timeout_s: float) -> None:
        return None
