"""The leader's side (Raft §5.3, §5.4.2, §6): replicate, commit, confirm reads, change the membership, hand over.

A `Leadership` lives as long as its node leads, in one term. It answers messages and ticks by changing the log and the
outbox; it never changes the term. Appends are not sent when something is proposed but when the driver asks for work
(`flush`), so that everything proposed in one turn travels in one append.

Rules
1. Only entries of the leader's own term are committed by counting; older ones are committed by what follows them.
2. The leader's own log counts only as far as its own disk has it, and only while it is a voter itself.
3. Peers count by the data folder that answers: voters of the configuration, with the folder it names.
4. A leader that is not a voter of a committed configuration leaves; it first hands over to the fittest voter.
"""

from __future__ import annotations

from chronik.raft.configuration import is_voter, quorum_value, with_learned_directories
from chronik.raft.errors import ChangeRefused, ProposalDropped, TransferRefused
from chronik.raft.log import UNKNOWN_TERM
from chronik.raft.progress import Progress, ProgressState
from chronik.raft.reads import PendingReads
from chronik.raft.state import NodeState
from chronik.raft.types import (
    NO_NODE,
    UNKNOWN_DIRECTORY,
    Append,
    AppendResponse,
    CommitNotice,
    Configuration,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    TimeoutNow,
    encode_configuration,
)


class Leadership:
    """What a node knows and does only because it leads."""

    __slots__ = (
        "_counted",
        "_counts_itself",
        "_dirty",
        "_heartbeat_ticks",
        "_quorum_ticks",
        "_reads",
        "_state",
        "_transfer_ticks",
        "_voter_count",
        "first_index",
        "is_over",
        "peers",
        "transfer_target",
    )

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.peers: dict[int, Progress] = {}
        self.transfer_target = NO_NODE
        self.is_over = False
        """Set when this node must not lead any longer: it heard no quorum, or was removed."""
        self._reads = PendingReads(state.settings.pending_reads_max)
        self._heartbeat_ticks = 0
        self._quorum_ticks = 0
        self._transfer_ticks = 0
        self._dirty = True
        self.first_index = state.log.last_index + 1
        """The first index of this leader's own term, where it appends the entry that commits all before it."""
        self._configuration_changed(state.log.last_index)
        self.append([(EntryKind.NOOP, b"")])

    # --- the log ----------------------------------------------------------------------------------------------------

    def append(self, proposals: list[tuple[EntryKind, bytes]]) -> int:
        """Append entries of this term; the index of the first."""
        log, term = self._state.log, self._state.term
        first = log.last_index + 1
        log.append([Entry(term, index, kind, data) for index, (kind, data) in enumerate(proposals, first)])
        self._dirty = True
        return first

    def append_data(self, datas: list[bytes]) -> int:
        """As `append`, for data only."""
        log, term, kind = self._state.log, self._state.term, EntryKind.DATA
        first = log.last_index + 1
        log.append([Entry(term, index, kind, data) for index, data in enumerate(datas, first)])
        self._dirty = True
        return first

    def own_log_stored(self) -> None:
        """More of the leader's own log is on its disk."""
        if self._counts_itself:
            self._advance_commit()

    def _advance_commit(self) -> None:
        state, log = self._state, self._state.log
        stored = [peer.match for peer in self._counted]
        if self._counts_itself:
            stored.append(log.stable)
        index = quorum_value(stored, self._voter_count)
        if index <= log.commit or log.term_at(index) != state.term:
            return
        first_in_term = log.commit < self.first_index
        changed = log.commit < state.membership.latest_index <= index
        log.commit_to(index)
        self._dirty = True
        if first_in_term:
            self._reads.first_commit(log.commit)
        if changed:
            self._configuration_committed()
        if first_in_term or changed:
            self.record_directories()

    # --- membership -------------------------------------------------------------------------------------------------

    def append_configuration(self, configuration: Configuration) -> int:
        """Append a configuration; it holds from here on."""
        self.require_no_change_pending()
        index = self.append([(EntryKind.CONFIGURATION, encode_configuration(configuration))])
        self._state.membership.append(self._state.log.slice(index, index))
        self._configuration_changed(index - 1)
        return index

    def require_no_change_pending(self) -> None:
        """Refuse a change that would come too early (rule 2 of `configuration.py`)."""
        state = self._state
        if state.log.commit < self.first_index:
            raise ChangeRefused("the leader was elected just now and has committed nothing yet: retry", retriable=True)
        if state.log.commit < state.membership.latest_index:
            raise ChangeRefused("the previous membership change is not committed yet: retry", retriable=True)

    def _configuration_changed(self, assumed_index: int) -> None:
        """Begin to replicate to new members, as if they had everything through `assumed_index`: they will object.

        Those who left are kept until the change is committed, to tell them.
        """
        state, configuration = self._state, self._state.configuration
        for node_id in (*configuration.voters, *configuration.observers):
            if node_id != state.node_id and node_id not in self.peers:
                self.peers[node_id] = Progress(node_id, assumed_index, state.settings)
        self._recount()

    def _configuration_committed(self) -> None:
        configuration = self._state.configuration
        for node_id in [n for n in self.peers if n not in configuration.voters and n not in configuration.observers]:
            departed = self.peers.pop(node_id)
            if departed.state is ProgressState.REPLICATE:
                # The last it hears: that its removal is committed, and that it need not campaign.
                self._send_append(departed)
        self._recount()
        if not self._counts_itself:
            self._hand_over_and_leave()

    def _recount(self) -> None:
        """Rule 3: settle which peers count, after the configuration or the folder of a peer changed."""
        configuration = self._state.configuration
        for peer in self.peers.values():
            # A peer not heard from yet has acknowledged nothing, and counts for nothing.
            peer.counts = is_voter(configuration, peer.node_id, peer.directory_id)
        self._counted = [peer for peer in self.peers.values() if peer.counts]
        self._counts_itself = self._state.counts_itself
        self._voter_count = len(configuration.voters)

    def record_directories(self) -> None:
        """Rule 4 of `configuration.py`: make the directory ids that were learned part of the configuration.

        The configuration of the first start is in nobody's log; it is put there, so that those who join later get it.
        Not while leadership moves: the target would campaign with a log that lacks the entry, and lose.
        """
        state = self._state
        learned = {p.node_id: p.directory_id for p in self.peers.values() if p.directory_id != UNKNOWN_DIRECTORY}
        learned[state.node_id] = state.directory_id
        configuration = with_learned_directories(state.configuration, learned)
        if configuration is None and not state.membership.latest_index:
            configuration = state.configuration
        settled = max(self.first_index, state.membership.latest_index) <= state.log.commit
        if configuration is not None and settled and not self.is_over and not self.transfer_target:
            self.append_configuration(configuration)

    def _hand_over_and_leave(self) -> None:
        state = self._state
        self.is_over = True
        self.flush()
        fittest = max((p for p in self._counted if p.active), key=lambda peer: peer.match, default=None)
        if fittest is not None:
            state.messages.append(TimeoutNow(state.node_id, fittest.node_id, state.term))

    # --- sending ----------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self._dirty or self._reads.must_broadcast

    def flush(self) -> None:
        """Put everything that peers should hear by now into the outbox."""
        if self._reads.must_broadcast:
            self._broadcast_heartbeat()
        if self._dirty:
            self._dirty = False
            for peer in self.peers.values():
                self._replicate(peer)

    def _replicate(self, peer: Progress) -> None:
        state = self._state
        while not peer.is_paused and peer.next <= state.log.last_index:
            if not self._send_append(peer):
                return
        commit = min(peer.match, state.log.commit)
        if commit > peer.commit_sent:
            peer.commit_sent = commit
            state.messages.append(CommitNotice(state.node_id, peer.node_id, state.term, peer.directory_id, commit))

    def _send_append(self, peer: Progress) -> bool:
        """Send the next entries, or none to probe; or offer a snapshot where the entries are gone (then False)."""
        state, log, settings = self._state, self._state.log, self._state.settings
        previous = peer.next - 1
        previous_term = log.term_at(previous)
        if previous_term == UNKNOWN_TERM:
            self._offer_snapshot(peer)
            return False
        entries = []
        if not peer.is_paused:
            entries = log.slice_bounded(
                peer.next, log.last_index, settings.append_entries_max, settings.append_bytes_max
            )
        last = previous + len(entries)
        state.messages.append(
            Append(state.node_id, peer.node_id, state.term, previous, previous_term, log.commit, entries)
        )
        if peer.state is ProgressState.REPLICATE:
            peer.commit_sent = max(peer.commit_sent, min(log.commit, last))
        peer.sent(last, log.bytes_between(previous, last))
        return True

    def _offer_snapshot(self, peer: Progress) -> None:
        state = self._state
        peer.offered(state.log.snapshot.index)
        state.messages.append(InstallSnapshot(state.node_id, peer.node_id, state.term, state.log.snapshot))

    def _broadcast_heartbeat(self) -> None:
        state = self._state
        self._reads.must_broadcast = False
        for peer in self.peers.values():
            peer.commit_sent = max(peer.commit_sent, min(peer.match, state.log.commit))
            state.messages.append(
                Heartbeat(
                    source=state.node_id,
                    target=peer.node_id,
                    term=state.term,
                    target_directory_id=peer.directory_id,
                    commit=min(peer.match, state.log.commit),
                    round=self._reads.round,
                )
            )
        self._confirm_reads()

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Heartbeats; offers that may have been lost; and, once per election timeout, whether a quorum was heard."""
        settings = self._state.settings
        self._heartbeat_ticks += 1
        if self._heartbeat_ticks >= settings.heartbeat_ticks:
            self._heartbeat_ticks = 0
            for peer in self.peers.values():
                peer.beat(self._state.log.last_index)
            self._broadcast_heartbeat()
        for peer in self.peers.values():
            if peer.state is ProgressState.SNAPSHOT:
                peer.ticks_since_offer += 1
                if peer.ticks_since_offer >= settings.election_ticks:
                    self._offer_snapshot(peer)
        self._transfer_ticks += 1
        if self.transfer_target and self._transfer_ticks >= settings.election_ticks:
            # The target did not take over: take proposals again.
            self.transfer_target = NO_NODE
            self.record_directories()
        self._quorum_ticks += 1
        if self._quorum_ticks >= settings.election_ticks:
            self._quorum_ticks = 0
            if settings.check_quorum and not self._heard_quorum():
                self.is_over = True

    def _heard_quorum(self) -> bool:
        heard = sum(1 for peer in self._counted if peer.active) + self._counts_itself
        for peer in self.peers.values():
            peer.active = False
        return heard > self._voter_count // 2

    # --- answers ----------------------------------------------------------------------------------------------------

    def _heard_from(self, peer: Progress, directory_id: bytes) -> None:
        if peer.heard_from(directory_id, self._state.log.last_index):
            self._recount()
            self.record_directories()

    def on_append_response(self, response: AppendResponse) -> None:
        """A peer has stored more, or does not agree yet."""
        peer = self.peers.get(response.source)
        if peer is None:
            return
        self._heard_from(peer, response.directory_id)
        log = self._state.log
        if response.rejected:
            agreement, _ = log.last_with_term_at_most(response.hint_index, response.hint_term)
            if peer.rejected(response.index, agreement):
                self._send_append(peer)
            return
        if response.index > log.last_index:
            return
        moved = peer.acknowledged(response.index, log.first_index)
        if moved and peer.state is ProgressState.SNAPSHOT:
            # It has installed a snapshot that is no longer enough.
            self._offer_snapshot(peer)
        if moved and peer.counts and response.index > log.commit:
            self._advance_commit()
        if peer.next <= log.last_index or min(peer.match, log.commit) > peer.commit_sent:
            self._dirty = True
        if moved:
            self._continue_transfer(peer)

    def on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        """A peer lives. If it has been lacking entries for a while, find out whether some were lost."""
        peer = self.peers.get(response.source)
        if peer is None:
            return
        self._heard_from(peer, response.directory_id)
        if peer.look_for_losses(self._state.log.last_index):
            self._send_append(peer)
        if response.round > peer.acked_round:
            peer.acked_round = response.round
            if peer.counts:
                self._confirm_reads()
        self._continue_transfer(peer)

    # --- reads and transfer -----------------------------------------------------------------------------------------

    def take_read(self, context: int) -> None:
        """Register a read; it comes back in `Ready.reads` when it is safe."""
        log = self._state.log
        self._reads.take(context, log.commit if log.commit >= self.first_index else None)

    def _confirm_reads(self) -> None:
        if self._reads:
            echoed = [peer.acked_round for peer in self._counted]
            if self._counts_itself:
                echoed.append(self._reads.round)
            self._state.reads += self._reads.confirmed(quorum_value(echoed, self._voter_count))

    def require_no_transfer(self) -> None:
        """Refuse proposals while leadership moves: the target could never catch up with a busy leader."""
        if self.transfer_target:
            raise ProposalDropped(f"leadership is being handed to node {self.transfer_target}: retry there soon")

    def start_transfer(self, target: int) -> None:
        """Stop taking proposals, bring `target` up to date, and have it campaign."""
        peer = self.peers.get(target)
        if peer is None or target not in self._state.configuration.voters:
            raise TransferRefused(f"node {target} is not another voter of this group")
        if not peer.counts:
            raise TransferRefused(f"node {target} has not been heard from, or came back with an empty data folder")
        self.transfer_target = target
        self._transfer_ticks = 0
        self._dirty = True
        self._continue_transfer(peer)

    def _continue_transfer(self, peer: Progress) -> None:
        state = self._state
        if self.transfer_target == peer.node_id and peer.match == state.log.last_index:
            state.messages.append(TimeoutNow(state.node_id, peer.node_id, state.term))
