"""The limits and timings of a consensus group, in ticks and bytes. How long a tick lasts is the driver's choice."""

from __future__ import annotations

import msgspec


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One value for every limit of the core. All nodes of a group use the same election and heartbeat ticks."""

    election_ticks: int = 8
    """Silence of the leader before a node may campaign; each wait is drawn from (election_ticks, 2 election_ticks]."""
    heartbeat_ticks: int = 2
    """Pause between heartbeats of an idle leader."""
    pre_vote: bool = True
    """Ask whether an election could be won before disturbing anybody's term. Off only in simulations, to reach more."""
    check_quorum: bool = True
    """A leader that hears no quorum for an election timeout steps down, and nodes that hear a leader do not vote."""

    append_entries_max: int = 1024
    append_bytes_max: int = 256 * 1024
    """Size of one append (one larger entry still travels, alone). Small, so that a heartbeat never waits long."""
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 4 * 1024 * 1024
    """Appends sent to a peer and not answered yet."""
    uncommitted_bytes_max: int = 64 * 1024 * 1024
    """Proposals taken and not yet committed; beyond it proposals are dropped."""
    log_bytes_max: int = 512 * 1024 * 1024
    """Entries kept in memory since the last compaction; beyond it proposals are dropped until a snapshot is taken."""
    committed_entries_max: int = 1024
    committed_bytes_max: int = 1024 * 1024
    """Size of one slice of committed entries handed out for application."""
    pending_reads_max: int = 10_000
    """Reads waiting for a quorum to confirm the leader."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError(
                f"heartbeat_ticks ({self.heartbeat_ticks}) must be at least 1 and below election_ticks "
                f"({self.election_ticks}): otherwise healthy followers campaign between two heartbeats"
            )
        for name in self.__struct_fields__:
            if getattr(self, name) is not True and int(getattr(self, name)) < (0 if name in _SWITCHES else 1):
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


_SWITCHES = frozenset({"pre_vote", "check_quorum"})
