"""Who the controller has heard from, until when each broker may act as a leader, and what each is known to know.

Pure: every method is told the time. Rules:
1. A session lapses when nothing was heard for `session_s`. Time in which the controller itself did not look (its own
   late ticks, a paused process) is not a broker's silence: all sessions are extended by it.
2. A lease is promised from the moment a heartbeat arrives, which is after it was sent, from when the broker counts.
3. A new controller does not know what the last one promised: everybody is taken to hold a full lease from the moment
   it begins, and has as long, four heartbeats, to be heard from. That is less than a session, because the brokers have
   been without a controller for an election already, and a dead one among them must not cost more than it has to.
4. A process that registers again from the same data folder proves that the last one is dead, since only one process
   can hold the folder: its lease is over. From another folder, it proves nothing.
5. A broker is known to have stopped leading what was taken from it when it has applied that change, or when its lease
   is over, whichever comes first; until then nobody else is put in its place.
6. A lease is for who knows what was taken from it: a broker that was cut off for longer than its lease may be heard
   again before it hears that others lead in its place. One that does not learn of it for a whole session (its disk may
   be full) is as good as silent: what it still leads should be led by others.
7. Who is gone leaves the ISR of a leader that is known to have outlived it: one that was heard from afterwards. When
   all nodes die at once, those that come back first are not counted out for the sake of one that never does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

LATE_TICKS = 3  # a look that comes this many ticks late means that the controller was held up
UNKNOWN_INDEX = -1


class Session:
    """One broker as the controller sees it."""

    __slots__ = (
        "applied_index",
        "deadline",
        "epoch",
        "gone_at",
        "heard_at",
        "lease_until",
        "must_know",
        "node_id",
        "told",
        "told_at",
    )

    def __init__(self, node_id: int, deadline: float, lease_until: float) -> None:
        self.node_id = node_id
        self.epoch = UNKNOWN_INDEX
        self.applied_index = UNKNOWN_INDEX
        self.deadline = deadline
        self.heard_at = self.gone_at = -math.inf
        self.lease_until = lease_until
        self.must_know = UNKNOWN_INDEX  # the last entry that took a leadership from it
        self.told = UNKNOWN_INDEX  # what it had to know when it last knew what it had to
        self.told_at = deadline

    def learns(self, now: float, patience_s: float) -> bool:
        """Whether it knows what it must, or had less than that long to learn it (rule 6)."""
        if self.applied_index >= self.told:
            self.told, self.told_at = self.must_know, now
        return self.knows_its_losses or now - self.told_at <= patience_s

    @property
    def knows_its_losses(self) -> bool:
        return self.applied_index >= self.must_know


class Sessions:
    """The table. Begins anew with every term of a controller."""

    def __init__(self, session_s: float, lease_s: float, tick_s: float) -> None:
        if not lease_s <= session_s:
            raise ValueError(f"a lease of {lease_s} s outlives a session of {session_s} s")
        self._session_s = session_s
        self._lease_s = lease_s
        self._tick_s = tick_s
        self._sessions: dict[int, Session] = {}
        self._looked_at = -math.inf
        self._grace_until = -math.inf

    def begin(self, now: float, node_ids: Iterable[int], index: int = UNKNOWN_INDEX) -> None:
        """A new controller: everybody gets grace (rule 3), and must know what the last one did, up to `index`."""
        self._grace_until = grace_until = now + self._lease_s
        self._sessions = {node_id: Session(node_id, grace_until, grace_until) for node_id in node_ids}
        for session in self._sessions.values():
            session.gone_at = now  # as far as this controller can tell
            self.lost_leadership(session.node_id, index)
        self._looked_at = now

    def lost_leadership(self, node_id: int, index: int) -> None:
        """Entry `index` took from the broker what it led (rule 6)."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.must_know = max(session.must_know, index)

    def heard(self, node_id: int, epoch: int, applied_index: int, now: float) -> None:
        """A heartbeat of a registered broker arrived."""
        session = self._sessions.get(node_id)
        if session is None:
            session = self._sessions[node_id] = Session(node_id, now, -math.inf)
        if epoch < session.epoch:
            return  # of an older registration, delayed on its way
        if epoch > session.epoch:
            session.epoch = epoch
            session.applied_index = session.told = UNKNOWN_INDEX
        session.heard_at = now
        session.applied_index = max(session.applied_index, applied_index)
        if session.learns(now, self._session_s):
            session.deadline = max(session.deadline, now + self._session_s)

    def knows_its_losses(self, node_id: int) -> bool:
        """Whether the broker knows of every leadership that was taken from it (rule 6)."""
        session = self._sessions.get(node_id)
        return session is not None and session.knows_its_losses

    def promise_lease(self, node_id: int, now: float) -> float:
        """Promises the broker not to elect anybody in its place for as long as is returned, from `now` on."""
        session = self._sessions[node_id]
        session.lease_until = max(session.lease_until, now + self._lease_s)
        return self._lease_s

    def end_lease(self, node_id: int) -> None:
        """The broker's process is dead, or has given its lease back."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.lease_until = -math.inf

    def restarted(self, node_id: int, now: float, *, same_folder: bool) -> None:
        """A new process registered (rule 4); it gets a session to be heard from in."""
        session = self._sessions.setdefault(node_id, Session(node_id, now, -math.inf))
        session.applied_index = session.must_know = session.told = UNKNOWN_INDEX
        session.deadline = max(session.deadline, now + self._session_s)
        if same_folder:
            session.lease_until = -math.inf

    def forget(self, node_id: int, now: float) -> None:
        """The broker is no longer registered. Its lease still counts until it is over."""
        session = self._sessions.get(node_id)
        if session is not None and session.lease_until <= now:
            del self._sessions[node_id]

    def gone(self, node_id: int, now: float) -> None:
        """The broker is not alive as of now (rule 7)."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.gone_at = now

    def outlived(self, node_id: int, others: Iterable[int]) -> bool:
        """Whether the broker was heard from after the others had gone (rule 7)."""
        session = self._sessions.get(node_id)
        if session is None:
            return False
        gone = (self._sessions[other].gone_at for other in others if other in self._sessions)
        return session.heard_at > max(gone, default=-math.inf)

    def lapsed(self, now: float) -> list[int]:
        """Looks at all sessions: who has been silent too long. To be called every tick."""
        gap = now - self._looked_at
        self._looked_at = now
        if gap > LATE_TICKS * self._tick_s:
            for session in self._sessions.values():
                session.deadline += gap - self._tick_s
        return [session.node_id for session in self._sessions.values() if session.deadline <= now]

    def heard_lately(self, node_id: int, epoch: int, now: float) -> bool:
        """Whether this very registration has a session."""
        session = self._sessions.get(node_id)
        return session is not None and session.epoch == epoch and session.deadline > now

    def lease_over(self, node_id: int, now: float) -> bool:
        """Also of one that is not registered: the last controller may have given it a lease before it was removed."""
        session = self._sessions.get(node_id)
        return (session.lease_until if session is not None else self._grace_until) <= now

    def released(self, index: int, now: float) -> bool:
        """Whether nobody can still act upon what was true before log entry `index` (rule 5)."""
        return all(session.applied_index >= index or session.lease_until <= now for session in self._sessions.values())
