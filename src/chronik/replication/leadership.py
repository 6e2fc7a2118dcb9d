"""What a node knows about a partition while it leads it: its followers, the ISR, and the ISR change under way.

One object per partition and leader epoch; it is dropped when the epoch ends. The rules are in `replica_state`, the
command that changes an ISR is sent by `isr`, and the fetches of followers arrive in `fetch_server`.
"""

from __future__ import annotations

from typing import Protocol

from chronik.metadata.model import PartitionInfo
from chronik.replication.replica_state import FollowerProgress, lagging_members, may_join

UNREGISTERED = -1


class FollowerLink(Protocol):
    """The way to a follower's fetch session, while it has one."""

    @property
    def registration(self) -> int:
        """The registration under which the follower fetches."""
        ...

    def data_available(self) -> None:
        """The leader's log has grown: the next answer must carry it, and one that waits must not wait on."""
        ...

    def watermark_moved(self, *, at_once: bool = False) -> None:
        """High watermark or log start moved: the next answer carries them, and need not hurry unless `at_once`."""
        ...


class Follower(FollowerProgress):
    """A follower's progress, and the session it fetches in."""

    __slots__ = ("link",)

    def __init__(self, node_id: int, now: float) -> None:
        super().__init__(node_id, now)
        self.link: FollowerLink | None = None


class Leadership:
    """The leader's side of one partition in one leader epoch."""

    __slots__ = ("epoch_start_offset", "followers", "info", "maximal_isr", "node_id", "pending_isr", "uncertain")

    def __init__(self, node_id: int, info: PartitionInfo, end_offset: int, now: float) -> None:
        self.node_id = node_id
        self.info = info
        self.epoch_start_offset = end_offset
        self.followers: dict[int, Follower] = {}
        self.pending_isr: tuple[int, ...] | None = None
        self.uncertain = False
        self.maximal_isr: tuple[int, ...] = info.isr
        self._assign(info, now)

    def update(self, info: PartitionInfo, now: float) -> None:
        """Metadata changed within this leader epoch. A newer partition epoch settles whatever change was under way."""
        settled = info.partition_epoch != self.info.partition_epoch
        reassigned = info.replicas != self.info.replicas
        self.info = info
        if settled:
            self.pending_isr = None
            self.uncertain = False
            self.maximal_isr = info.isr
        if reassigned:
            self._assign(info, now)

    def _assign(self, info: PartitionInfo, now: float) -> None:
        wanted = [node_id for node_id in (*info.replicas, *info.isr) if node_id != self.node_id]
        self.followers = {node_id: self.followers.get(node_id) or Follower(node_id, now) for node_id in wanted}

    def begin_isr_change(self, isr: tuple[int, ...]) -> None:
        """A change is under way: until its outcome is known, count everyone it may leave in the ISR."""
        self.pending_isr = isr
        self.maximal_isr = (*self.maximal_isr, *(node_id for node_id in isr if node_id not in self.maximal_isr))

    def isr_change_refused(self) -> None:
        """The change will not happen. If an earlier one still may, the ISR stays as wide as that makes it."""
        self.pending_isr = None
        if not self.uncertain:
            self.maximal_isr = self.info.isr

    def isr_change_unknown(self) -> None:
        """Nobody can say whether the change happens, or still will: only a newer partition epoch rules it out."""
        self.pending_isr = None
        self.uncertain = True

    def wanted_isr(
        self, high_watermark: int, leader_end: int, eligible: set[int], now: float, lag_limit_s: float
    ) -> tuple[int, ...]:
        """The ISR as it should be now; `eligible` are those metadata would let join.

        While an earlier change may still happen nobody joins: the next change is there to rule the earlier one out,
        and must not be refused for somebody's sake.
        """
        leaving = lagging_members(self.info.isr, self.followers, leader_end, now, lag_limit_s)
        members = [node_id for node_id in self.info.isr if node_id not in leaving]
        if self.uncertain:
            return tuple(members)
        for node_id, follower in self.followers.items():
            if (
                node_id not in self.info.isr
                and node_id in eligible
                and may_join(follower, high_watermark, self.epoch_start_offset)
                and not follower.lagging(leader_end, now, lag_limit_s)
            ):
                members.append(node_id)
        return tuple(members)

    def appended(self, old_end: int, new_end: int, now: float) -> None:
        """The leader's log grew: tell the followers that wait for it."""
        for follower in self.followers.values():
            follower.leader_appended(old_end, new_end, now)
            if follower.link is not None:
                follower.link.data_available()

    def watermark_moved(self, *, at_once: bool = False) -> None:
        for follower in self.followers.values():
            if follower.link is not None:
                follower.link.watermark_moved(at_once=at_once)

    def low_watermark(self, own_start: int) -> int:
        """The first offset that any of the in-sync replicas, of whom each may lead next, still has."""
        starts = [self.followers[node].log_start_offset for node in self.maximal_isr if node in self.followers]
        return min(own_start, *starts) if starts else own_start

    def unsettled(self, leader_end: int) -> bool:
        """Whether a member is behind, or a replica is no member: only then can the ISR have to change."""
        outside = len(self.info.isr) <= len(self.followers)
        return outside or any(follower.counted < leader_end for follower in self.followers.values())

    def lag(self, leader_end: int) -> int:
        """How many offsets the slowest follower is behind."""
        return max((leader_end - max(follower.counted, 0) for follower in self.followers.values()), default=0)
