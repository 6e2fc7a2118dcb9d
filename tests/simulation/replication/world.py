"""One history: a cluster, its clients and its misfortunes, all drawn from a seed, in simulated time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from chronik.metadata.commands import CreateTopic
from chronik.metadata.model import NO_LEADER, PartitionInfo
from chronik.protocol.errors import KafkaError
from chronik.replication.partition import Partition
from harness.simulated_log import Disk, entries_of, writable
from simulation.replication.conditions import Conditions, draw, slow_reads
from simulation.replication.controller import TICK_S, Controller
from simulation.replication.history import TOPIC, History, Violation
from simulation.replication.network import CONTROLLER, Network
from simulation.replication.node import SimulatedNode
from simulation.swarm import AS_DRAWN

CHECK_S = 0.25
PRODUCE_TIMEOUT_S = 2.0
HEAL_S = 40.0
MAX_EVENTS = 400_000
ATTEMPTS_FROM = 1_000  # the numbers of producers that try whether writes are taken again
HAPPENINGS = (
    "crash",
    "pause",
    "cut",
    "reset",
    "move",
    "reassign",
    "all_crash",
    "checkpoint",
    "produce",
    "consume",
)


class World:
    """Runs one seed to its end, or to the first broken promise."""

    def __init__(self, seed: int, changes: Mapping[str, Any] = AS_DRAWN, *, tell: bool = False) -> None:
        """`changes` replace some of the conditions that the seed draws, to look closer at one kind of history."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.conditions: Conditions = msgspec.structs.replace(draw(self.rng), **{**slow_reads(seed), **changes})
        self.now = 1000.0
        self.story: list[str] = []
        self._tell = tell
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.network = Network(self, self.conditions, random.Random(self.rng.random()))
        self.controller = Controller(self, random.Random(self.rng.random()))
        self.history = History(self, self.conditions.partitions)
        self.nodes: dict[int, SimulatedNode] = {}
        self.disks: dict[int, dict[tuple[str, int], Disk]] = {}
        self.wiped: set[int] = set()
        self.void = False
        self.healing = False
        self._lives = itertools.count(1)
        self._directories: dict[int, int] = {}
        self._values = itertools.count(1)
        self._busy: set[int] = set()
        self._known: dict[int, PartitionInfo] = {}

    # time

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def say(self, line: str) -> None:
        if self._tell:
            self.story.append(f"{self.now - 1000:8.4f} {line}")

    def run_until(self, end: float, stop: Callable[[], bool] | None = None) -> bool:
        """Runs what happens until then; True when `stop` said so earlier."""
        for _ in range(MAX_EVENTS):
            if self.void or (stop is not None and stop()):
                return True
            node, when = self._next_process()
            if self._events and (when is None or self._events[0][0] <= when):
                if self._events[0][0] > end:
                    break
                self.now, _, action = heapq.heappop(self._events)
                action()
            elif node is not None and when is not None and when <= end:
                self.now = max(self.now, when)
                node.loop.run()
                if node.loop.failures:
                    self._failed(node, node.loop.failures[0])
            else:
                break
        else:
            raise Violation(f"more than {MAX_EVENTS} events: something spins")
        self.now = max(self.now, end)
        return False

    @staticmethod
    def _failed(node: SimulatedNode, error: BaseException) -> None:
        if isinstance(error, Violation):
            raise error
        raise Violation(f"node {node.node_id} failed with {error!r}") from error

    def _next_process(self) -> tuple[SimulatedNode | None, float | None]:
        best: SimulatedNode | None = None
        best_time: float | None = None
        for node in self.nodes.values():
            when = node.loop.next_time()
            if when is not None:
                when = max(when, node.paused_until)
                if best_time is None or when < best_time:
                    best, best_time = node, when
        return best, best_time

    def deliver(self, node_id: int, action: Callable[[SimulatedNode], None]) -> None:
        """Something arrives at a process; a stopped one finds it when it goes on."""
        node = self.nodes.get(node_id)
        if node is not None:
            node.loop.call_soon(action, node)

    def running(self) -> Iterator[SimulatedNode]:
        return iter(self.nodes.values())

    # the run

    def run(self) -> None:
        """The whole history."""
        conditions = self.conditions
        for node_id in range(1, conditions.nodes + 1):
            self.disks[node_id] = {}
            self._directories[node_id] = 1
            self._boot(node_id)
        self.at(self.now + TICK_S, self.controller.tick)
        brokers = self.controller.image.brokers
        self.run_until(
            self.now + 10, lambda: len(brokers) == conditions.nodes and all(b.alive for b in brokers.values())
        )
        self._create_topic()
        for name in HAPPENINGS:
            self._repeat(getattr(conditions, f"{name}_rate"), getattr(self, f"_{name}"))
        self._every(CHECK_S, self.history.check)
        self.run_until(self.now + conditions.seconds)
        if not self.void:
            self._heal()

    def _create_topic(self) -> None:
        conditions = self.conditions
        ids = list(range(1, conditions.nodes + 1))
        assignments = []
        for _ in range(conditions.partitions):
            self.rng.shuffle(ids)
            assignments.append(tuple(ids[:3]))
        settings = {"durability": conditions.durability, "min.insync.replicas": str(conditions.min_isr)}
        assert self.controller.commit(CreateTopic(TOPIC, b"t" * 16, tuple(assignments), settings)).ok

    def _repeat(self, rate: float, action: Callable[[], None]) -> None:
        if rate <= 0:
            return

        def again() -> None:
            if self.healing:
                return
            action()
            self.at(self.now + self.rng.expovariate(rate), again)

        self.at(self.now + self.rng.expovariate(rate), again)

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.at(self.now + seconds, again)

        self.at(self.now + seconds, again)

    # faults

    def _boot(self, node_id: int) -> None:
        self.say(f"node {node_id} starts")
        self.nodes[node_id] = SimulatedNode(
            self, node_id, next(self._lives), self._directories[node_id], self.disks[node_id]
        )

    def _kill(self, node_id: int, *, power_cut: bool, wipe: bool = False) -> None:
        node = self.nodes.pop(node_id)
        self.say(f"node {node_id} dies{' without power' if power_cut else ''}{' and loses its disk' if wipe else ''}")
        node.crash(power_cut)
        self.network.drop_process(node_id)
        if wipe:
            self.wiped.add(node_id)
            self.disks[node_id] = {}
            self._directories[node_id] += 1

        def restart() -> None:
            if node_id not in self.nodes:
                self._boot(node_id)

        down = 0.1 if self.healing else self.rng.expovariate(1 / self.conditions.down_s)
        self.at(self.now + down, restart)

    def _crash(self) -> None:
        if not self.nodes:
            return
        node_id = self.rng.choice(list(self.nodes))
        conditions = self.conditions
        wipe = self.rng.random() < conditions.wipe_share and self._replaceable(node_id)
        self._kill(node_id, power_cut=self.rng.random() < conditions.power_cut_share, wipe=wipe)

    def _replaceable(self, node_id: int) -> bool:
        """Whether others hold everything, so that losing this disk loses nothing."""
        if self.wiped:
            return False
        partitions = self.controller.image.topics[TOPIC].partitions
        return all(any(member != node_id and member in self.nodes for member in info.isr) for info in partitions)

    def _all_crash(self) -> None:
        power_cut = self.rng.random() < self.conditions.power_cut_share
        for node_id in list(self.nodes):
            self._kill(node_id, power_cut=power_cut)

    def _pause(self) -> None:
        if self.nodes:
            node = self.nodes[self.rng.choice(list(self.nodes))]
            node.paused_until = self.now + self.rng.expovariate(1 / self.conditions.pause_s)
            self.say(f"node {node.node_id} is stopped for {node.paused_until - self.now:.2f} s")

    def _cut(self) -> None:
        places = [CONTROLLER, *self.disks]
        one, other = self.rng.sample(places, 2)
        seconds = self.rng.expovariate(1 / self.conditions.cut_s)
        one_way = self.rng.random() < self.conditions.one_way_share
        self.say(f"{one} -> {other} is cut for {seconds:.2f} s{'' if one_way else ', both ways'}")
        self.network.cut(one, other, seconds)
        if not one_way:
            self.network.cut(other, one, seconds)

    def _reset(self) -> None:
        one, other = self.rng.sample(list(self.disks), 2)
        self.network.reset(one, other)

    def _move(self) -> None:
        self.controller.move()

    def _reassign(self) -> None:
        self.controller.reassign()

    def _checkpoint(self) -> None:
        for node in self.nodes.values():
            for index in range(self.conditions.partitions):
                log = node.logs.get(TOPIC, index)
                if log is not None and not node.paused:
                    log.checkpoint()

    def metadata_changed(self) -> None:
        """The controller's image moved on."""
        topic = self.controller.image.topics.get(TOPIC)
        for node_id in list(self.wiped):
            broker = self.controller.image.brokers[node_id]
            if broker.alive and broker.directory_id[1] == self._directories[node_id]:
                self.wiped.discard(node_id)
        if topic is not None and any(not info.isr for info in topic.partitions):
            self.void = True  # the last replica in sync lost its disk: nothing can be promised about the rest
        if topic is None or self.void:
            return
        for index, info in enumerate(topic.partitions):
            if info is not self._known.get(index):
                self._known[index] = info
                self.say(f"partition {index}: leader {info.leader} epoch {info.leader_epoch} isr {info.isr}")
                self.history.in_sync_replicas_have_everything(index)

    # clients

    def _produce(self) -> None:
        producer = self.rng.randrange(self.conditions.producers)
        if producer in self._busy:
            return
        index = self.rng.randrange(self.conditions.partitions)
        leader = self.controller.image.topics[TOPIC].partitions[index].leader
        astray = leader == NO_LEADER or self.rng.random() < self.conditions.astray_share
        guess = self.rng.choice(list(self.disks)) if astray else leader
        node = self.nodes.get(guess)
        if node is None:
            return
        acks = 1 if self.rng.random() < self.conditions.acks_one_share else -1
        Produce(self, node, producer, index, [next(self._values) for _ in range(self.rng.choice((1, 1, 3)))], acks)

    def _consume(self) -> None:
        if not self.nodes:
            return
        node = self.nodes[self.rng.choice(list(self.nodes))]
        index = self.rng.randrange(self.conditions.partitions)
        node.loop.call_soon(self._read, node, index)

    def _read(self, node: SimulatedNode, index: int) -> None:
        partition = node.replicas.get(TOPIC, index)
        if partition is None or not partition.is_leader:
            return
        try:
            start = 0 if self.rng.random() < 0.1 else max(0, len(self.history.visible[index]) - 10)
            data = partition.read_nowait(min(start, partition.high_watermark), 1 << 30)
            self._end_offset_is_right(node, partition)
        except KafkaError:
            return
        if data is None:
            node.loop.create_task(self._read_from_disk(partition, min(start, partition.high_watermark)))
        else:
            self.history.read(index, entries_of(data))

    async def _read_from_disk(self, partition: Partition, offset: int) -> None:
        try:
            data = await partition.read(offset, 1 << 30)
        except KafkaError:
            return
        self.history.read(partition.index, entries_of(data))

    def _end_offset_is_right(self, node: SimulatedNode, partition: Partition) -> None:
        """The leader of the day tells an end offset that covers everything acknowledged before."""
        info = self.controller.image.topics[TOPIC].partitions[partition.index]
        current = (info.leader, info.leader_epoch) == (node.node_id, partition.leader_epoch)
        acknowledged = self.history.acknowledged[partition.index]
        if current and acknowledged and partition.latest_offset() <= max(acknowledged):
            raise Violation(
                f"node {node.node_id} tells end offset {partition.latest_offset()} of {partition.index}, "
                f"but {max(acknowledged)} was acknowledged"
            )

    def busy(self, producer: int) -> None:
        self._busy.add(producer)

    def rest(self, producer: int) -> None:
        self._busy.discard(producer)

    # the end

    def _heal(self) -> None:
        """Faults stop. Everything must come back by itself, and take writes again."""
        self.say("everything heals")
        self.healing = True
        for way in list(self.network.cuts):
            self.network.heal(way)
        for node in self.nodes.values():
            node.paused_until = min(node.paused_until, self.now)
            if node.slow_reads is not None:
                node.slow_reads.stopped = True
        for node_id in self.disks:
            if node_id not in self.nodes:
                self._boot(node_id)
        deadline = self.now + HEAL_S
        if not self.run_until(deadline, self._in_sync):
            raise Violation(f"not all replicas are in sync {HEAL_S} s after the last fault: {self._state()}")
        for index in range(self.conditions.partitions):
            self._write_once(index, deadline)
        if not self.run_until(deadline + HEAL_S, self._all_the_same):
            raise Violation(f"the replicas do not become equal after the last fault: {self._state()}")
        if not self.void:
            self.history.finish()

    def _write_once(self, index: int, deadline: float) -> None:
        value = next(self._values)
        acknowledged = self.history.acknowledged[index]

        def attempt() -> None:
            info = self.controller.image.topics[TOPIC].partitions[index]
            node = self.nodes.get(info.leader)
            if node is not None and not acknowledged_now():
                attempted = next(self._values)
                # Another producer each time: the last attempt may still wait, and nothing orders the two.
                Produce(self, node, ATTEMPTS_FROM + attempted, index, [attempted], -1)

        def acknowledged_now() -> bool:
            return any(found > value for found in acknowledged.values())

        attempt()
        while not self.run_until(min(self.now + 1.0, deadline), acknowledged_now):
            if self.now >= deadline:
                raise Violation(f"partition {index} takes no writes after the last fault: {self._state()}")
            attempt()

    def _in_sync(self) -> bool:
        partitions = self.controller.image.topics[TOPIC].partitions
        return len(self.nodes) == self.conditions.nodes and all(
            info.leader != NO_LEADER and len(info.isr) == len(info.replicas) and not info.reassigning
            for info in partitions
        )

    def _all_the_same(self) -> bool:
        for index, info in enumerate(self.controller.image.topics[TOPIC].partitions):
            logs = [self.nodes[node_id].logs.get(TOPIC, index) for node_id in info.replicas if node_id in self.nodes]
            ends = {(log.end_offset, log.high_watermark) if log is not None else (0, 0) for log in logs}
            if len(ends) != 1 or len(logs) != len(info.replicas) or any(end != mark for end, mark in ends):
                return False
        return True

    def _state(self) -> str:
        lines = []
        for index, info in enumerate(self.controller.image.topics[TOPIC].partitions):
            lines.append(f"{index}: {info}")
            for node in self.nodes.values():
                log = node.logs.get(TOPIC, index)
                partition = node.replicas.get(TOPIC, index)
                if log is not None:
                    lines.append(f"  node {node.node_id} end {log.end_offset} hw {log.high_watermark} {partition!r}")
        return "\n".join(lines)


class Produce:
    """One request of a producer that waits for the answer before it sends the next."""

    def __init__(
        self, world: World, node: SimulatedNode, producer: int, index: int, values: list[int], acks: int
    ) -> None:
        self._world = world
        self._producer = producer
        self._index = index
        self._values = values
        self._acks = acks
        self._settled = False
        world.busy(producer)
        world.at(world.now + world.network.latency(), lambda: node.loop.call_soon(self._arrive, node))
        world.at(world.now + PRODUCE_TIMEOUT_S, lambda: self._settle("unknown"))

    def _arrive(self, node: SimulatedNode) -> None:
        partition = node.replicas.get(TOPIC, self._index)
        if partition is None:
            self._settle("refused")
            return
        try:
            appended = partition.append(writable(*self._values), required_acks=self._acks, now_ms=0)
        except KafkaError:
            self._settle("refused")
            return
        epoch, base = partition.leader_epoch, appended.base_offset
        if self._acks == 1:
            self._acknowledge(node, base, epoch)
            return
        committed = partition.committed(appended.last_offset + 1)
        if committed is None:
            self._acknowledge(node, base, epoch)
        else:
            committed.add_done_callback(
                lambda done: self._settle("refused") if done.exception() else self._acknowledge(node, base, epoch)
            )

    def _acknowledge(self, node: SimulatedNode, base: int, epoch: int) -> None:
        history = self._world.history
        for position, value in enumerate(self._values):
            history.acknowledge(node, self._index, value, base + position, epoch, self._acks)
        if not self._settled and self._acks != 1:
            history.in_order(self._producer, self._index, base)
        self._settle("acknowledged")

    def _settle(self, outcome: str) -> None:
        if self._settled:
            return
        self._settled = True
        if outcome != "acknowledged":
            self._world.history.counts[outcome] += 1
        self._world.rest(self._producer)
