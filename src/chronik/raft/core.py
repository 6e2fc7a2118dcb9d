"""The consensus core: a deterministic state machine. Messages, ticks and proposals go in, `Ready` comes out.

No IO, no clock, no randomness of its own: a tick is whatever the driver says, and the random numbers are injected.
Roles change here and only here; what a role does is in `election.py`, `following.py` and `leadership.py`.

    core.step(message) / core.tick() / core.propose(...)
    while core.has_ready():
        ready = core.ready()
        ... send, persist, send, apply: see `Ready` ...
        core.advance(ready)

`ready()` may be called again before an earlier `Ready` is advanced, so that heartbeats leave while a disk is busy.
The driver then persists and advances in the order in which it was given them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from chronik.raft import following
from chronik.raft.admission import require_room
from chronik.raft.configuration import ConfigurationHistory, apply_change
from chronik.raft.election import Election
from chronik.raft.errors import NotLeader, SafetyViolation
from chronik.raft.leadership import Leadership
from chronik.raft.log import RaftLog
from chronik.raft.settings import RaftSettings
from chronik.raft.state import NodeState, Role
from chronik.raft.status import CoreStatus, status_of
from chronik.raft.types import (
    NO_NODE,
    Append,
    AppendResponse,
    CommitNotice,
    Configuration,
    ConfigurationChange,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    Ready,
    SnapshotMeta,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

_FROM_LEADER: dict[type, Callable[[NodeState, Any], None]] = {
    Append: following.on_append,
    Heartbeat: following.on_heartbeat,
    CommitNotice: following.on_commit_notice,
    InstallSnapshot: following.on_install_snapshot,
}


class RaftCore:
    """One node of a consensus group. Not thread-safe; everything happens on the thread of its driver."""

    def __init__(
        self,
        *,
        node_id: int,
        directory_id: bytes,
        snapshot: SnapshotMeta,
        entries: Sequence[Entry] = (),
        hard_state: HardState | None = None,
        rng: random.Random,
        settings: RaftSettings | None = None,
    ) -> None:
        """Start from what the disk held. On the first start `snapshot` has index 0 and the initial configuration.

        A node that is the only voter campaigns at once: there is nobody to wait for.
        """
        hard_state = hard_state or HardState()
        self._state = NodeState(
            node_id,
            directory_id,
            RaftLog(snapshot, entries, hard_state.commit),
            ConfigurationHistory(snapshot, entries),
            hard_state,
            rng,
            settings or RaftSettings(),
        )
        self._election = Election(self._state)
        self._leadership: Leadership | None = None
        if self._is_only_voter:
            self.campaign()

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._state.node_id

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def leader_id(self) -> int:
        """The leader of this term as far as known, or NO_NODE."""
        return self._state.leader_id

    @property
    def commit(self) -> int:
        return self._state.log.commit

    @property
    def applied(self) -> int:
        return self._state.log.applied

    @property
    def last_index(self) -> int:
        return self._state.log.last_index

    @property
    def configuration(self) -> Configuration:
        """The latest configuration in the log, which is the one that holds; perhaps not committed yet."""
        return self._state.configuration

    @property
    def committed_configuration(self) -> Configuration:
        return self._state.committed_configuration

    @property
    def log(self) -> RaftLog:
        """The log, to look at."""
        return self._state.log

    def status(self) -> CoreStatus:
        """Everything a person or a metric wants to know, at this moment."""
        return status_of(self._state, self._leadership)

    # --- what goes in -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One unit of time has passed."""
        if self._leadership is not None:
            self._leadership.tick()
            self._leave_if_over()
            return
        state = self._state
        state.elapsed_ticks += 1
        if state.elapsed_ticks >= state.timeout_ticks:
            if state.may_campaign:
                self.campaign()
            else:
                state.leader_id = NO_NODE
                state.restart_election_timer()

    def step(self, message: Message) -> None:
        """A message has arrived; it may be late, doubled, out of order, or meant for somebody else."""
        state = self._state
        if message.target != state.node_id:
            return
        kind = type(message)
        if message.term != state.term:
            if message.term < state.term:
                self._answer_stale(message)
                return
            if not self._enter_term_of(message):
                return
        handle = _FROM_LEADER.get(kind)
        if handle is not None:
            self._follow(message)
            handle(state, message)
        elif kind is AppendResponse or kind is HeartbeatResponse:
            if self._leadership is not None:
                if kind is AppendResponse:
                    self._leadership.on_append_response(message)  # type: ignore[arg-type]
                else:
                    self._leadership.on_heartbeat_response(message)  # type: ignore[arg-type]
                self._leave_if_over()
        elif isinstance(message, VoteRequest):
            if not self._election.ignores(message):
                self._election.answer(message)
        elif isinstance(message, VoteResponse):
            self._on_vote_response(message)
        elif isinstance(message, TimeoutNow) and state.may_campaign and self._leadership is None:
            self._election.start(pre=False, transfer=True)

    def campaign(self) -> None:
        """Stand for election now, whether or not a leader is heard. Does nothing on a node that may not lead."""
        if not self._state.may_campaign or self._leadership is not None:
            return
        self._election.start(pre=self._state.settings.pre_vote and not self._is_only_voter)
        self._count_votes()

    def propose(self, datas: Sequence[bytes]) -> tuple[int, int]:
        """Append `datas` as one entry each, in order; their term and the index of the first. All or nothing."""
        leadership = self._require_leadership()
        leadership.require_no_transfer()
        require_room(self._state.log, self._state.settings, datas)
        return self._state.term, leadership.append_data(list(datas))

    def propose_change(self, change: ConfigurationChange) -> tuple[int, int]:
        """Append a change of the membership, which holds at once; its term and index. One at a time."""
        leadership = self._require_leadership()
        leadership.require_no_transfer()
        leadership.require_no_change_pending()
        configuration = apply_change(self._state.configuration, change)
        return self._state.term, leadership.append_configuration(configuration)

    def read_index(self, context: int) -> None:
        """Ask for a linearizable read; `context` comes back in `Ready.reads`. Lost if this node stops to lead first."""
        self._require_leadership().take_read(context)

    def transfer(self, target: int) -> None:
        """Hand leadership to another voter. Given up after an election timeout; see who leads to know."""
        leadership = self._require_leadership()
        if target != self._state.node_id:
            leadership.start_transfer(target)

    def report_unreachable(self, peer_id: int) -> None:
        """The transport lost what was on its way to a peer. A hint: without it the next heartbeat finds out."""
        if self._leadership is not None and peer_id in self._leadership.peers:
            self._leadership.peers[peer_id].unreachable()

    # --- snapshots --------------------------------------------------------------------------------------------------

    def snapshot_meta(self, index: int) -> SnapshotMeta:
        """What describes a snapshot of the state applied through `index` (size and checksum are for the storage)."""
        log = self._state.log
        if not log.snapshot.index <= index <= log.applied:
            raise ValueError(
                f"a snapshot at {index} is not between the last one, {log.snapshot.index}, and {log.applied}"
            )
        return SnapshotMeta(index, log.term_at(index), self._state.membership.at(index))

    def compact(self, snapshot: SnapshotMeta, retained_entries: int) -> None:
        """A snapshot of this node's own state is stored: drop the log behind it but for the last `retained_entries`.

        What is retained spares a follower that is only a little behind the whole snapshot.
        """
        log = self._state.log
        if snapshot.index > log.snapshot.index:
            log.compact(snapshot, retained_entries)
            self._state.membership.compact(log.base_index)

    def snapshot_fetched(self, snapshot: SnapshotMeta) -> bool:
        """The bytes asked for by `Ready.fetch` are stored aside. True: the next `Ready` says to install them; False:
        the log has caught up meanwhile and they are not needed."""
        if self._leadership is not None:
            return False
        return following.snapshot_fetched(self._state, snapshot)

    def snapshot_fetch_failed(self, snapshot: SnapshotMeta) -> None:
        """The bytes asked for by `Ready.fetch` could not be had. The leader offers again."""
        following.snapshot_fetch_failed(self._state, snapshot)

    # --- what comes out ---------------------------------------------------------------------------------------------

    def has_ready(self) -> bool:
        """Whether there is work for the driver."""
        state, log = self._state, self._state.log
        return bool(
            log.handed < log.last_index
            or state.messages
            or state.durable_messages
            or log.applying < min(log.commit, log.stable)
            or state.has_new_hard_state
            or state.reads
            or state.install is not None
            or state.fetch is not None
            or (self._leadership is not None and self._leadership.has_work)
        )

    def ready(self) -> Ready:
        """Hand out all work there is (committed entries in bounded slices)."""
        state, log = self._state, self._state.log
        if self._leadership is not None:
            self._leadership.flush()
        entries = log.slice(log.handed + 1, log.last_index) if log.handed < log.last_index else []
        committed: list[Entry] = []
        applicable = min(log.commit, log.stable)
        if log.applying < applicable:
            settings = state.settings
            committed = log.slice_bounded(
                log.applying + 1, applicable, settings.committed_entries_max, settings.committed_bytes_max
            )
            log.applying = committed[-1].index
        log.handed = log.last_index
        hard_state: HardState | None = None
        must_sync = bool(entries) or state.install is not None
        if state.has_new_hard_state:
            hard_state = state.hard_state
            must_sync = must_sync or (hard_state.term, hard_state.vote) != (
                state.hard_state_handed.term,
                state.hard_state_handed.vote,
            )
            state.hard_state_handed = hard_state
        ready = Ready(
            hard_state=hard_state,
            entries=entries,
            snapshot=state.install,
            messages=state.messages,
            durable_messages=state.durable_messages,
            committed=committed,
            reads=state.reads,
            fetch=state.fetch,
            must_sync=must_sync,
        )
        state.messages, state.durable_messages, state.reads = [], [], []
        state.install = state.fetch = None
        return ready

    def advance(self, ready: Ready) -> None:
        """All of `ready` is done. Only now does what it stored count: the own vote, and the own log of a leader."""
        state, log = self._state, self._state.log
        if ready.snapshot is not None and ready.snapshot == state.installing:
            state.installing = None
        if ready.committed:
            log.applied = max(log.applied, ready.committed[-1].index)
        if ready.hard_state is not None:
            state.hard_state_stored = ready.hard_state
            if state.role is Role.CANDIDATE and ready.hard_state.term == state.term:
                self._election.own_vote_stored()
                self._count_votes()
        if ready.entries:
            stored = ready.entries[-1]
            # Another leader may have replaced these entries while they were being stored; then they do not count.
            if stored.index > log.stable and log.term_at(stored.index) == stored.term:
                log.stable = stored.index
                if self._leadership is not None:
                    self._leadership.own_log_stored()
                    self._leave_if_over()

    # --- roles ------------------------------------------------------------------------------------------------------

    @property
    def _is_only_voter(self) -> bool:
        return len(self._state.configuration.voters) == 1 and self._state.counts_itself

    def _require_leadership(self) -> Leadership:
        if self._leadership is None:
            raise NotLeader(self._state.leader_id)
        return self._leadership

    def _enter_term_of(self, message: Message) -> bool:
        """A message of a higher term: enter it, except where it is only about an election that may never happen."""
        if isinstance(message, VoteRequest):
            if self._election.ignores(message):
                return False
            if message.pre:
                return True
        elif isinstance(message, VoteResponse) and message.pre and message.granted:
            # The term of a granted pre-vote is the one this node asked for, and has not begun.
            return message.term == self._state.term + 1
        self._become_follower(message.term, NO_NODE)
        return True

    def _answer_stale(self, message: Message) -> None:
        """Tell the sender of an outdated request which term it is. Outdated answers tell nothing."""
        state = self._state
        if isinstance(message, VoteRequest):
            self._election.answer(message)
        elif type(message) in _FROM_LEADER:
            state.durable_messages.append(
                AppendResponse(state.node_id, message.source, state.term, state.directory_id, 0, rejected=True)
            )

    def _follow(self, message: Message) -> None:
        state = self._state
        if state.role is Role.LEADER:
            raise SafetyViolation(
                f"nodes {state.node_id} and {message.source} both lead term {state.term}: stop this node; "
                f"look for a data folder that was copied or restored from a backup"
            )
        if state.role is not Role.FOLLOWER or state.leader_id != message.source:
            self._become_follower(message.term, message.source)
        state.elapsed_ticks = 0

    def _become_follower(self, term: int, leader_id: int) -> None:
        state = self._state
        state.enter_term(term)
        state.role = Role.FOLLOWER
        state.leader_id = leader_id
        self._leadership = None
        state.restart_election_timer()

    def _leave_if_over(self) -> None:
        if self._leadership is not None and self._leadership.is_over:
            self._become_follower(self._state.term, NO_NODE)

    def _on_vote_response(self, response: VoteResponse) -> None:
        expected = Role.PRE_CANDIDATE if response.pre else Role.CANDIDATE
        outdated = response.pre and response.granted and response.term != self._state.term + 1
        if self._state.role is expected and not outdated:
            self._election.count(response)
            self._count_votes()

    def _count_votes(self) -> None:
        state = self._state
        if self._election.is_won:
            if state.role is Role.PRE_CANDIDATE:
                self._election.start(pre=False)
            else:
                state.role = Role.LEADER
                state.leader_id = state.node_id
                self._leadership = Leadership(state)
        elif self._election.is_lost:
            self._become_follower(state.term, NO_NODE)
