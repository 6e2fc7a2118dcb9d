"""What a leader knows of one peer: how far its log agrees, what is on its way to it, whether it was heard lately."""

from __future__ import annotations

from collections import deque
from enum import Enum

from chronik.raft.settings import RaftSettings
from chronik.raft.types import UNKNOWN_DIRECTORY


class ProgressState(Enum):
    """How a leader talks to a peer."""

    PROBE = "probe"
    """The last agreeing entry is being looked for: one append at a time."""
    REPLICATE = "replicate"
    """Agreement is known: appends are sent ahead of the answers, within limits."""
    SNAPSHOT = "snapshot"
    """The entries needed are gone: a snapshot was offered, and nothing else is sent until the peer has it."""


class Progress:
    """One peer of a leader. `match` is stored by the peer for certain, `next` is the next entry to send."""

    __slots__ = (
        "_inflight",
        "_inflight_bytes",
        "acked_round",
        "active",
        "commit_sent",
        "counts",
        "directory_id",
        "match",
        "match_at_beat",
        "next",
        "node_id",
        "offered_snapshot",
        "probe_sent",
        "settings",
        "stalled",
        "state",
        "ticks_since_offer",
    )

    def __init__(self, node_id: int, last_index: int, settings: RaftSettings) -> None:
        self.node_id = node_id
        self.settings = settings
        self.directory_id = UNKNOWN_DIRECTORY
        self.counts = False
        self.active = True
        self.acked_round = 0
        self._restart(last_index)

    def _restart(self, last_index: int) -> None:
        self.match = 0
        self.match_at_beat = 0
        self.stalled = False
        self.next = last_index + 1
        self.commit_sent = 0
        self.offered_snapshot = 0
        self.ticks_since_offer = 0
        self._become(ProgressState.PROBE)

    def _become(self, state: ProgressState) -> None:
        self.state = state
        self.probe_sent = False
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0

    @property
    def is_paused(self) -> bool:
        """Whether entries must wait for an answer of the peer."""
        if self.state is ProgressState.REPLICATE:
            settings = self.settings
            return (
                len(self._inflight) >= settings.inflight_messages_max
                or self._inflight_bytes >= settings.inflight_bytes_max
            )
        return self.state is ProgressState.SNAPSHOT or self.probe_sent

    def heard_from(self, directory_id: bytes, last_index: int) -> bool:
        """Note a sign of life; whether the peer turned out to have another data folder than it had before.

        All that was known of the old folder is void: what it had stored is not in the new one.
        """
        self.active = True
        if directory_id == self.directory_id:
            return False
        if self.directory_id != UNKNOWN_DIRECTORY:
            self._restart(last_index)
            self.acked_round = 0
        self.directory_id = directory_id
        return True

    def beat(self, last_index: int) -> None:
        """A heartbeat interval is over. A peer that lacks entries and has stored nothing in all of it may have been
        sent something that was lost; its next sign of life is a reason to look."""
        self.stalled = self.match < last_index and self.match == self.match_at_beat
        self.match_at_beat = self.match

    def look_for_losses(self, last_index: int) -> bool:
        """Whether to send another append, after a sign of life, to find out where the peer stands."""
        if not self.stalled or self.match >= last_index or self.state is ProgressState.SNAPSHOT:
            return False
        self.stalled = False
        self.probe_sent = False
        return True

    def sent(self, last_index: int, size: int) -> None:
        """An append through `last_index` (with entries of `size` bytes in all, if any) is on its way."""
        if self.state is ProgressState.REPLICATE:
            if size:
                self.next = last_index + 1
                self._inflight.append((last_index, size))
                self._inflight_bytes += size
        else:
            self.probe_sent = True

    def offered(self, snapshot_index: int) -> None:
        """A snapshot was offered; appends stop until the peer has it."""
        if self.state is not ProgressState.SNAPSHOT:
            self._become(ProgressState.SNAPSHOT)
        self.offered_snapshot = snapshot_index
        self.ticks_since_offer = 0

    def acknowledged(self, index: int, first_index: int) -> bool:
        """The peer has stored everything through `index`; whether that was news. `first_index` is the leader's."""
        moved = index > self.match
        if moved:
            self.match = index
            self.next = max(self.next, index + 1)
        if self.state is ProgressState.REPLICATE:
            inflight = self._inflight
            while inflight and inflight[0][0] <= index:
                self._inflight_bytes -= inflight.popleft()[1]
        elif self.state is ProgressState.PROBE or self.match + 1 >= first_index:
            self._become(ProgressState.REPLICATE)
            self.next = self.match + 1
        return moved

    def rejected(self, index: int, agreement: int) -> bool:
        """The peer lacks `index` and may agree at `agreement`; whether this was an answer to what is being tried."""
        if self.state is ProgressState.REPLICATE:
            if index <= self.match:
                return False
            self._become(ProgressState.PROBE)
            self.next = self.match + 1
            return True
        if self.state is ProgressState.SNAPSHOT or self.next - 1 != index:
            return False
        self.next = max(self.match + 1, min(index, agreement + 1))
        self.probe_sent = False
        return True

    def unreachable(self) -> None:
        """What is on its way is probably lost: find out where the peer stands."""
        if self.state is ProgressState.REPLICATE:
            self._become(ProgressState.PROBE)
            self.next = self.match + 1
