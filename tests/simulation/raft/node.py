"""A simulated node: the real core on the real storage on a simulated disk, and a driver that takes its time.

Work is written when the disk is free and counts only when a later event says that the sync is done. In between the
node goes on talking, and anything may happen to it. Whatever it does is shown to the checkers.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from chronik.raft.core import RaftCore
from chronik.raft.errors import NotLeader, ProposalDropped, ReadDropped
from chronik.raft.snapshots import SnapshotCorrupt
from chronik.raft.state import Role
from chronik.raft.storage import RaftStorage, StorageFailed, StorageFull
from chronik.raft.types import Configuration, Entry, Message, Ready, SnapshotFetch, SnapshotMeta
from harness.raft_disk import PowerCut, SimulatedRaftDisk
from simulation.raft.disk_model import DurableLog
from simulation.raft.machine import Machine

if TYPE_CHECKING:
    from simulation.raft.world import World

FOLDER = Path("/raft")
CHUNK_BYTES = 8
READY_MAX = 8
"""Readies taken from the core before the oldest is stored."""


class SimulatedNode:
    """One machine. `core` is None while it is down."""

    def __init__(self, world: World, node_id: int, bootstrap: Configuration) -> None:
        self.world = world
        self.node_id = node_id
        self.bootstrap = bootstrap
        self.disk = SimulatedRaftDisk()
        self.first_directory: bytes | None = None
        self.core: RaftCore | None = None
        self.directory_id = b""
        self.incarnation = 0
        self.tick_length = 1.0
        self.paused = False
        self._inbox: list[Message] = []
        self._configurations = [bootstrap]

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        world, rng = self.world, self.world.rng
        self.incarnation += 1
        self.storage = RaftStorage(
            FOLDER, self.disk, segment_bytes=world.conditions.segment_bytes, make_id=self._make_directory
        )
        recovered = self.storage.open()
        self.directory_id = self.storage.directory_id
        world.show("recovered", self, recovered)
        self.durable = world.durable.setdefault((self.node_id, self.directory_id), DurableLog())
        self.durable.recover(recovered.snapshot, recovered.entries, recovered.hard_state)
        snapshot = recovered.snapshot
        if not snapshot.index:
            snapshot = SnapshotMeta(configuration=self.bootstrap)
        self.machine = Machine.decode(recovered.snapshot_data) if recovered.snapshot_data else Machine()
        self.core = RaftCore(
            node_id=self.node_id,
            directory_id=self.directory_id,
            snapshot=snapshot,
            entries=recovered.entries,
            hard_state=recovered.hard_state,
            rng=random.Random(rng.random()),
            settings=world.conditions.raft,
        )
        self._queue: deque[Ready] = deque()
        self._writing: list[Ready] = []
        self._is_writing = False
        self._is_pumping = False
        self._fetching: SnapshotFetch | None = None
        self._snapshotting = False
        self._proposals: dict[int, tuple[int, bytes]] = {}
        self.paused = False
        self._inbox = []
        world.trace(f"node {self.node_id} started, directory {self.directory_id.hex()[:4]}, {self.describe()}")
        world.show("started", self)
        self.pump()

    def _make_directory(self) -> bytes:
        if self.first_directory is not None:
            directory, self.first_directory = self.first_directory, None
            return directory
        return self.world.rng.randbytes(16)

    def crash(self, *, power_cut: bool) -> None:
        """The process ends; with a power cut what was not synced may be gone too."""
        self._configurations = self.known_configurations()
        self.core = None
        self.incarnation += 1
        self.disk.crash_at = None
        self.disk.fail.clear()
        self.disk.free_bytes = None
        if power_cut:
            self.disk.power_cut(self.world.rng)
        self.world.trace(f"node {self.node_id} crashed{' and lost power' if power_cut else ''}")

    def wipe(self) -> None:
        """The data folder is lost; the node comes back with an empty one."""
        self.crash(power_cut=False)
        self.disk = SimulatedRaftDisk()
        self.directory_id = b""
        self._configurations = [self.bootstrap]
        self.world.trace(f"node {self.node_id} was wiped")

    def known_configurations(self) -> list[Configuration]:
        """The memberships this node may act by, now or when it comes back."""
        if self.core is None:
            return self._configurations
        stored = min(self.core.commit, self.core.log.stable)
        return [self.core.configuration, self.core._state.membership.at(stored)]

    def describe(self) -> str:
        core = self.core
        if core is None:
            return "down"
        voters = sorted(core.configuration.voters)
        return f"{core.role} term {core.term} commit {core.commit} last {core.last_index} voters {voters}"

    # --- input ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.core is not None and not self.paused:
            self.core.tick()
            self.pump()

    def receive(self, message: Message) -> None:
        if self.core is None:
            return
        if self.paused:
            self._inbox.append(message)
            return
        self.core.step(message)
        self.pump()

    def resume(self) -> None:
        """A paused process goes on, with everything that arrived meanwhile."""
        self.paused = False
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            self.receive(message)

    def propose(self, datas: list[bytes]) -> None:
        if self.core is None or self.paused:
            return
        try:
            term, first = self.core.propose(datas)
        except (NotLeader, ProposalDropped):
            return
        for index, data in enumerate(datas, first):
            self._proposals[index] = (term, data)
        self.pump()

    def read(self, context: int) -> bool:
        if self.core is None or self.paused:
            return False
        try:
            self.core.read_index(context)
        except (NotLeader, ReadDropped):
            return False
        self.pump()
        return True

    # --- output -----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Take work from the core and begin what can be begun."""
        core = self.core
        if core is None:
            return
        self.world.show("touched", self)
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while core is self.core and core.has_ready() and len(self._queue) + len(self._writing) < READY_MAX:
                self._begin(core.ready())
        finally:
            self._is_pumping = False

    def _begin(self, ready: Ready) -> None:
        self.world.show("ready", self, ready)
        for message in ready.messages:
            self.world.send(message)
        if ready.fetch is not None:
            self._fetch(ready.fetch)
        self._queue.append(ready)
        self._write()

    def _write(self) -> None:
        """Write all that waits, unless the disk is busy. It counts when `_written` is called."""
        if self._is_writing or not self._queue:
            return
        self._is_writing = True
        try:
            while self._queue:
                ready = self._queue[0]
                if ready.snapshot is not None:
                    self._installed = Machine.decode(self.storage.snapshots.install(ready.snapshot))
                    self.storage.reset(ready.snapshot, ready.entries, ready.hard_state)
                elif ready.entries or ready.hard_state is not None:
                    self.storage.save(ready.entries, ready.hard_state, sync=False)
                self._writing.append(self._queue.popleft())
                if ready.snapshot is not None:
                    break
        except StorageFull:
            self.world.trace(f"node {self.node_id} has a full disk")
            if self._queue[0].snapshot is not None:
                self.crash(power_cut=False)
                return
        except (PowerCut, StorageFailed, OSError) as error:
            self._broken("write", error)
            return
        if any(ready.must_sync for ready in self._writing) or not self._writing:
            self.world.after_write(self, self._written)
        else:
            self._written()

    def _written(self) -> None:
        core, batch = self.core, self._writing
        assert core is not None
        try:
            if any(ready.must_sync for ready in batch):
                self.storage.sync()
        except (PowerCut, StorageFailed) as error:
            self._broken("sync", error)
            return
        self._writing, self._is_writing = [], False
        for ready in batch:
            if ready.must_sync:
                self.durable.store(ready)
            self.world.show("stored", self, ready)
            for message in ready.durable_messages:
                self.world.send(message)
            if ready.snapshot is not None:
                self.machine = self._installed
                self.world.show("restored", self, ready.snapshot)
            for entry in ready.committed:
                self._apply(entry)
            for read in ready.reads:
                self.world.show("read_served", self, read)
            core.advance(ready)
            self.world.show("touched", self)
        self._maybe_snapshot()
        self.pump()
        if self.core is core:
            self._write()

    def _apply(self, entry: Entry) -> None:
        self.machine.apply(entry)
        self.world.show("applied", self, entry)
        term, data = self._proposals.pop(entry.index, (0, b""))
        if term == entry.term:
            self.world.show("acknowledged", self, entry.index, data)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def _maybe_snapshot(self) -> None:
        core, conditions = self.core, self.world.conditions
        assert core is not None
        if self._snapshotting or self.machine.index - core.log.snapshot.index < conditions.snapshot_entries:
            return
        self._snapshotting = True
        meta, data = core.snapshot_meta(core.applied), self.machine.encode()
        self.world.show("snapshot_taken", self, meta, self.machine)
        self.world.after_write(self, lambda: self._store_snapshot(meta, data))

    def _store_snapshot(self, meta: SnapshotMeta, data: bytes) -> None:
        core = self.core
        assert core is not None
        self._snapshotting = False
        try:
            meta = self.storage.snapshots.write(meta, [data])
            core.compact(meta, self.world.conditions.retained_entries)
            oldest = self.storage.snapshots.prune({core.log.snapshot.index})
            self.storage.trim(oldest.index if oldest is not None else 0)
        except (PowerCut, StorageFailed, OSError) as error:
            if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
                self._broken("store a snapshot", error)

    def _fetch(self, fetch: SnapshotFetch) -> None:
        self.world.trace(f"node {self.node_id} fetches snapshot {fetch.snapshot.index} from {fetch.source}")
        self._fetching = fetch
        self.world.after_round_trip(self, lambda: self._fetch_chunk(fetch))

    def _fetch_chunk(self, fetch: SnapshotFetch) -> None:
        core, meta, snapshots = self.core, fetch.snapshot, self.storage.snapshots
        if core is None or self._fetching is not fetch:
            return
        source = self.world.nodes[fetch.source]
        try:
            offset = snapshots.receive(meta)
            arrived = source.core is not None and not source.paused and self.world.round_trip_succeeds(self, source)
            if arrived and offset < meta.size:
                chunk = source.storage.snapshots.read_chunk(meta.index, meta.term, offset, CHUNK_BYTES)
                arrived = chunk.available
                offset = snapshots.receive_chunk(offset, chunk.data) if arrived else offset
            if not arrived:
                core.snapshot_fetch_failed(meta)
                return
            if offset < meta.size:
                self.world.after_round_trip(self, lambda: self._fetch_chunk(fetch))
                return
            snapshots.finish_receiving(meta)
            if not core.snapshot_fetched(meta):
                snapshots.stop_receiving()
        except SnapshotCorrupt:
            core.snapshot_fetch_failed(meta)
        except (PowerCut, OSError) as error:
            self._broken("receive a snapshot", error)
            return
        self.pump()

    def _broken(self, what: str, error: Exception) -> None:
        self.world.trace(f"node {self.node_id} fails to {what}: {error!r}")
        self.crash(power_cut=True)

    @property
    def is_leader(self) -> bool:
        return self.core is not None and self.core.role is Role.LEADER
