"""One history: three nodes with real coordinators, producers of KIP-890, and their misfortunes, drawn from a seed.

Requests of clients and between nodes are lost, late, out of order and delivered twice; nodes crash and are replaced;
leadership of every partition moves, and nodes hear of it late. Time is simulated.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import msgspec

from chronik.protocol.errors import KafkaError
from chronik.transactions.coordinator import TransactionCoordinator
from simulation.replication.virtual_loop import VirtualLoop
from simulation.swarm import AS_DRAWN
from simulation.transactions.history import History, Violation
from simulation.transactions.model import Info, Place, Replica, Replicas, TrueLog, View
from simulation.transactions.producers import Instance

STATE = "__transaction_state"
DATA = "data"
SETTINGS = {
    "transaction.max.timeout.ms": 900_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "transactional.id.expiration.ms": 900_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 60_000,
}
READ_S = 0.2
CALM_S = 60.0
MAX_EVENTS = 300_000


class Conditions(msgspec.Struct, frozen=True):
    """What one seed is like."""

    nodes: int
    state_partitions: int
    data_partitions: int
    ids: int
    seconds: float
    latency_s: float
    sync_s: float
    lost: float
    twice: float
    late_s: float
    crash_rate: float
    move_rate: float
    learn_s: float
    new_instance_rate: float
    abandon: float
    timeout_ms: int


def draw(rng: random.Random) -> Conditions:
    def sometimes(chance: float, *values: float) -> float:
        return rng.choice(values) if rng.random() < chance else 0.0

    return Conditions(
        nodes=3,
        state_partitions=rng.choice((1, 2)),
        data_partitions=rng.choice((1, 2, 3)),
        ids=rng.choice((1, 2, 3)),
        seconds=rng.choice((10.0, 20.0)),
        latency_s=rng.choice((0.001, 0.01)),
        sync_s=rng.choice((0.002, 0.02, 0.1)),
        lost=sometimes(0.5, 0.02, 0.1),
        twice=sometimes(0.6, 0.05, 0.3),
        late_s=rng.choice((0.1, 0.5, 2.0)),
        crash_rate=sometimes(0.6, 0.1, 0.4),
        move_rate=sometimes(0.6, 0.3, 1.5),
        learn_s=rng.choice((0.01, 0.3, 1.0)),
        new_instance_rate=sometimes(0.6, 0.1, 0.5),
        abandon=sometimes(0.5, 0.05, 0.2),
        timeout_ms=rng.choice((1500, 4000)),
    )


class SimulatedNode:
    """One process of a node."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.loop = VirtualLoop(lambda: world.now)
        self.handlers: dict[str, Callable[[int, bytes], Any]] = {}
        self.image = View(world.conditions.nodes)
        self.replicas = Replicas()
        for place, truth in world.logs.items():
            self.replicas.all[place] = Replica(self, truth)
        self.coordinator = TransactionCoordinator(
            node_id,
            self,  # type: ignore[arg-type]
            self.replicas,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,
            new_producer_id=world.new_producer_id,
            offsets_marker=lambda index, producer_id, commit: None,
            clock_ms=lambda: int(world.now * 1000),
        )
        self.loop.inside(self.coordinator.start)
        for place, truth in world.logs.items():
            self.loop.inside(self.learn, place, Info(truth.leader, truth.epoch))

    def broker_int(self, name: str) -> int:
        return SETTINGS[name]

    async def read_barrier(self, timeout_s: float) -> None:
        return None

    def learn(self, place: Place, info: Info) -> None:
        known = self.image.partition(*place)
        if known is None or known.leader_epoch < info.leader_epoch:
            self.image.put(place, info)
            self.replicas.learn(place, info)

    # the transport

    def serve(self, kind: str, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None:
        self.handlers[kind] = handler

    async def request(self, peer: int, kind: str, payload: bytes, *, timeout_s: float) -> bytes:
        async def run(node: SimulatedNode) -> Any:
            result = node.handlers[kind](self.node_id, payload)
            return await result if inspect.isawaitable(result) else result

        answer: bytes = await self.world.call(self.loop, peer, run, timeout_s)
        return answer


class World:
    """Runs one seed to its end, or to the first broken promise."""

    def __init__(self, seed: int, changes: Mapping[str, Any] = AS_DRAWN) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.conditions: Conditions = msgspec.structs.replace(draw(self.rng), **changes)
        self.now = 1000.0
        self.calm = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._producer_ids = itertools.count(1)
        self._values = itertools.count(1)
        self._instances = itertools.count(1)
        self.history = History(self)
        self.clients = VirtualLoop(lambda: self.now)
        self.logs: dict[Place, TrueLog] = {}
        self.nodes: dict[int, SimulatedNode] = {}

    # time

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def run_until(self, end: float, stop: Callable[[], bool] = lambda: False) -> bool:
        for _ in range(MAX_EVENTS):
            if stop():
                return True
            loops = [(self.clients.next_time(), 0, self.clients)]
            loops += [(node.loop.next_time(), node_id, node.loop) for node_id, node in self.nodes.items()]
            due = min(((when, order, loop) for when, order, loop in loops if when is not None), default=None)
            if self._events and (due is None or self._events[0][0] <= due[0]):
                if self._events[0][0] > end:
                    break
                self.now, _, action = heapq.heappop(self._events)
                action()
            elif due is not None and due[0] <= end:
                self.now = max(self.now, due[0])
                due[2].run()
                if due[2].failures:
                    raise due[2].failures[0]
            else:
                break
        else:
            raise Violation(f"more than {MAX_EVENTS} events: something spins")
        self.now = max(self.now, end)
        return stop()

    def deliver(self, node_id: int, action: Callable[[SimulatedNode], None]) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            node.loop.call_soon(action, node)

    def latency(self) -> float:
        return self.conditions.latency_s * self.rng.uniform(0.2, 3.0)

    def sync_time(self) -> float:
        return self.conditions.sync_s * self.rng.uniform(0.2, 3.0)

    # the network

    async def call(
        self, home: VirtualLoop, node_id: int, run: Callable[[SimulatedNode], Awaitable[Any]], timeout_s: float
    ) -> Any:
        """A request and its answer; either may be lost or late, and the request may arrive twice. TimeoutError."""
        answer: asyncio.Future[Any] = home.create_future()

        def respond(result: Any) -> None:
            if self.calm or self.rng.random() >= self.conditions.lost:
                self.at(self.now + self.latency(), lambda: home.call_soon(settle, result))

        def settle(result: Any) -> None:
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        async def served(node: SimulatedNode) -> None:
            try:
                respond(await run(node))
            except KafkaError as error:
                respond(error)

        def arrive() -> None:
            self.deliver(node_id, lambda node: node.loop.create_task(served(node)) and None)

        if self.calm or self.rng.random() >= self.conditions.lost:
            self.at(self.now + self.latency(), arrive)
        if not self.calm and self.rng.random() < self.conditions.twice:
            self.at(self.now + self.rng.expovariate(1 / self.conditions.late_s), arrive)
        async with asyncio.timeout(timeout_s):
            return await answer

    async def new_producer_id(self) -> int:
        await asyncio.sleep(self.latency())
        return next(self._producer_ids)

    # the run

    def run(self) -> None:
        with patch("chronik.coordination.loader.monotonic", lambda: self.now):
            self._run()

    def _run(self) -> None:
        conditions = self.conditions
        places = [(STATE, index) for index in range(conditions.state_partitions)]
        places += [(DATA, index) for index in range(conditions.data_partitions)]
        for place in places:
            self.logs[place] = TrueLog(self, place, self.rng.randint(1, conditions.nodes))
        for node_id in range(1, conditions.nodes + 1):
            self.nodes[node_id] = SimulatedNode(self, node_id)
        for number in range(conditions.ids):
            self.start_instance(f"id-{number}")
        self._repeat(conditions.crash_rate, self._crash)
        self._repeat(conditions.move_rate, self._move)
        self._repeat(conditions.new_instance_rate, lambda: self.start_instance(self._any_id()))
        self._every(READ_S, self.history.read)
        self.run_until(self.now + conditions.seconds)
        self.calm = True
        if not self.run_until(self.now + CALM_S, lambda: self.history.check_calm() is None):
            raise Violation(f"not decided {CALM_S} s after the last fault: {self.history.check_calm()}")
        self.history.read()
        self.history.check()

    def _repeat(self, rate: float, action: Callable[[], None]) -> None:
        if rate <= 0:
            return

        def again() -> None:
            if not self.calm:
                action()
                self.at(self.now + self.rng.expovariate(rate), again)

        self.at(self.now + self.rng.expovariate(rate), again)

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.at(self.now + seconds, again)

        self.at(self.now + seconds, again)

    def data_logs(self) -> Iterator[TrueLog]:
        return (log for place, log in self.logs.items() if place[0] == DATA)

    def next_value(self) -> int:
        return next(self._values)

    def _any_id(self) -> str:
        return f"id-{self.rng.randrange(self.conditions.ids)}"

    def start_instance(self, transactional_id: str) -> None:
        """A new process with this id; older ones may go on for a while."""
        instance = Instance(self, transactional_id, next(self._instances))
        self.clients.create_task(instance.run())

    # faults

    def _crash(self) -> None:
        if len(self.nodes) < 2:
            return
        node_id = self.rng.choice(sorted(self.nodes))
        self.nodes.pop(node_id).loop.dead = True
        for log in self.logs.values():
            if log.leader == node_id:
                self.at(self.now + self.rng.uniform(0.2, 0.8), lambda log=log: self._elect(log))  # type: ignore[misc]
        self.at(self.now + self.rng.uniform(0.1, 2.0), lambda: self._boot(node_id))

    def _boot(self, node_id: int) -> None:
        self.nodes[node_id] = SimulatedNode(self, node_id)

    def _move(self) -> None:
        self._elect(self.rng.choice(list(self.logs.values())))

    def _elect(self, log: TrueLog) -> None:
        others = [node_id for node_id in sorted(self.nodes) if node_id != log.leader]
        if not others:
            self.at(self.now + 0.1, lambda: self._elect(log))
            return
        kept = self.rng.choice((log.high_watermark, log.end, self.rng.randint(log.high_watermark, log.end)))
        log.move(self.rng.choice(others), kept)
        info = Info(log.leader, log.epoch)
        for node_id in sorted(self.nodes):
            delay = self.rng.expovariate(1 / self.conditions.learn_s)
            self.at(
                self.now + delay,
                lambda node_id=node_id: self.deliver(node_id, lambda node: node.learn(log.place, info)),  # type: ignore[misc]
            )

    # what clients see

    def leader(self, place: Place) -> int:
        """Where a client sends a request; sometimes it is wrong."""
        if not self.calm and self.rng.random() < 0.03:
            return self.rng.randint(1, self.conditions.nodes)
        return self.logs[place].leader
