"""Bugs to plant: small, plausible mistakes in core, storage and driver, each of which the simulator must notice.

A simulator that has never failed proves nothing. Each mutation names the mistake, makes it, and undoes it. Seeds that
expose it are kept in `pinned_seeds.json`, so that the check is cheap; `python -m simulation.raft.run --pin` finds new
ones by search, which is needed when a change has made the seeds mean other worlds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from chronik.raft import core, election, following, leadership
from chronik.raft.configuration import ConfigurationHistory, apply_change, quorum_value
from chronik.raft.core import RaftCore
from chronik.raft.election import Election
from chronik.raft.leadership import Leadership
from chronik.raft.log import RaftLog
from chronik.raft.progress import Progress
from chronik.raft.state import NodeState
from chronik.raft.storage import RaftStorage
from chronik.raft.types import (
    NO_NODE,
    Append,
    AppendResponse,
    Configuration,
    ConfigurationChange,
    Entry,
    HardState,
    Ready,
    SnapshotMeta,
    VoteRequest,
)
from simulation.raft.machine import Machine
from simulation.raft.node import SimulatedNode


class Mutation:
    """One bug. `replace` are (owner, name, replacement): attributes, or items where the owner is a dict."""

    def __init__(self, text: str, *replace: tuple[Any, Any, Any]) -> None:
        self.text = text
        self._replace = replace

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug for a while."""
        with contextlib.ExitStack() as undo:
            for owner, name, replacement in self._replace:
                if isinstance(owner, dict):
                    undo.callback(owner.__setitem__, name, owner[name])
                    owner[name] = replacement
                else:
                    undo.callback(setattr, owner, name, owner.__dict__[name])
                    setattr(owner, name, replacement)
            yield


# --- elections --------------------------------------------------------------------------------------------------------


def _free_in_every_request(self: Election, request: VoteRequest) -> bool:
    return request.term > self._state.term if request.pre else request.term == self._state.term


def _move_last(state: NodeState) -> None:
    state.messages.append(state.durable_messages.pop())


def _answer_before_storing(self: Election, request: VoteRequest) -> None:
    _answer(self, request)
    if not request.pre:
        _move_last(self._state)


_answer = Election.answer


def _start_with_own_vote(self: Election, *, pre: bool, transfer: bool = False) -> None:
    _start(self, pre=pre, transfer=transfer)
    self._votes[self._state.node_id] = True


_start = Election.start


def _only_latest_may_campaign(self: NodeState) -> bool:
    return self.counts_itself


def _save_without_vote(self: RaftStorage, entries: list[Entry], hard_state: HardState | None, *, sync: bool) -> None:
    _save(self, entries, msgspec.structs.replace(hard_state, vote=NO_NODE) if hard_state else None, sync=sync)


_save = RaftStorage.save

# --- replication ------------------------------------------------------------------------------------------------------


def _commit_any_term(self: Leadership) -> None:
    log = self._state.log
    stored = [peer.match for peer in self._counted] + ([log.stable] if self._counts_itself else [])
    index = quorum_value(stored, self._voter_count)
    if log.commit < index and log.term_at(index) != self._state.term:
        log.commit_to(index)
        self._dirty = True
    _advance_commit(self)


_advance_commit = Leadership._advance_commit


def _acknowledge_before_sync(self: NodeState, target: int, index: int) -> None:
    self.messages.append(AppendResponse(self.node_id, target, self.term, self.directory_id, index))


def _commit_what_was_sent(state: NodeState, message: Append) -> None:
    following.on_append(state, message)
    if state.log.term_at(message.previous_index) == message.previous_term:
        state.log.commit_to(message.previous_index + len(message.entries))


def _merge_by_cutting(self: RaftLog, entries: list[Entry]) -> int:
    if not entries:
        return 0
    if entries[0].index <= self.last_index:
        commit, self.commit = self.commit, 0
        self.truncate_from(entries[0].index)
        self.commit = commit
    self.append(entries)
    return entries[0].index


def _truncate_silently(self: RaftLog, index: int) -> None:
    commit, self.commit = self.commit, 0
    _truncate_from(self, index)
    self.commit = min(commit, index - 1)


_truncate_from = RaftLog.truncate_from


def _append_without_matching(state: NodeState, message: Append) -> None:
    log = state.log
    if log.commit <= message.previous_index <= log.last_index:
        message = msgspec.structs.replace(message, previous_term=log.term_at(message.previous_index))
    following.on_append(state, message)


def _append_and_count(self: Leadership, datas: list[bytes]) -> int:
    first = _append_data(self, datas)
    self._state.log.stable = self._state.log.last_index
    self.own_log_stored()
    return first


_append_data = Leadership.append_data


def _count_everybody(self: Leadership) -> None:
    _recount(self)
    self._counted = list(self.peers.values())


_recount = Leadership._recount


def _is_voter_by_id(configuration: Configuration, node_id: int, directory_id: bytes) -> bool:
    return node_id in configuration.voters


def _commit_to_anything(self: RaftLog, index: int) -> bool:
    self.commit = min(index, self.last_index)
    return True


# --- membership, reads, snapshots -------------------------------------------------------------------------------------


def _change_any_time(self: Leadership) -> None:
    return None


def _confirm_at_once(self: Leadership) -> None:
    self._state.reads += self._reads.confirmed(self._reads.round)


def _read_at_once(self: Leadership, context: int) -> None:
    self._reads.take(context, self._state.log.commit)


def _forget_configuration(self: RaftCore, index: int) -> SnapshotMeta:
    return msgspec.structs.replace(_snapshot_meta(self, index), configuration=Configuration())


def _latest_configuration(self: RaftCore, index: int) -> SnapshotMeta:
    return msgspec.structs.replace(_snapshot_meta(self, index), configuration=self.configuration)


def _one_entry_too_old(self: RaftCore, index: int) -> SnapshotMeta:
    return _snapshot_meta(self, max(index - 1, self.log.snapshot.index))


_snapshot_meta = RaftCore.snapshot_meta


def _replace_voter_in_one_step(configuration: Configuration, change: ConfigurationChange) -> Configuration:
    member = change.member
    if member.node_id in configuration.voters and member.directory_id.strip(b"\0"):
        return Configuration({**configuration.voters, member.node_id: member}, configuration.observers)
    return _apply_change(configuration, change)


_apply_change = apply_change


def _keep_membership(self: ConfigurationHistory, snapshot: SnapshotMeta) -> None:
    return None


def _sync_nothing(self: RaftStorage) -> None:
    return None


def _promise_early(self: SimulatedNode, ready: Ready) -> None:
    ready.messages += ready.durable_messages
    ready.durable_messages = []
    _begin(self, ready)


_begin = SimulatedNode._begin


def _apply_again(self: SimulatedNode, snapshot: SnapshotMeta, data: bytes) -> None:
    _store_snapshot(self, snapshot, data)
    self.machine = Machine.decode(data)


_store_snapshot = SimulatedNode._store_snapshot


def _always(*arguments: object) -> bool:
    return True


def _never(*arguments: object) -> bool:
    return False


MUTATIONS: dict[str, Mutation] = {
    "vote-twice": Mutation(
        "a node votes for several candidates of a term", (Election, "_is_free", _free_in_every_request)
    ),
    "vote-before-storing": Mutation("a vote is sent before it is stored", (Election, "answer", _answer_before_storing)),
    "vote-not-stored": Mutation("the vote is not part of what is saved", (RaftStorage, "save", _save_without_vote)),
    "own-vote-before-storing": Mutation(
        "a candidate counts its own vote before it is stored", (Election, "start", _start_with_own_vote)
    ),
    "vote-for-short-log": Mutation(
        "a vote goes to a candidate that lacks entries", (RaftLog, "is_up_to_date", _always)
    ),
    "wiped-voter-votes": Mutation(
        "a node with an emptied folder votes under its old id",
        (Election, "_is_addressed_to_me", _always),
        (election, "is_voter", _is_voter_by_id),
    ),
    "wiped-voter-counts": Mutation(
        "the answers of a node with an emptied folder count", (leadership, "is_voter", _is_voter_by_id)
    ),
    "removed-do-not-campaign": Mutation(
        "voters of the committed configuration do not campaign",
        (NodeState, "may_campaign", property(_only_latest_may_campaign)),
    ),
    "commit-old-term": Mutation(
        "entries of older terms are committed by counting", (Leadership, "_advance_commit", _commit_any_term)
    ),
    "acknowledge-before-sync": Mutation(
        "an append is acknowledged before it is synced", (NodeState, "acknowledge_append", _acknowledge_before_sync)
    ),
    "leader-counts-unsynced": Mutation(
        "a leader counts its own log before it is synced", (Leadership, "append_data", _append_and_count)
    ),
    "apply-before-commit": Mutation(
        "a follower takes what it was sent for committed", (core._FROM_LEADER, Append, _commit_what_was_sent)
    ),
    "late-append-cuts": Mutation("a late append cuts off what came after it", (RaftLog, "merge", _merge_by_cutting)),
    "truncate-committed": Mutation(
        "late appends cut, and committed entries are not protected",
        (RaftLog, "merge", _merge_by_cutting),
        (RaftLog, "truncate_from", _truncate_silently),
    ),
    "skip-log-matching": Mutation(
        "an append is taken without comparing the entry before it",
        (core._FROM_LEADER, Append, _append_without_matching),
    ),
    "count-observers": Mutation("observers count toward the commit", (Leadership, "_recount", _count_everybody)),
    "losses-go-unnoticed": Mutation("a lost append is not looked for", (Progress, "look_for_losses", _never)),
    "commit-goes-back": Mutation("an old message lowers the commit index", (RaftLog, "commit_to", _commit_to_anything)),
    "two-changes-at-once": Mutation(
        "a change does not wait for the one before it", (Leadership, "require_no_change_pending", _change_any_time)
    ),
    "replace-in-one-step": Mutation(
        "a wiped voter is replaced by its new self in one step", (core, "apply_change", _replace_voter_in_one_step)
    ),
    "read-without-quorum": Mutation(
        "a leader serves reads without asking whether it still leads",
        (Leadership, "_confirm_reads", _confirm_at_once),
    ),
    "read-before-first-commit": Mutation(
        "a new leader serves reads before it knows what is committed", (Leadership, "take_read", _read_at_once)
    ),
    "snapshot-forgets-configuration": Mutation(
        "a snapshot has no configuration", (RaftCore, "snapshot_meta", _forget_configuration)
    ),
    "snapshot-of-latest-configuration": Mutation(
        "a snapshot has a configuration that is not committed", (RaftCore, "snapshot_meta", _latest_configuration)
    ),
    "snapshot-too-old": Mutation(
        "a snapshot says an older index than its state: a restart applies an entry twice",
        (RaftCore, "snapshot_meta", _one_entry_too_old),
    ),
    "restore-keeps-membership": Mutation(
        "an installed snapshot does not bring its configuration", (ConfigurationHistory, "reset", _keep_membership)
    ),
    "no-sync": Mutation("nothing is synced", (RaftStorage, "sync", _sync_nothing)),
    "driver-promises-early": Mutation(
        "the driver sends promises before it stores what they are about", (SimulatedNode, "_begin", _promise_early)
    ),
    "driver-falls-back": Mutation(
        "the driver goes back to the state of the snapshot it has stored",
        (SimulatedNode, "_store_snapshot", _apply_again),
    ),
}
