"""The follower's side of replication: appends, heartbeats, commit notices and offered snapshots (Raft §5.3, §7).

Each function is called after the sender was recognised as the leader of the current term. Whatever is promised to it
goes to the durable outbox, and so leaves only after the disk has it.
"""

from __future__ import annotations

from chronik.raft.state import NodeState
from chronik.raft.types import (
    Append,
    AppendResponse,
    CommitNotice,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    SnapshotFetch,
    SnapshotMeta,
)


def on_append(state: NodeState, message: Append) -> None:
    """Take over the leader's entries if the logs agree on the entry before them."""
    log = state.log
    if message.previous_index < log.commit:
        # An old message, or a leader that is still probing: what is committed agrees for certain.
        state.acknowledge_append(message.source, log.commit)
        return
    if log.term_at(message.previous_index) != message.previous_term:
        hint_index, hint_term = log.last_with_term_at_most(message.previous_index, message.previous_term)
        state.durable_messages.append(
            AppendResponse(
                source=state.node_id,
                target=message.source,
                term=state.term,
                directory_id=state.directory_id,
                index=message.previous_index,
                rejected=True,
                hint_index=hint_index,
                hint_term=hint_term,
            )
        )
        return
    entries = message.entries
    changed = log.merge(entries)
    if changed:
        state.membership.truncate_from(changed)
        state.membership.append(entries[changed - entries[0].index :] if changed != entries[0].index else entries)
    last_agreed = message.previous_index + len(entries)
    log.commit_to(min(message.commit, last_agreed))
    state.acknowledge_append(message.source, last_agreed)


def on_heartbeat(state: NodeState, message: Heartbeat) -> None:
    """The leader lives, and has seen this node agree through the commit index it names."""
    if message.target_directory_id == state.directory_id:
        state.log.commit_to(message.commit)
    response = HeartbeatResponse(state.node_id, message.source, state.term, state.directory_id, message.round)
    # The echo speaks for this term: at once if the term is stored, so that a slow disk is not taken for a dead node.
    outbox = state.messages if state.hard_state_stored.term == state.term else state.durable_messages
    outbox.append(response)


def on_commit_notice(state: NodeState, message: CommitNotice) -> None:
    """More of what this node has acknowledged is committed."""
    if message.target_directory_id == state.directory_id:
        state.log.commit_to(message.commit)


def on_install_snapshot(state: NodeState, message: InstallSnapshot) -> None:
    """Ask for the offered snapshot to be fetched, unless the log here reaches as far already."""
    log, snapshot = state.log, message.snapshot
    if snapshot.index <= log.commit:
        state.acknowledge_append(message.source, log.commit)
    elif log.term_at(snapshot.index) == snapshot.term:
        log.commit_to(snapshot.index)
        state.acknowledge_append(message.source, snapshot.index)
    elif state.installing is None and (state.fetching is None or state.fetching.source != message.source):
        # A transfer that is under way from this leader is left alone, also when a newer snapshot is offered: a leader
        # that takes snapshots faster than it can send them must not keep a follower fetching for ever. So is one that
        # is being installed: what was fetched for it must stay where it is.
        state.fetching = state.fetch = SnapshotFetch(message.source, snapshot)


def snapshot_fetched(state: NodeState, snapshot: SnapshotMeta) -> bool:
    """The bytes are here: replace the log by the snapshot, if that still leads forward."""
    if state.fetching is not None and state.fetching.snapshot == snapshot:
        state.fetching = None
    log = state.log
    if snapshot.index <= log.commit:
        return False
    install = log.term_at(snapshot.index) != snapshot.term
    if install:
        log.restore(snapshot)
        state.membership.reset(snapshot)
        state.install = state.installing = snapshot
    else:
        log.commit_to(snapshot.index)
    if state.leader_id:
        state.acknowledge_append(state.leader_id, snapshot.index)
    return install


def snapshot_fetch_failed(state: NodeState, snapshot: SnapshotMeta) -> None:
    """Forget the transfer; the leader offers a snapshot again in a while."""
    if state.fetching is not None and state.fetching.snapshot == snapshot:
        state.fetching = None
