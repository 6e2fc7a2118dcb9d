"""What the simulation of transactions puts in place of replication: logs that are true once, and replicas that may not
know it yet.

A `TrueLog` is what the cluster has of a partition: batches, a high watermark, a leader and its epoch; producers are
tracked by the real `ProducerStates`. A `Replica` is what one node believes of it. A node that still thinks it leads
writes into the void: nothing of that is ever committed. When leadership moves, what was not committed is lost or kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchInfo, parse_batches, stamp
from chronik.protocol.records.control import read_end_transaction_marker
from chronik.storage.partition_log import ProducerInfo
from chronik.storage.producers import ProducerStates

if TYPE_CHECKING:
    from simulation.transactions.world import SimulatedNode, World

Place = tuple[str, int]


class Info(NamedTuple):
    leader: int
    leader_epoch: int


class Topic(NamedTuple):
    partitions: list[Info]


class Broker(NamedTuple):
    node_id: int


class View:
    """The metadata that one node has seen."""

    def __init__(self, nodes: int) -> None:
        self.topics: dict[str, Topic] = {}
        self.brokers = {node: Broker(node) for node in range(1, nodes + 1)}

    def put(self, place: Place, info: Info) -> None:
        partitions = self.topics.setdefault(place[0], Topic([])).partitions
        while len(partitions) <= place[1]:
            partitions.append(Info(-1, -1))
        partitions[place[1]] = info

    def partition(self, topic: str, index: int) -> Info | None:
        found = self.topics.get(topic)
        return found.partitions[index] if found is not None and index < len(found.partitions) else None

    def alive_leader(self, info: Info) -> int:
        return info.leader


class Appended(NamedTuple):
    base_offset: int
    last_offset: int


class TrueLog:
    """A partition, as it is."""

    def __init__(self, world: World, place: Place, leader: int) -> None:
        self._world = world
        self.place = place
        self.leader = leader
        self.epoch = 0
        self.batches: list[tuple[BatchInfo, bytes]] = []
        self.end = 0
        self.high_watermark = 0
        self.producers = ProducerStates()

    @property
    def last_stable_offset(self) -> int:
        first = self.producers.first_unstable()
        return self.high_watermark if first is None else min(first, self.high_watermark)

    def append(self, data: memoryview) -> Appended:
        """As the log does it: checks, offsets, producers."""
        (batch,) = parse_batches(data)
        marker = read_end_transaction_marker(data) if batch.is_control else None
        if marker is not None:
            self.producers.check_marker(batch, marker)
        elif batch.producer_id >= 0:
            duplicate = self.producers.check(batch)
            if duplicate is not None:
                return Appended(duplicate.base_offset, duplicate.last_offset)
        stamp(data, 0, self.end, self.epoch)
        (batch,) = parse_batches(data)
        self.batches.append((batch, bytes(data)))
        self._apply(batch, bytes(data))
        self.end = batch.last_offset + 1
        self.commit_soon()
        return Appended(batch.base_offset, batch.last_offset)

    def _apply(self, batch: BatchInfo, data: bytes) -> None:
        if batch.producer_id < 0:
            return
        marker = read_end_transaction_marker(data) if batch.is_control else None
        if marker is not None:
            self.producers.apply_marker(batch, marker, 0)
        else:
            self.producers.apply(batch, 0)

    def commit_soon(self) -> None:
        end, epoch, world = self.end, self.epoch, self._world

        def commit() -> None:
            if self.epoch == epoch and end > self.high_watermark:
                self.high_watermark = end
                self.producers.high_watermark_moved(end)
                world.deliver(self.leader, lambda node: node.replicas.partition(*self.place).reached())

        world.at(world.now + world.sync_time(), commit)

    def move(self, leader: int, kept: int) -> None:
        """Another leader, which has everything below `kept`."""
        self.leader = leader
        self.epoch += 1
        self.batches = [(batch, data) for batch, data in self.batches if batch.last_offset < kept]
        self.end = self.batches[-1][0].last_offset + 1 if self.batches else 0
        self.producers = ProducerStates()
        for batch, data in self.batches:
            self._apply(batch, data)
        self.producers.high_watermark_moved(self.high_watermark)


class Replica:
    """A partition, as a node knows it. The face of `replication.Partition` that coordinators use."""

    holds_lease = True  # nobody is saved by it here: what is promised must hold without

    def __init__(self, node: SimulatedNode, truth: TrueLog) -> None:
        self.topic, self.index = truth.place
        self.truth = truth
        self.leader_epoch = -1
        self.is_leader = False
        self.log = self
        self.log_start_offset = 0
        self._node = node
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._void = False

    @property
    def end_offset(self) -> int:
        return self.truth.end

    @property
    def high_watermark(self) -> int:
        return self.truth.high_watermark

    def learn(self, info: Info) -> bool | None:
        """New metadata: whether this node begins (True) or ceases (False) to lead; None for neither."""
        if info.leader_epoch <= self.leader_epoch:
            return None
        led, self.leader_epoch = self.is_leader, info.leader_epoch
        self.is_leader = info.leader == self._node.node_id
        self._void = False
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(self._not_leader())
                future.exception()  # who waited may be gone
        if self.is_leader and self._leads_truly():
            self.truth.commit_soon()
        return self.is_leader if self.is_leader or led else None

    def _leads_truly(self) -> bool:
        return self.truth.leader == self._node.node_id and self.truth.epoch == self.leader_epoch

    def require_leader(self) -> None:
        if not self.is_leader:
            raise self._not_leader()

    def _not_leader(self) -> KafkaError:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"not the leader of {self.topic}-{self.index}")

    def append(self, data: memoryview, **ignored: object) -> Appended:
        self.require_leader()
        if self._leads_truly():
            return self.truth.append(data)
        if self._node.world.rng.random() < 0.5:
            raise self._not_leader()  # its lease has lapsed
        self._void = True
        return Appended(self.truth.end, self.truth.end)

    def committed(self, offset: int) -> asyncio.Future[None] | None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.is_leader:
            future.set_exception(self._not_leader())
        elif not self._void and self._leads_truly() and self.truth.high_watermark >= offset:
            return None
        else:
            self._waiting.append((offset, future))
        return future

    def reached(self) -> None:
        """The high watermark moved."""
        if not self._leads_truly():
            return
        rest: list[tuple[int, asyncio.Future[None]]] = []
        for offset, future in self._waiting:
            if offset <= self.truth.high_watermark:
                if not future.done():
                    future.set_result(None)
            else:
                rest.append((offset, future))
        self._waiting = rest

    def read_nowait(self, position: int, max_bytes: int, *, replica_id: int) -> bytes:
        return b"".join(data for batch, data in self.truth.batches if batch.base_offset >= position)

    # the log's knowledge of producers

    def producer(self, producer_id: int) -> ProducerInfo | None:
        entry = self.truth.producers.entries.get(producer_id)
        if entry is None:
            return None
        return ProducerInfo(producer_id, entry.epoch, entry.last_sequence, 0, 0, entry.transaction_start)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        known = self.producer(producer_id)
        return known is not None and known.current_transaction_start_offset >= 0 and known.producer_epoch == epoch


class Replicas:
    """The replicas of one node. The face of `replication.ReplicaManager` that coordinators use."""

    def __init__(self) -> None:
        self.all: dict[Place, Replica] = {}
        self._listener: Callable[[Any, bool], None] | None = None

    def partition(self, topic: str, index: int) -> Replica:
        return self.all[topic, index]

    def on_leadership(self, listener: Callable[[Any, bool], None]) -> None:
        self._listener = listener

    def learn(self, place: Place, info: Info) -> None:
        change = self.all[place].learn(info)
        if self._listener is None or change is None:
            return
        if change:
            self._listener(self.all[place], False)  # somebody else may have led in between
        self._listener(self.all[place], change)
