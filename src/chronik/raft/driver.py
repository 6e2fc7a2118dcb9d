"""The loop around the core: messages, ticks and proposals go in; what comes out is stored, sent and applied.

Theory of operation
1. Everything that happens in one turn of the event loop goes into the core first; then the core is asked once for its
   work (`_pump`). So all proposals of a turn share one append, one write, one sync.
2. Messages that promise nothing leave at once, also while the disk is busy; promises leave when it is done. Committed
   entries are on disk already, and are applied at once.
3. One write is under way at a time (`driver_persist.py`). A failed sync ends this node's part in the group.
4. A tick never makes up for lost time: a loop that was blocked counts one tick, and only after it has read what its
   peers had sent meanwhile. So neither a busy loop nor a stopped process takes healthy peers for silent ones.
5. Starting waits for the disk, never for other nodes.

Proposals, reads, snapshots and membership have modules of their own, `driver_*.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

import structlog

from chronik.raft.core import RaftCore
from chronik.raft.driver_apply import Applier, StateMachine
from chronik.raft.driver_errors import NodeFailed, NodeStopped
from chronik.raft.driver_first_election import FirstElection
from chronik.raft.driver_group import Group
from chronik.raft.driver_handover import hand_over
from chronik.raft.driver_membership import Membership
from chronik.raft.driver_observer import Observer
from chronik.raft.driver_persist import Persistence
from chronik.raft.driver_proposals import Proposals
from chronik.raft.driver_reads import Reads
from chronik.raft.driver_settings import DriverSettings
from chronik.raft.driver_snapshots import SnapshotFetcher, SnapshotMaker
from chronik.raft.driver_status import RaftStatus
from chronik.raft.driver_upkeep import Upkeep
from chronik.raft.driver_worker import ThreadWorker, Worker
from chronik.raft.errors import SafetyViolation
from chronik.raft.storage import RaftStorage, Recovered
from chronik.raft.transport import PeerTransport
from chronik.raft.types import Configuration, Entry, Member, Message, Ready, SnapshotMeta

log = structlog.get_logger()

Address = tuple[str, int]


class RaftDriver:
    """One node of a consensus group. `start` and `stop` bracket its use; everything else is between them."""

    def __init__(
        self,
        node_id: int,
        storage: RaftStorage,
        transport: PeerTransport,
        state_machine: StateMachine,
        *,
        voters: Mapping[int, Address] | None = None,
        join: Sequence[Address] = (),
        join_as_voter: bool = True,
        settings: DriverSettings | None = None,
        rng: random.Random | None = None,
        make_worker: Callable[[str], Worker] = ThreadWorker,
    ) -> None:
        """`voters` is the first membership, used when the folder is new; with `join` instead a new node asks to be
        let in. Once the folder holds a membership, both only help to find the others; where the addresses of `voters`
        differ from those in the folder they are newer."""
        self.node_id = node_id
        self.settings = settings or DriverSettings()
        self._storage = storage
        self._transport = transport
        self._state_machine = state_machine
        self._voters = dict(voters or {})
        self._seeds = list(join)
        self._join_as_voter = join_as_voter
        self._rng = rng or random.Random()
        self._make_worker = make_worker
        self._leadership_callbacks: list[Callable[[bool, int], None]] = []
        self._failure_callbacks: list[Callable[[str], None]] = []
        self._started = False
        self._pump_scheduled = False
        self._tick_timer: asyncio.TimerHandle | None = None
        self._upkeep: asyncio.Task[None] | None = None

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the folder, restores the state machine, listens, and begins to take part. Waits for no other node."""
        self._loop = asyncio.get_running_loop()
        self._log_worker = self._make_worker("raft-log")
        self._snapshot_worker = self._make_worker("raft-snapshots")
        recovered = await self._log_worker.run(self._open)
        snapshot = recovered.snapshot
        if recovered.snapshot_data is not None and snapshot.index:
            for _ in self._state_machine.restore(recovered.snapshot_data) or ():
                await asyncio.sleep(0)
        self._core = RaftCore(
            node_id=self.node_id,
            directory_id=self._storage.directory_id,
            snapshot=snapshot,
            entries=recovered.entries,
            hard_state=recovered.hard_state,
            rng=self._rng,
            settings=self.settings.raft,
        )
        self._assemble(snapshot)
        self._started = True
        self._transport.identify(self._storage.directory_id, self._storage.cluster_id)
        self._transport.on_message = self._receive
        self._transport.on_connection = self._connection_changed
        self._transport.on_peer_address = self._observer.peer_moved
        self._observer.configuration_seen()
        await self._transport.start()
        log.info(
            "consensus opened its folder",
            node=self.node_id,
            term=recovered.hard_state.term,
            snapshot_index=snapshot.index,
            entries=len(recovered.entries),
            voters=sorted(self._core.configuration.voters),
        )
        members = self._core.configuration.voters | self._core.configuration.observers
        if self._voters.keys() - members:
            log.info(
                "the members are those in the data folder, not those this node was started with",
                members=sorted(members),
                started_with=sorted(self._voters),
            )
        self._tick_due = self._loop.time() + self.settings.tick_s
        self._tick_timer = self._loop.call_at(self._tick_due, self._on_timer)
        upkeep = Upkeep(self._group, self._membership, self._storage.directory_id, self._seeds, self._join_as_voter)
        self._upkeep = self._loop.create_task(upkeep.run(), name="raft upkeep")
        self._pump()

    def _open(self) -> Recovered:
        """On the log's thread: what the folder holds; the first membership is written down when it holds nothing."""
        recovered = self._storage.open()
        untouched = recovered.snapshot_data is None and not recovered.entries and not recovered.snapshot.index
        if untouched and self._voters:
            # Alone there is nobody to be told apart from: the directory id is known at once.
            own = self._storage.directory_id if len(self._voters) == 1 else bytes(len(self._storage.directory_id))
            members = {node_id: Member(node_id, own, *address) for node_id, address in self._voters.items()}
            meta = SnapshotMeta(configuration=Configuration(members))
            recovered.snapshot = self._storage.snapshots.write(meta, [])
        return recovered

    def _assemble(self, snapshot: SnapshotMeta) -> None:
        settings = self.settings
        self._group = Group(self._core, self._transport, settings, self._touch)
        self._group.waiting.applied = snapshot.index
        self._applier = Applier(
            self._state_machine,
            slice_s=settings.apply_slice_s,
            on_applied=self._applied,
            on_restored=self._restored,
            on_slice_done=self._slice_done,
            on_failed=self._fail,
        )
        self._applier.start_at(snapshot)
        self._persistence = Persistence(
            self._storage,
            self._log_worker,
            self._snapshot_worker,
            on_stored=self._stored,
            on_installed=self._applier.restore,
            on_failed=self._fail,
            full_retry_s=settings.disk_full_retry_s,
        )
        self._proposals = Proposals(self._group)
        self._reads = Reads(self._group)
        self._fetcher = SnapshotFetcher(self._group, self._storage, self._snapshot_worker)
        self._maker = SnapshotMaker(
            self._group,
            self._storage,
            self._state_machine,
            self._applier,
            self._log_worker,
            self._snapshot_worker,
            self._fetcher.pinned,
        )
        self._membership = Membership(self._group, self._storage.directory_id)
        self._first_election = FirstElection(self._group, self._rng)
        self._observer = Observer(
            self._group, self._applier, self._reads, self._leadership_callbacks, addresses=self._voters
        )

    async def stop(self) -> None:
        """Hands leadership over if this node has it, writes what is left, closes everything. Bounded in time."""
        if not self._started:
            return
        self._started = False
        if self._group.out is None:
            await hand_over(self._group, self._loop.time() + self.settings.stop_transfer_s)
        self._end(NodeStopped("this node is stopping: try another one"))
        try:
            async with asyncio.timeout(self.settings.stop_flush_s):
                await self._persistence.flush()
                await self._log_worker.run(self._storage.close)
                await self._snapshot_worker.run(self._storage.snapshots.stop_receiving)
        except Exception as error:
            log.warning("the consensus log was not closed properly; it is checked at the next start", reason=str(error))
        self._log_worker.stop()
        self._snapshot_worker.stop()
        await self._transport.close()

    def _end(self, error: NodeStopped | NodeFailed) -> None:
        """This node takes no part from here on: nothing is sent, stored or applied."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        if self._upkeep is not None:
            self._upkeep.cancel()
        self._group.leave(error)
        self._proposals.stop()
        self._reads.stop()
        self._fetcher.stop()
        self._applier.stop()
        self._persistence.stop()
        self._observer.stopped()

    def _fail(self, reason: str, error: BaseException) -> None:
        if self._group.out is not None:
            return
        log.error("this node no longer takes part in consensus", reason=reason)
        self._end(NodeFailed(reason))
        for callback in self._failure_callbacks:
            callback(reason)

    # --- what others use -----------------------------------------------------------------------------------------

    async def propose(self, data: bytes, timeout_s: float = 5.0) -> object:
        """The result of applying `data` on this node, wherever the leader is. Raises `ProposeError` by the deadline."""
        self._require_started()
        return await self._proposals.propose(data, timeout_s)

    async def read_barrier(self, timeout_s: float = 5.0) -> int:
        """Returns once this node has applied all that was committed anywhere when this was called."""
        self._require_started()
        return await self._reads.barrier(timeout_s)

    async def add_voter(self, node_id: int, timeout_s: float = 30.0) -> None:
        """Makes an observer a voter, once it has caught up. Asked at any node."""
        self._require_started()
        await self._membership.add_voter(node_id, timeout_s)

    async def remove_voter(self, node_id: int, timeout_s: float = 10.0) -> None:
        """Removes a voter or observer, alive or dead. Asked at any node."""
        self._require_started()
        await self._membership.remove(node_id, timeout_s)

    async def set_cluster_id(self, cluster_id: str) -> None:
        """The cluster has this id, committed: it is written down, and strangers are refused from now on."""
        self._require_started()
        await self._log_worker.run(lambda: self._storage.set_cluster_id(cluster_id))
        self._transport.set_cluster_id(cluster_id)

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """Calls `callback(leads, term)` when this node begins to lead, having applied all that was committed before,
        and when it stops to."""
        self._leadership_callbacks.append(callback)

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Calls `callback(reason)` when this node can no longer take part."""
        self._failure_callbacks.append(callback)

    @property
    def leader_id(self) -> int:
        """Who leads as far as this node knows, or 0."""
        return self._core.leader_id if self._started and self._group.out is None else 0

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and has applied everything that was committed before it did."""
        return self._started and self._observer.leads

    @property
    def leads_alone(self) -> bool:
        """Whether this node leads a group of which it is the only voter: nobody can take its place unnoticed."""
        return self.is_leader and len(self._core.configuration.voters) == 1

    @property
    def term(self) -> int:
        return self._core.term if self._started else 0

    def status(self) -> RaftStatus:
        """What this node knows, now."""
        self._require_started()
        return self._observer.status(self._storage, snapshots_taken=self._maker.taken, syncs=self._persistence.syncs)

    def _require_started(self) -> None:
        if not self._started:
            raise NodeStopped("consensus is not running on this node: try another one")

    # --- what goes in --------------------------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        if self._group.out is None:
            try:
                self._core.step(message)
            except SafetyViolation as violation:
                self._fail(str(violation), violation)
                return
            self._touch()

    def _connection_changed(self, peer_id: int, connected: bool) -> None:
        if self._group.out is None:
            if not connected:
                self._core.report_unreachable(peer_id)
            self._observer.connection_changed(peer_id)
            self._first_election.connected()

    def _on_timer(self) -> None:
        now = self._loop.time()
        if now - self._tick_due >= self.settings.tick_s and not self._observer.tick_was_late:
            # The loop was blocked. What peers sent meanwhile waits in the sockets: read it before counting silence.
            self._observer.tick_was_late = True
            self._observer.late_ticks += 1
            self._tick_timer = self._loop.call_later(0.001, self._on_timer)
            return
        self._observer.tick_was_late = False
        self._tick_due = max(self._tick_due + self.settings.tick_s, now + self.settings.tick_s / 2)
        self._tick_timer = self._loop.call_at(self._tick_due, self._on_timer)
        if self._observer.disk_answers(self._persistence):
            self._core.tick()
        self._observer.ticks += 1
        if self._observer.ticks % self.settings.commit_saved_after_ticks == 0:
            self._persistence.save_commit()
        self._pump()

    def _touch(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    # --- what comes out ------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._group.out is not None:
            return
        core = self._core
        try:
            while core.has_ready():
                while core.has_ready():
                    self._take(core.ready())
                self._persistence.run()
        except SafetyViolation as violation:
            self._fail(str(violation), violation)
            return
        self._observer.look()
        self._applier.run()

    def _take(self, ready: Ready) -> None:
        self._send(ready.messages)
        if ready.fetch is not None:
            self._fetcher.fetch(ready.fetch)
        if ready.committed:
            self._applier.add(ready.committed)
        if ready.reads:
            self._reads.confirmed(ready.reads)
        ready.messages = []
        if ready.hard_state or ready.entries or ready.committed or ready.durable_messages or ready.snapshot:
            self._persistence.add(ready)

    def _send(self, messages: Sequence[Message]) -> None:
        send = self._transport.send
        for message in messages:
            send(message.target, message)

    def _stored(self, batch: list[Ready]) -> None:
        for ready in batch:
            self._send(ready.durable_messages)
            self._core.advance(ready)
        if self._persistence.is_idle:
            self._maker.take_if_due()
        self._touch()

    def _applied(self, entries: Sequence[Entry], results: Sequence[object]) -> None:
        self._group.waiting.entries_applied(entries, results)

    def _restored(self, meta: SnapshotMeta) -> None:
        log.info("installed a snapshot of the leader", index=meta.index, term=meta.term, bytes=meta.size)
        self._maker.installed(meta)
        self._observer.snapshots_installed += 1
        self._group.waiting.restored(meta.index)

    def _slice_done(self) -> None:
        self._observer.applied()
        self._maker.take_if_due()
