"""The network between simulated nodes and the controller: in order per direction, late, cut one way or both, reset."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chronik.raft.transport_frames import PeerDisconnected, PeerTimeout

if TYPE_CHECKING:
    from simulation.replication.conditions import Conditions
    from simulation.replication.node import SimulatedNode
    from simulation.replication.world import World

CONTROLLER = 0


class Network:
    """Carries deliveries from one place to another. Places are node ids; the controller is place 0."""

    def __init__(self, world: World, conditions: Conditions, rng: random.Random) -> None:
        self._world = world
        self._conditions = conditions
        self._rng = rng
        self._last: dict[tuple[int, int, str], float] = {}
        self._held: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self.cuts: dict[tuple[int, int], int] = {}
        self.in_flight: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._next = 0

    def latency(self) -> float:
        conditions = self._conditions
        slow = self._rng.random() < conditions.slow_share and not self._world.healing
        scale = conditions.slow_latency_s if slow else conditions.latency_s
        return scale * self._rng.uniform(0.3, 1.7)

    def send(self, source: int, target: int, deliver: Callable[[], None], lane: str = "data") -> None:
        """Delivers in order per direction and lane. What runs into a cut is lost, or arrives late when the way is free
        again, as it does when a connection outlives the cut."""
        at = max(self._last.get((source, target, lane), 0.0), self._world.now + self.latency())
        self._last[source, target, lane] = at

        def arrive() -> None:
            if (source, target) not in self.cuts:
                deliver()
            elif self._conditions.cuts_delay:
                self._held.setdefault((source, target), []).append(deliver)

        self._world.at(at, arrive)

    def cut(self, source: int, target: int, seconds: float) -> None:
        way = (source, target)
        self.cuts[way] = self.cuts.get(way, 0) + 1

        def heal() -> None:
            left = self.cuts.get(way, 1) - 1
            if left > 0:
                self.cuts[way] = left
            else:
                self.heal(way)

        self._world.at(self._world.now + seconds, heal)

    def heal(self, way: tuple[int, int]) -> None:
        """The way is free: what was held up arrives in a moment."""
        self.cuts.pop(way, None)
        for deliver in self._held.pop(way, []):
            self._world.at(self._world.now + self.latency(), deliver)

    def reset(self, one: int, other: int) -> None:
        """Connections between the two break: requests under way fail soon, and their answers are lost."""
        for number, (source, target, answer) in list(self.in_flight.items()):
            if {source, target} == {one, other}:
                del self.in_flight[number]
                self._world.at(self._world.now + self.latency(), _failing(answer))

    def drop_process(self, place: int) -> None:
        """A process is gone: whoever waits for its answer finds out."""
        for number, (source, target, answer) in list(self.in_flight.items()):
            if target == place:
                del self.in_flight[number]
                self._world.at(self._world.now + self.latency(), _failing(answer))
            elif source == place:
                del self.in_flight[number]

    def begin(self, source: int, target: int, answer: asyncio.Future[Any]) -> int:
        self._next += 1
        self.in_flight[self._next] = (source, target, answer)
        return self._next


def _failing(answer: asyncio.Future[Any]) -> Callable[[], None]:
    def fail() -> None:
        if not answer.done():
            answer.set_exception(PeerDisconnected("the connection was lost"))

    return fail


class SimulatedTransport:
    """One process's end of the data connections."""

    def __init__(self, network: Network, node: SimulatedNode) -> None:
        self._network = network
        self._node = node
        self._handlers: dict[str, Callable[[int, bytes], Any]] = {}

    def serve(self, kind: str, handler: Callable[[int, bytes], Any]) -> None:
        self._handlers[kind] = handler

    async def request(self, peer: int, kind: str, payload: bytes, *, channel: str, timeout_s: float) -> memoryview:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        network, node = self._network, self._node
        number = network.begin(node.node_id, peer, answer)

        def arrive() -> None:
            node.world.deliver(peer, lambda target: target.transport.take(number, node.node_id, kind, payload))

        network.send(node.node_id, peer, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return memoryview(await answer)
        except TimeoutError:
            raise PeerTimeout(f"node {peer} did not answer") from None
        finally:
            network.in_flight.pop(number, None)

    def take(self, number: int, source: int, kind: str, payload: bytes) -> None:
        """A request arrived at this process."""
        result = self._handlers[kind](source, payload)
        if inspect.isawaitable(result):
            asyncio.get_running_loop().create_task(self._answer(number, source, result))  # type: ignore[arg-type]
        else:
            self._respond(number, source, b"".join(result))

    async def _answer(self, number: int, source: int, result: Any) -> None:
        payload = b"".join(await result)
        self._node.world.history.answer(self._node, source, payload)
        self._respond(number, source, payload)

    def _respond(self, number: int, source: int, payload: bytes) -> None:
        network = self._network

        def arrive() -> None:
            waiting = network.in_flight.pop(number, None)
            if waiting is not None and not waiting[2].done():
                waiting[2].set_result(payload)

        network.send(self._node.node_id, source, arrive)
