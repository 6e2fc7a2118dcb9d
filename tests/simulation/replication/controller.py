"""The controller of the simulation, and the metadata log that it writes: one truth, seen late by everyone else.

It does what a real controller does: brings registered brokers online, fences the silent once their leases have run out,
elects from the ISR, and hands leadership over only when the old leader has seen that it no longer leads. Proposals of
nodes are applied in the order in which they arrive, be it after their proposer gave up.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chronik.metadata import commands
from chronik.metadata.commands import (
    CONTROLLER as PROPOSED_BY_CONTROLLER,
)
from chronik.metadata.commands import (
    AssignPartition,
    FinishAssignment,
    FinishedAssignment,
    IsrChange,
    LeaderChange,
    Reassignment,
    SetPartitionLeader,
    UpdateBrokerStatus,
    UpdateIsr,
)
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import NO_LEADER, BrokerStatus, Result
from simulation.replication.network import CONTROLLER

if TYPE_CHECKING:
    from simulation.replication.world import World

HEARTBEAT_S = 0.3
SESSION_S = 1.5
LEASE_S = 1.5
TICK_S = 0.1

Entry = tuple[int, bytes, int, int]  # index, command, proposer, the proposer's number for it


class Controller:
    """Place 0. Never fails by itself; being out of reach is as good."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.image = MetadataImage()
        self.log: list[Entry] = []
        self.heard: dict[int, float] = {}
        self._applied: dict[int, int] = {}
        self._handovers: dict[tuple[bytes, int], tuple[int, int, int]] = {}

    # the log

    def commit(self, command: commands.Command) -> Result:
        return self._append(commands.encode(command), CONTROLLER, 0)

    def propose(self, data: bytes, proposer: int, number: int) -> None:
        """A node's proposal arrived."""
        self._append(data, proposer, number)

    def _append(self, data: bytes, proposer: int, number: int) -> Result:
        index = len(self.log) + 1
        self.log.append((index, data, proposer, number))
        result = self.image.apply(commands.decode(data), index)
        self._world.metadata_changed()
        for node_id in self._world.nodes:
            self.replicate(node_id)
        return result

    def replicate(self, node_id: int) -> None:
        """Sends a node what was committed; a node that missed something is sent it with the next."""

        def arrive() -> None:
            self._world.deliver(node_id, lambda node: node.catch_up(self.log))

        self._world.network.send(CONTROLLER, node_id, arrive, "metadata")

    # brokers

    def heartbeat(self, node_id: int, registration: int, applied: int, sent_at: float) -> None:
        broker = self.image.brokers.get(node_id)
        if broker is None or broker.epoch != registration:
            return
        self.heard[node_id] = self._world.now
        self._applied[node_id] = applied
        if broker.status == BrokerStatus.OFFLINE:
            if broker.data_lost:
                self._distrust(node_id)
            self.commit(UpdateBrokerStatus(node_id, BrokerStatus.ONLINE, broker.epoch))
        index = len(self.log)
        if applied < index:
            self.replicate(node_id)

        def arrive() -> None:
            self._world.deliver(node_id, lambda node: node.lease_granted(sent_at + LEASE_S, index))

        self._world.network.send(CONTROLLER, node_id, arrive, "heartbeats")

    def _distrust(self, node_id: int) -> None:
        """A broker that lost its data is in sync with nothing."""
        changes = [
            LeaderChange(
                topic.topic_id,
                index,
                info.leader,
                info.partition_epoch,
                tuple(member for member in info.isr if member != node_id),
            )
            for topic, index, info in self.image.each_partition()
            if node_id in info.isr
        ]
        if changes:
            self.commit(SetPartitionLeader(changes))

    def tick(self) -> None:
        now = self._world.now
        for node_id, broker in list(self.image.brokers.items()):
            if broker.alive and now - self.heard.get(node_id, -1.0) > SESSION_S:
                self._fence(node_id)
        self._elect_the_leaderless()
        self._finish_handovers()
        self._finish_reassignments()
        self._world.at(now + TICK_S, self.tick)

    def _fence(self, node_id: int) -> None:
        self.commit(UpdateBrokerStatus(node_id, BrokerStatus.OFFLINE, self.image.brokers[node_id].epoch))
        elections: list[LeaderChange] = []
        shrinks: list[IsrChange] = []
        for topic, index, info in self.image.each_partition():
            if info.leader == node_id:
                rest = tuple(member for member in info.isr if member != node_id and self.image.is_alive(member))
                leader = rest[0] if rest else NO_LEADER
                isr = rest or info.isr
                elections.append(LeaderChange(topic.topic_id, index, leader, info.partition_epoch, isr))
            elif node_id in info.isr and len(info.isr) > 1:
                rest = tuple(member for member in info.isr if member != node_id)
                shrinks.append(IsrChange(topic.topic_id, index, info.leader_epoch, info.partition_epoch, rest))
        if elections:
            self.commit(SetPartitionLeader(elections))
        if shrinks:
            self.commit(UpdateIsr(PROPOSED_BY_CONTROLLER, shrinks))

    def _elect_the_leaderless(self) -> None:
        elections = [
            LeaderChange(topic.topic_id, index, leader, info.partition_epoch)
            for topic, index, info in self.image.each_partition()
            if info.leader == NO_LEADER and (topic.topic_id, index) not in self._handovers
            for leader in [next((member for member in info.isr if self.image.is_alive(member)), NO_LEADER)]
            if leader != NO_LEADER
        ]
        if elections:
            self.commit(SetPartitionLeader(elections))

    def move(self) -> None:
        """Begins to move the leadership of some partition: first the old leader must know that it is none."""
        topic, index, info = self._rng.choice(list(self.image.each_partition()))
        others = [member for member in info.isr if member != info.leader and self.image.is_alive(member)]
        if info.leader == NO_LEADER or not others or (topic.topic_id, index) in self._handovers:
            return
        self.commit(SetPartitionLeader([LeaderChange(topic.topic_id, index, NO_LEADER, info.partition_epoch)]))
        self._handovers[topic.topic_id, index] = (info.leader, self._rng.choice(others), len(self.log))

    def _finish_handovers(self) -> None:
        for (topic_id, index), (old, new, since) in list(self._handovers.items()):
            waited_out = self._world.now - self.heard.get(old, -1.0) > LEASE_S
            if self._applied.get(old, 0) < since and not waited_out:
                continue
            del self._handovers[topic_id, index]
            info = self.image.partition_by_id(topic_id, index)
            if info is not None and info.leader == NO_LEADER and new in info.isr and self.image.is_alive(new):
                self.commit(SetPartitionLeader([LeaderChange(topic_id, index, new, info.partition_epoch)]))

    def reassign(self) -> None:
        """Begins to give some partition other replicas."""
        topic, index, info = self._rng.choice(list(self.image.each_partition()))
        nodes = sorted(self.image.brokers)
        target = tuple(self._rng.sample(nodes, self._rng.randint(1, min(3, len(nodes)))))
        if not info.reassigning:
            self.commit(AssignPartition([Reassignment(topic.topic_id, index, target, info.partition_epoch)]))

    def _finish_reassignments(self) -> None:
        """Ends what has its new replicas in sync. A leader that is dropped must know before another is elected."""
        for topic, index, info in list(self.image.each_partition()):
            if not info.reassigning or not set(info.target) & set(info.isr) or set(info.adding) - set(info.isr):
                continue
            if not any(self.image.is_alive(member) for member in info.target if member in info.isr):
                continue
            self.commit(FinishAssignment([FinishedAssignment(topic.topic_id, index, info.partition_epoch)]))
            after = self.image.topics[topic.name].partitions[index]
            if after.leader == NO_LEADER and info.leader != NO_LEADER:
                self._handovers[topic.topic_id, index] = (info.leader, after.isr[0], len(self.log))
