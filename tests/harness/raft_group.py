"""A group of consensus cores in one place, driven by hand: messages wait until they are delivered, disks never lie.

For tests of the core that want to see every step. Faults by the thousand are the business of the simulator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from chronik.raft.core import RaftCore
from chronik.raft.settings import RaftSettings
from chronik.raft.state import Role
from chronik.raft.types import (
    UNKNOWN_DIRECTORY,
    Configuration,
    Entry,
    HardState,
    Member,
    Message,
    ReadState,
    Ready,
    SnapshotFetch,
    SnapshotMeta,
)


def directory(node_id: int, generation: int = 0) -> bytes:
    """The directory id of a node's data folder; wiping it makes the next generation."""
    return bytes([node_id, generation]) * 8


def member(node_id: int, generation: int = 0) -> Member:
    return Member(node_id, directory(node_id, generation), f"host-{node_id}", 9192)


def configuration(voters: Iterable[int], observers: Iterable[int] = (), *, known: bool = True) -> Configuration:
    def members(ids: Iterable[int]) -> dict[int, Member]:
        return {i: member(i) if known else Member(i, UNKNOWN_DIRECTORY, f"host-{i}", 9192) for i in ids}

    return Configuration(members(voters), members(observers))


class Disk:
    """What a node has stored."""

    def __init__(self, bootstrap: Configuration) -> None:
        self.bootstrap = bootstrap
        self.snapshot = SnapshotMeta(configuration=bootstrap)
        self.entries: list[Entry] = []
        self.hard_state = HardState()

    def store(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.snapshot, self.entries = ready.snapshot, []
        for entry in ready.entries:
            first = self.entries[0].index if self.entries else self.snapshot.index + 1
            del self.entries[entry.index - first :]
            self.entries.append(entry)
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state


class Node:
    """A core with its disk, and what it has applied."""

    def __init__(self, node_id: int, bootstrap: Configuration, settings: RaftSettings) -> None:
        self.node_id = node_id
        self.settings = settings
        self.generation = 0
        self.disk = Disk(bootstrap)
        self.applied: list[Entry] = []
        self.reads: list[ReadState] = []
        self.fetches: list[SnapshotFetch] = []
        self.is_up = False
        self.disk_is_stuck = False
        self.unstored: list[Ready] = []

    def start(self) -> None:
        self.core = RaftCore(
            node_id=self.node_id,
            directory_id=directory(self.node_id, self.generation),
            snapshot=self.disk.snapshot,
            entries=self.disk.entries,
            hard_state=self.disk.hard_state,
            rng=random.Random(self.node_id),
            settings=self.settings,
        )
        self.applied = []
        self.reads = []
        self.unstored = []
        self.is_up = True

    @property
    def data(self) -> list[bytes]:
        """The data this node has applied since it was started."""
        return [entry.data for entry in self.applied if not entry.kind]


class Group:
    """Nodes and the messages between them. `pending` are on their way."""

    def __init__(
        self,
        voters: Iterable[int] = (1, 2, 3),
        *,
        joiners: Iterable[int] = (),
        known: bool = True,
        settings: RaftSettings | None = None,
        start: bool = True,
    ) -> None:
        self.settings = settings or RaftSettings(election_ticks=5, heartbeat_ticks=1)
        first = configuration(voters, known=known)
        self.nodes = {i: Node(i, first, self.settings) for i in first.voters}
        self.nodes |= {i: Node(i, Configuration(), self.settings) for i in joiners}
        self.pending: list[Message] = []
        self.delivered: list[Message] = []
        self.cut: set[tuple[int, int]] = set()
        if start:
            for node_id in self.nodes:
                self.start(node_id)

    def __getitem__(self, node_id: int) -> RaftCore:
        return self.nodes[node_id].core

    # --- life and death ---------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        self.nodes[node_id].start()
        self.work(node_id)

    def crash(self, node_id: int) -> None:
        self.nodes[node_id].is_up = False

    def restart(self, node_id: int) -> None:
        self.crash(node_id)
        self.start(node_id)

    def wipe(self, node_id: int) -> None:
        """The node loses its data folder, and starts with an empty one."""
        node = self.nodes[node_id]
        node.generation += 1
        node.disk = Disk(node.disk.bootstrap)
        self.restart(node_id)

    # --- work -------------------------------------------------------------------------------------------------------

    def work(self, node_id: int) -> None:
        """Do what the core asks for, as far as the disk goes along."""
        node = self.nodes[node_id]
        while node.core.has_ready():
            ready = node.core.ready()
            self.pending += ready.messages
            if ready.fetch is not None:
                node.fetches.append(ready.fetch)
            node.unstored.append(ready)
            if not node.disk_is_stuck:
                self.store(node_id)

    def store(self, node_id: int) -> None:
        """Store all that waits, and go on from there."""
        node = self.nodes[node_id]
        while node.unstored:
            ready = node.unstored.pop(0)
            node.disk.store(ready)
            self.pending += ready.durable_messages
            node.applied += ready.committed
            node.reads += ready.reads
            node.core.advance(ready)
        if node.core.has_ready():
            self.work(node_id)

    def tick(self, node_id: int, times: int = 1) -> None:
        for _ in range(times):
            self[node_id].tick()
            self.work(node_id)

    def step(self, message: Message) -> None:
        """Hand a message to its target, if that is up and not cut off."""
        node = self.nodes.get(message.target)
        if node is not None and node.is_up and (message.source, message.target) not in self.cut:
            self.delivered.append(message)
            node.core.step(message)
            self.work(message.target)

    def deliver(self, wanted: Callable[[Message], bool] = lambda message: True) -> list[Message]:
        """Deliver what is on its way, and what follows from it, until nothing more is wanted; the rest stays."""
        start = len(self.delivered)
        kept: list[Message] = []
        while self.pending:
            message = self.pending.pop(0)
            if wanted(message):
                self.step(message)
            else:
                kept.append(message)
        self.pending = kept
        return self.delivered[start:]

    def drop(self, wanted: Callable[[Message], bool] = lambda message: True) -> None:
        self.pending = [message for message in self.pending if not wanted(message)]

    def isolate(self, node_id: int) -> None:
        self.cut |= {(node_id, other) for other in self.nodes} | {(other, node_id) for other in self.nodes}

    def heal(self) -> None:
        self.cut = set()

    # --- common moves -----------------------------------------------------------------------------------------------

    def elect(self, node_id: int) -> RaftCore:
        """Have a node campaign and win."""
        for other in self.nodes.values():
            if other.is_up and other.node_id != node_id:
                # Nobody may still be listening to an earlier leader.
                other.core._state.elapsed_ticks = self.settings.election_ticks
        self[node_id].campaign()
        self.work(node_id)
        self.deliver()
        assert self[node_id].role is Role.LEADER, self[node_id].status()
        return self[node_id]

    def propose(self, node_id: int, *datas: bytes) -> tuple[int, int]:
        """Propose at a leader, and let everybody hear of it."""
        result = self[node_id].propose(list(datas))
        self.work(node_id)
        self.deliver()
        return result

    def beat(self, node_id: int) -> None:
        """A heartbeat of the leader, with all that follows from it."""
        self.tick(node_id, self.settings.heartbeat_ticks)
        self.deliver()

    def snapshot(self, node_id: int, *, retained: int = 0) -> SnapshotMeta:
        """Take a snapshot of everything a node has applied."""
        node = self.nodes[node_id]
        meta = node.core.snapshot_meta(node.core.applied)
        node.core.compact(meta, retained)
        node.disk.snapshot = meta
        node.disk.entries = [entry for entry in node.disk.entries if entry.index > meta.index]
        return meta

    def finish_fetch(self, node_id: int) -> bool:
        """The bytes of the snapshot that a node was offered have arrived."""
        node = self.nodes[node_id]
        installed = node.core.snapshot_fetched(node.fetches.pop().snapshot)
        self.work(node_id)
        return installed

    def leaders(self) -> list[int]:
        return [i for i, node in self.nodes.items() if node.is_up and node.core.role is Role.LEADER]
