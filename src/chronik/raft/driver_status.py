"""What a consensus node can say about itself, for status pages, health and metrics. Only what it observed."""

from __future__ import annotations

import msgspec

from chronik.raft.state import Role
from chronik.raft.types import Configuration

NO_MEMBER_YET = "this node is not a member of a cluster yet: nobody it was told to join has let it in"


def no_member(configuration: Configuration) -> str:
    """What a node that was removed can say of itself."""
    voters = ", ".join(map(str, sorted(configuration.voters)))
    return f"this node is not a member of the cluster, whose voters are {voters}: stop it, or start it with --join"


class PeerView(msgspec.Struct, frozen=True):
    """Another member of the group. `match` and `lag` are known on the leader only, and None elsewhere."""

    node_id: int
    host: str
    port: int
    voter: bool
    connected: bool
    reachable: bool
    heard_ago_s: float | None
    match: int | None
    lag: int | None
    state: str | None
    same_folder: bool | None
    """Whether the node has the data folder that the configuration names; False for one that was emptied."""
    problem: str | None


class RaftStatus(msgspec.Struct, frozen=True):
    """One node's view of the group at one moment."""

    node_id: int
    directory_id: bytes
    cluster_id: str | None
    role: Role
    is_voter: bool
    term: int
    leader_id: int
    commit: int
    applied: int
    last_index: int
    first_index: int
    snapshot_index: int
    log_bytes: int
    configuration: Configuration
    configuration_committed: bool
    peers: dict[int, PeerView]
    elections: int
    """Terms that began while this node was up."""
    leader_changes: int
    snapshots_taken: int
    snapshots_installed: int
    syncs: int
    late_ticks: int
    voters_reachable: int
    failure: str | None

    @property
    def voters(self) -> int:
        return len(self.configuration.voters)

    @property
    def has_quorum(self) -> bool:
        """Whether a majority of the voters can be reached from here, this node included."""
        return self.voters_reachable > self.voters // 2

    def has_quorum_without(self, node_id: int) -> bool:
        """Whether the other voters could go on if this one were removed: a majority of them is reachable from here."""
        rest = [voter for voter in self.configuration.voters if voter != node_id]
        able = {peer.node_id for peer in self.peers.values() if peer.reachable and peer.same_folder is not False}
        return sum(1 for voter in rest if voter == self.node_id or voter in able) > len(rest) // 2

    @property
    def problem(self) -> str | None:
        """Why this node cannot take part in agreeing on anything, if so: a sentence for a health page."""
        if self.failure is not None:
            return f"consensus has failed on this node: {self.failure}"
        if not self.voters:
            return NO_MEMBER_YET
        if self.node_id not in self.configuration.voters | self.configuration.observers:
            return no_member(self.configuration)
        if not self.has_quorum:
            return f"no quorum: {self.voters_reachable} of {self.voters} voters reachable"
        return None if self.leader_id else "no leader is elected yet"
