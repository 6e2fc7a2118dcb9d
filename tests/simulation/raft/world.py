"""The simulated world: one queue of events, from which everything follows that happens in a run of one seed."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable

from chronik.raft.types import (
    UNKNOWN_DIRECTORY,
    Configuration,
    Member,
    Message,
    decode_message,
    encode_message,
)
from simulation.raft.chaos import Chaos
from simulation.raft.checkers.checker import Checker, Violation
from simulation.raft.checkers.everything import all_checkers
from simulation.raft.checkers.ledger import Ledger
from simulation.raft.disk_model import DurableLog
from simulation.raft.draw import TICK, Conditions, draw
from simulation.raft.network import Network
from simulation.raft.node import SimulatedNode

LIVENESS_TIMEOUTS = 60
"""Election timeouts within which a healed group must have elected a leader and caught up."""
STABLE_TIMEOUTS = 5
"""Election timeouts for which the leader of a healthy group must then stay."""


EVENTS_MAX = 400_000
"""Far more than any run needs: beyond it the nodes only keep each other busy."""


class World:
    """One run. `run()` returns what happened, or raises `Violation`."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.conditions: Conditions = draw(self.rng)
        self.now = 0
        self.ledger = Ledger()
        self.durable: dict[tuple[int, bytes], DurableLog] = {}
        self.counts: Counter[str] = Counter()
        self._trace = trace
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._happened = 0
        ids = list(range(1, self.conditions.voters + self.conditions.joiners + 1))
        self.network = Network(self.rng, self.conditions, ids)
        self.nodes: dict[int, SimulatedNode] = self._make_nodes(ids)
        self.checkers = all_checkers(self)
        self._hooks: dict[str, list[Callable[..., None]]] = {}
        self.chaos = Chaos(self)

    def _make_nodes(self, ids: list[int]) -> dict[int, SimulatedNode]:
        conditions, rng = self.conditions, self.rng
        directories = {node_id: rng.randbytes(16) for node_id in ids}
        voters = {
            node_id: Member(
                node_id,
                directories[node_id] if conditions.directories_known else UNKNOWN_DIRECTORY,
                f"host-{node_id}",
                9192,
            )
            for node_id in ids[: conditions.voters]
        }
        nodes = {}
        for node_id in ids:
            node = SimulatedNode(self, node_id, Configuration(voters) if node_id in voters else Configuration())
            node.first_directory = directories[node_id]
            node.tick_length = TICK * (1 + conditions.clock_skew) ** (2 * rng.random() - 1)
            nodes[node_id] = node
        return nodes

    # --- events -----------------------------------------------------------------------------------------------------

    def at(self, delay: float, event: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + max(1, int(delay)), self._sequence, event))

    def after_write(self, node: SimulatedNode, event: Callable[[], None]) -> None:
        """Call `event` when the disk of `node` has done a write, unless the node is another one by then."""
        longest = self.conditions.write_latency_max * (5 if self.network.is_slow(node.node_id) else 1)
        longest = longest if self.network.is_faulty else 1
        self._later(node, self.rng.randint(1, longest), event)

    def after_round_trip(self, node: SimulatedNode, event: Callable[[], None]) -> None:
        self._later(node, self.rng.randint(2, 2 * self.conditions.latency_max), event)

    def _later(self, node: SimulatedNode, delay: int, event: Callable[[], None]) -> None:
        incarnation = node.incarnation

        def run() -> None:
            if node.incarnation != incarnation:
                return
            if node.paused:
                self.at(TICK, run)
            else:
                event()

        self.at(delay, run)

    def round_trip_succeeds(self, one: SimulatedNode, other: SimulatedNode) -> bool:
        there = self.network.delays(one.node_id, other.node_id)
        back = self.network.delays(other.node_id, one.node_id)
        return bool(there and back)

    def send(self, message: Message) -> None:
        """Put a message on the wire, as bytes."""
        self.counts[type(message).__name__] += 1
        if message.target not in self.nodes:
            return
        data = encode_message(message)
        for delay in self.network.delays(message.source, message.target):
            self.at(delay, lambda: self.nodes[message.target].receive(decode_message(data)))

    def show(self, event: str, *details: object) -> None:
        """Let every checker that cares look at what has just happened."""
        hooks = self._hooks.get(event)
        if hooks is None:
            hooks = self._hooks[event] = [
                getattr(checker, event) for checker in self.checkers if hasattr(checker, event)
            ]
        for hook in hooks:
            hook(*details)

    def trace(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now / TICK:7.1f} {text}")

    def violated(self, checker: Checker | str, text: str) -> Violation:
        name = checker if isinstance(checker, str) else type(checker).__name__
        nodes = "; ".join(f"{node.node_id} {node.describe()}" for node in self.nodes.values())
        return Violation(f"seed {self.seed}, tick {self.now / TICK:.1f}: {name}: {text} [{nodes}]", name)

    # --- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Live through the faults, then heal and check that the group recovers."""
        election = self.conditions.raft.election_ticks
        for node in self.nodes.values():
            self.at(self.rng.randint(1, 3 * election * TICK), lambda node=node: self._first_start(node))  # type: ignore[misc]
        self.at(1, self.chaos.step)
        self._run_until(self.conditions.ticks * TICK, lambda: False)
        self._recover()
        self.show("finished")
        return self.counts

    def _first_start(self, node: SimulatedNode) -> None:
        if node.core is None and not node.incarnation:
            node.start()
        self._tick(node)

    def _tick(self, node: SimulatedNode) -> None:
        self.at(node.tick_length, lambda: self._tick(node))
        node.tick()

    def _run_until(self, deadline: int, done: Callable[[], bool]) -> bool:
        while self._events and self._events[0][0] <= deadline:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self._happened += 1
            if self._happened > EVENTS_MAX:
                raise self.violated("NoStorm", f"{EVENTS_MAX} events, and no end")
            if done():
                return True
        self.now = deadline
        return False

    # --- recovery ---------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        self.trace("everything is healed")
        self.network.heal()
        self.network.is_faulty = False
        self.chaos.stop()
        for node in self.nodes.values():
            node.disk.crash_at, node.disk.free_bytes = None, None
            node.disk.fail.clear()
            node.tick_length = TICK
            node.resume()
            if node.core is None:
                node.start()
        ticks = LIVENESS_TIMEOUTS * self.conditions.raft.election_ticks
        if not self._run_until(self.now + ticks * TICK, self.chaos.is_recovered):
            raise self.violated("Liveness", f"no recovery within {ticks} ticks after all faults ended")
        leader = self.chaos.leader()
        assert leader is not None and leader.core is not None
        term = leader.core.term
        raft = self.conditions.raft
        self._run_until(self.now + STABLE_TIMEOUTS * raft.election_ticks * TICK, lambda: False)
        if raft.pre_vote and raft.check_quorum and (not leader.is_leader or leader.core.term != term):
            raise self.violated("Liveness", f"node {leader.node_id} lost term {term} although nothing was wrong")
        self.counts["terms"] += term
        self.counts["applied"] += leader.machine.count
