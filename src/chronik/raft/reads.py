"""Linearizable reads without a log entry (thesis §6.4): the reads a leader has taken and not yet confirmed.

A read may be served at the commit index of the moment it was taken, once a quorum has echoed a heartbeat sent after
that moment. Heartbeats carry a round number; a new round begins with the first read after the last broadcast, so that
any number of reads in one turn of the driver share one exchange of heartbeats.
"""

from __future__ import annotations

from collections import deque

from chronik.raft.errors import ReadDropped
from chronik.raft.types import ReadState


class PendingReads:
    """The queue of one leader in one term."""

    __slots__ = ("_before_first_commit", "_limit", "_waiting", "must_broadcast", "round")

    def __init__(self, limit: int) -> None:
        self.round = 0
        self.must_broadcast = False
        self._limit = limit
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._before_first_commit: list[int] = []

    def take(self, context: int, commit: int | None) -> None:
        """Take a read; `commit` is None until the leader has committed in its term, and does not know where it is."""
        if len(self._waiting) + len(self._before_first_commit) >= self._limit:
            raise ReadDropped(f"{self._limit} reads are waiting for a quorum to confirm the leader: try again")
        if commit is None:
            self._before_first_commit.append(context)
            return
        if not self.must_broadcast:
            self.round += 1
            self.must_broadcast = True
        self._waiting.append((self.round, context, commit))

    def first_commit(self, commit: int) -> None:
        """The leader has committed an entry of its own term: `commit` covers all that earlier leaders committed."""
        contexts, self._before_first_commit = self._before_first_commit, []
        for context in contexts:
            self.take(context, commit)

    def confirmed(self, round_: int) -> list[ReadState]:
        """A quorum has echoed `round_`: the reads that this confirms."""
        reads: list[ReadState] = []
        while self._waiting and self._waiting[0][0] <= round_:
            _, context, commit = self._waiting.popleft()
            reads.append(ReadState(context, commit))
        return reads

    def __bool__(self) -> bool:
        return bool(self._waiting)
