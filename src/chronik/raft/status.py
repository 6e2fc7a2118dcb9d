"""A picture of a core at one moment, for status pages, metrics and tests. Reading it changes nothing."""

from __future__ import annotations

import msgspec

from chronik.raft.leadership import Leadership
from chronik.raft.state import NodeState, Role
from chronik.raft.types import Configuration


class PeerStatus(msgspec.Struct, frozen=True):
    """A peer as its leader sees it."""

    node_id: int
    directory_id: bytes
    match: int
    next: int
    state: str
    active: bool
    counts: bool
    """Whether the peer is a voter with the data folder that the configuration names."""


class CoreStatus(msgspec.Struct, frozen=True):
    """`peers` is empty unless this node leads."""

    node_id: int
    directory_id: bytes
    role: Role
    term: int
    leader_id: int
    commit: int
    applied: int
    last_index: int
    stable_index: int
    first_index: int
    snapshot_index: int
    log_bytes: int
    is_voter: bool
    configuration: Configuration
    configuration_index: int
    configuration_committed: bool
    transfer_target: int
    peers: dict[int, PeerStatus]


def status_of(state: NodeState, leadership: Leadership | None) -> CoreStatus:
    """The status of the core that these belong to."""
    log = state.log
    peers: dict[int, PeerStatus] = {}
    if leadership is not None:
        for peer in leadership.peers.values():
            peers[peer.node_id] = PeerStatus(
                node_id=peer.node_id,
                directory_id=peer.directory_id,
                match=peer.match,
                next=peer.next,
                state=peer.state.value,
                active=peer.active,
                counts=peer.counts,
            )
    return CoreStatus(
        node_id=state.node_id,
        directory_id=state.directory_id,
        role=state.role,
        term=state.term,
        leader_id=state.leader_id,
        commit=log.commit,
        applied=log.applied,
        last_index=log.last_index,
        stable_index=log.stable,
        first_index=log.first_index,
        snapshot_index=log.snapshot.index,
        log_bytes=log.bytes_kept,
        is_voter=state.counts_itself,
        configuration=state.configuration,
        configuration_index=state.membership.latest_index,
        configuration_committed=state.membership.latest_index <= log.commit,
        transfer_target=leadership.transfer_target if leadership is not None else 0,
        peers=peers,
    )
