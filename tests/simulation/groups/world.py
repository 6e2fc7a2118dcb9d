"""A seeded world of groups: real coordinators over a simulated log, members over a bad network, at virtual time.

A seed decides how bad it is, and everything that happens; the same seed is the same run. After the faults end, groups
must come to rest.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from chronik.groups.coordinator import GroupCoordinator
from chronik.groups.offset_service import FetchedOffset, OffsetToCommit
from chronik.protocol.errors import ErrorCode, KafkaError
from simulation.groups.checker import Checker, Violation
from simulation.groups.coordinators import Node, metadata
from simulation.groups.log import ReplicatedLog
from simulation.groups.members import REBALANCE_MS, SESSION_MS, TOPIC, ClassicMember, ConsumerMember
from simulation.replication.virtual_loop import VirtualLoop

START_S = 1_000_000.0
FAULTS_S = 60.0
CALM_S = 40.0
ANSWER_LIMIT_S = (REBALANCE_MS + SESSION_MS) / 1000 + 8.0
"""A join may wait for the rebalance, a member id nobody uses, and the write that follows."""

SETTINGS = {
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
}


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = START_S
        self.loop = VirtualLoop(lambda: self.now)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        rng = self.rng
        self.partitions = rng.randint(1, 6)
        self.loss = rng.choice([0.0, 0.02, 0.1])
        self.delay_s = rng.choice([0.002, 0.05, 0.5])
        self.handover_every_s = rng.choice([2.0, 8.0, 20.0])
        self.churn_every_s = rng.choice([1.0, 4.0, 15.0])
        self.log = ReplicatedLog(rng, self.later)
        self.log.commit_delay_s = rng.choice([0.0, 0.05, 1.0])
        self.log.refuse_writes = rng.choice([0.0, 0.0, 0.05])
        self.checker = Checker(self)
        self.store = metadata({TOPIC: self.partitions})
        self.topic_id = self.store.image.topics[TOPIC].topic_id
        self.node: Node | None = None
        self.zombie: Node | None = None
        self.waiting: dict[int, tuple[float, Node]] = {}
        self.classics: list[ClassicMember] = []
        self.consumers: list[ConsumerMember] = []
        self._names = self._ids = self._requests = self._value = 0
        self.calm = False

    # --- time ----------------------------------------------------------------------------------------------------

    def later(self, delay_s: float, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + delay_s, self._order, event))

    def run(self) -> None:
        self.loop.inside(self.handover)
        for _ in range(self.rng.randint(1, 4)):
            self.new_classic()
            self.new_consumer()
        self._fault_events()
        self._run_until(START_S + FAULTS_S)
        self.calm = True
        self.loss = self.log.refuse_writes = 0.0
        self.delay_s, self.log.commit_delay_s = 0.01, 0.01
        self._retire_zombie()
        self.loop.inside(self._end_rivalries)
        self._run_until(START_S + FAULTS_S + CALM_S)
        self._check_rest()

    def _run_until(self, end: float) -> None:
        while True:
            self.loop.run()
            if self.loop.failures:
                raise self.loop.failures[0]
            times = [t for t in (self.loop.next_time(), self._events[0][0] if self._events else None) if t is not None]
            if not times or min(times) > end:
                self.now = end
                return
            self.now = max(self.now, min(times))
            while self._events and self._events[0][0] <= self.now:
                self.loop.inside(heapq.heappop(self._events)[2])
            self._check_answers()

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def _fault_events(self) -> None:
        def handover() -> None:
            if not self.calm:
                self.handover()
                self.later(self.handover_every_s * (0.5 + self.rng.random()), handover)

        def churn() -> None:
            if not self.calm:
                self.churn()
                self.later(self.churn_every_s * (0.5 + self.rng.random()), churn)

        def look() -> None:
            self.fetch(self.rng.choice(["classic", "consumer"]), self.rng.randrange(self.partitions))
            self.later(0.5, look)

        self.later(self.handover_every_s, handover)
        self.later(self.churn_every_s, churn)
        self.later(0.5, look)

    def handover(self) -> None:
        """Another node leads: the old one is dead, or told, or goes on for a while without having noticed."""
        old = self.node
        self._retire_zombie()
        if old is not None and self.rng.random() < 0.4:
            old.crash()
            self._forget_requests_of(old)
            old = None
        self.node = Node(self.log, self.store, SETTINGS, lambda: int(self.now * 1000), self._new_id)
        if old is not None:
            self.zombie = old
            self.later(self.rng.random() * 3, lambda: self._retire(old))

    def _retire(self, node: Node) -> None:
        if self.zombie is node:
            self._retire_zombie()

    def _retire_zombie(self) -> None:
        if self.zombie is not None:
            self.loop.inside(self.zombie.resign)
            self.zombie = None

    def _end_rivalries(self) -> None:
        """Two processes with one instance id fence each other for ever, as they should: one of them ends."""
        seen: set[str] = set()
        for member in list(self.classics):
            if member.instance_id is not None and member.instance_id in seen:
                member.stop(politely=False)
                self.classics.remove(member)
            elif member.instance_id is not None:
                seen.add(member.instance_id)

    def churn(self) -> None:
        """A member comes or goes."""
        members: list[Any] = [*self.classics, *self.consumers]
        if len(members) > 8 or (len(members) > 1 and self.rng.random() < 0.5):
            victim = self.rng.choice(members)
            victim.stop(politely=self.rng.random() < 0.5)
            (self.classics if isinstance(victim, ClassicMember) else self.consumers).remove(victim)
        elif self.rng.random() < 0.5:
            self.new_classic()
        else:
            self.new_consumer()

    def new_classic(self) -> None:
        self._names += 1
        instance = f"static-{self.rng.randint(1, 3)}" if self.rng.random() < 0.3 else None
        self.loop.inside(lambda: self.classics.append(ClassicMember(self, f"c{self._names}", instance)))

    def new_consumer(self) -> None:
        self._names += 1
        self.loop.inside(lambda: self.consumers.append(ConsumerMember(self, f"k{self._names}")))

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    # --- the network ---------------------------------------------------------------------------------------------

    def send(
        self, call: Callable[[GroupCoordinator, Callable[[Any], None]], None], receive: Callable[[Any], None]
    ) -> None:
        """A request on its way; it, or its answer, may be late or lost, or reach a node that no longer leads."""
        if self.rng.random() < self.loss:
            return
        self.later(self._delay(), lambda: self._deliver(call, receive))

    def _delay(self) -> float:
        return self.rng.random() * self.delay_s

    def _deliver(self, call: Callable[[GroupCoordinator, Callable[[Any], None]], None], receive: Any) -> None:
        node = self.zombie if self.zombie is not None and self.rng.random() < 0.3 else self.node
        assert node is not None
        self._requests += 1
        number = self._requests
        self.waiting[number] = (self.now, node)

        def reply(answer: Any) -> None:
            if not node.alive and self.waiting.get(number) is None:
                return  # the dead do not speak
            if self.waiting.pop(number, None) is None:
                raise Violation("a request was answered twice")
            self.checker.counts["answers"] += 1
            if self.rng.random() >= self.loss:
                self.later(self._delay(), lambda: receive(answer))

        try:
            call(node.coordinator, reply)
        except KafkaError as error:
            reply(error.code)

    def _forget_requests_of(self, node: Node) -> None:
        self.waiting = {number: kept for number, kept in self.waiting.items() if kept[1] is not node}

    def _check_answers(self) -> None:
        for number, (since, node) in self.waiting.items():
            if self.now - since > ANSWER_LIMIT_S:
                raise Violation(f"request {number} has waited since {since - START_S:.1f} at {node!r}")
            break  # the oldest is enough

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit(self, group: str, member_id: str, generation: int, partition: int, instance_id: str | None) -> None:
        self._value += 1
        value = self._value
        place = (TOPIC, partition)

        def answered(codes: Any) -> None:
            if isinstance(codes, dict) and codes[place] == ErrorCode.NONE:
                self.checker.committed(group, partition, value)

        def call(coordinator: GroupCoordinator, reply: Callable[[Any], None]) -> None:
            coordinator.offsets.commit(
                group, member_id, instance_id, generation, -1, {place: OffsetToCommit(value)}, reply
            )

        self.send(call, answered)

    def fetch(self, group: str, partition: int) -> None:
        place = (TOPIC, partition)

        def call(coordinator: GroupCoordinator, reply: Callable[[Any], None]) -> None:
            if self.node is None or coordinator is not self.node.coordinator:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, "reads are checked at the leader only")
            before = self.checker.acknowledged.get((group, partition), -1)

            def done(error: ErrorCode, found: dict[Any, FetchedOffset]) -> None:
                if not error:
                    self.checker.fetched(group, partition, found[place].offset, before)
                reply(error)

            coordinator.offsets.fetch(group, [place], False, done)

        self.send(call, lambda answer: None)

    # --- the end -------------------------------------------------------------------------------------------------

    def _check_rest(self) -> None:
        """Faults are over: everything is read, by those who are there."""
        wanted = frozenset(range(self.partitions))
        if self.classics and frozenset().union(*(member.owned for member in self.classics)) != wanted:
            states = {m.name: (m.generation, sorted(m.owned)) for m in self.classics}
            raise Violation(f"the classic group did not come to rest: {states}")
        if self.consumers and frozenset().union(*(member.owned for member in self.consumers)) != wanted:
            raise Violation(
                f"the consumer group did not come to rest: {[(m.name, m.epoch, m.owned) for m in self.consumers]}"
            )
        if sum(len(member.owned) for member in self.consumers) > self.partitions:
            raise Violation("the consumer group rests with a partition at two members")
