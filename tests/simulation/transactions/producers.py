"""Producers of KIP-890 as the simulation runs them: instances of a transactional id that begin, write, end, retry, are
abandoned, or go on as zombies while a newer one has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from chronik.coordination.topic_access import partition_for
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.transactions.state import KIP_890

if TYPE_CHECKING:
    from simulation.transactions.history import Attempt
    from simulation.transactions.model import Place
    from simulation.transactions.world import SimulatedNode, World

REQUEST_S = 1.5
PAUSE_S = 0.05
TRIES_MAX = 40


class GaveUp(Exception):
    """No answer that would let this instance go on."""


class Instance:
    """One process with a transactional id."""

    def __init__(self, world: World, transactional_id: str, number: int) -> None:
        self._world = world
        self._id = transactional_id
        self.number = number
        self.producer_id = -1
        self.epoch = -1
        self._grant = (-1, -1)
        self._sequences: dict[Place, int] = {}

    async def run(self) -> None:
        try:
            await self._init()
            while not self._world.calm:
                await self._transaction()
                await asyncio.sleep(self._world.rng.expovariate(10))
        except GaveUp:
            await asyncio.sleep(self._world.rng.expovariate(2))
            if not self._world.calm:
                self._world.start_instance(self._id)

    async def _init(self) -> None:
        async def ask(node: SimulatedNode) -> Any:
            return await node.coordinator.init_producer_id(self._id, self._world.conditions.timeout_ms)

        self._become(await self._until_answered(lambda: self._coordinator(ask)))
        self._grant = (self.producer_id, self.epoch)
        self._world.history.began(self._id, self._grant)

    def _become(self, told: tuple[int, int]) -> None:
        self.producer_id, self.epoch = told
        self._sequences.clear()

    async def _transaction(self) -> None:
        world = self._world
        attempt = world.history.begin(self._id, self.number, self._grant)
        sound = True
        for _ in range(world.rng.randint(1, 4)):
            sound = await self._write(attempt) and sound
        if world.rng.random() < world.conditions.abandon:
            raise GaveUp
        if world.rng.random() < 0.1:
            await asyncio.sleep(world.rng.uniform(0.5, 3.0))  # long enough for others to take over
        attempt.asked = sound and world.rng.random() < 0.7
        await self._end(attempt, attempt.asked)

    async def _write(self, attempt: Attempt) -> bool:
        """One value; false when it is not known whether it was written."""
        world = self._world
        place = ("data", world.rng.randrange(world.conditions.data_partitions))
        value, sequence = world.next_value(), self._sequences.get(place, 0)
        world.history.send(attempt, value)
        who = (self.producer_id, self.epoch)

        async def ask(node: SimulatedNode) -> Any:
            return await produce(node, self._id, *who, place, value, sequence)

        try:
            await self._until_answered(lambda: world.call(world.clients, world.leader(place), ask, REQUEST_S))
        except GaveUp:
            return False
        attempt.acknowledged.add(value)
        self._sequences[place] = sequence + 1
        return True

    async def _end(self, attempt: Attempt, commit: bool) -> None:
        who = (self.producer_id, self.epoch)
        newest = self._world.history.newest[self._id]

        async def ask(node: SimulatedNode) -> Any:
            return await node.coordinator.end(self._id, *who, commit, KIP_890)

        told = await self._until_answered(lambda: self._coordinator(ask))
        self._world.history.ended(attempt, newest)
        self._become(told)

    async def _coordinator(self, ask: Callable[[SimulatedNode], Awaitable[Any]]) -> Any:
        place = ("__transaction_state", partition_for(self._id, self._world.conditions.state_partitions))
        return await self._world.call(self._world.clients, self._world.leader(place), ask, REQUEST_S)

    async def _until_answered(self, call: Callable[[], Awaitable[Any]]) -> Any:
        for _ in range(TRIES_MAX):
            try:
                return await call()
            except TimeoutError:
                continue
            except KafkaError as error:
                if not error.code.retriable:
                    raise GaveUp from error
            await asyncio.sleep(PAUSE_S)
        raise GaveUp


async def produce(
    node: SimulatedNode, transactional_id: str, producer_id: int, epoch: int, place: Place, value: int, sequence: int
) -> int:
    """What the handler of Produce does for a batch of version 12."""
    partition = node.replicas.partition(*place)
    partition.require_leader()
    if not partition.has_open_transaction(producer_id, epoch):
        codes = await node.coordinator.membership.ask(transactional_id, producer_id, epoch, [place], join=True)
        if codes[place] is not ErrorCode.NONE:
            raise KafkaError(codes[place], codes[place].name)
    batch = build_batch(
        [Record(0, 0, b"k", str(value).encode())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    appended = partition.append(memoryview(batch))
    committed = partition.committed(appended.last_offset + 1)
    if committed is not None:
        await committed
    return appended.base_offset
