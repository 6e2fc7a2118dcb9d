"""The timings and limits of a consensus node outside its core, each with a name."""

from __future__ import annotations

import msgspec

from chronik.raft.settings import RaftSettings


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Guide values: a tick of 50 ms makes elections after 0.45 to 0.8 s of silence and a heartbeat every 100 ms."""

    tick_s: float = 0.05
    raft: RaftSettings = RaftSettings()

    apply_slice_s: float = 0.01
    """Applying committed entries yields to the event loop after this long."""
    snapshot_entries: int = 20_000
    snapshot_bytes: int = 64 * 1024 * 1024
    """A snapshot is taken when this many entries, or bytes of entries, were applied since the last one."""
    retained_entries: int = 5_000
    """Entries kept behind a snapshot, for followers that are only a little late."""
    snapshot_pinned_s: float = 60.0
    """A snapshot that a follower is fetching is kept this long after its last request."""

    proposals_waiting_max: int = 20_000
    proposal_bytes_max: int = 4 * 1024 * 1024
    batch_max: int = 1024
    batch_bytes_max: int = 1024 * 1024
    """Proposals that are appended, or forwarded to the leader, together; one larger proposal goes alone."""
    forwards_in_flight_max: int = 64
    results_kept_max: int = 20_000
    """Results kept for forwarded proposals whose place in the log is not known yet."""

    commit_saved_after_ticks: int = 20
    """How long a commit index that moved may stay unsaved; it is never promised, only convenient after a restart."""
    disk_stalled_s: float = 3.0
    """A node whose disk does not answer for this long stops to lead and to campaign until it does."""
    disk_full_retry_s: float = 1.0

    stop_transfer_s: float = 1.0
    stop_flush_s: float = 1.5
    """Bounds of a graceful stop: handing leadership over, and writing what is left."""

    catch_up_entries_max: int = 1_000
    """An observer that is no more than this far behind can become a voter."""
    upkeep_s: float = 0.5
    """How often a node looks whether it has to join, or to correct its address."""
    removed_peer_grace_s: float = 5.0
    """How long the connection to a removed node is kept, so that it learns of its removal."""
