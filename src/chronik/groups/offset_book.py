"""The offsets of all groups of one partition of `__consumer_offsets`: committed, and pending in transactions. Pure.

Rules:
1. What a group has committed for a partition is what stands last in the log. An offset of a transaction counts as
   written where it stands, not where the marker does: a plain commit that came later wins.
2. Offsets of a transaction are invisible until its marker says commit. Until then they make the group's offset for that
   partition unstable. A marker that says abort drops them.
3. Expiry, as Kafka since 2.1: an offset with its own expiry goes at that time. Else it goes when `retention` has passed
   since the group became empty, or since the commit for groups that never had members, or since the commit for topics
   that the members of a stable group do not read. Unstable offsets stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

Place = tuple[str, int]
"""Topic name and partition index."""

NO_EXPIRY = -1


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """One offset. `log_offset` is where its record stands."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_EXPIRY
    log_offset: int = -1


class OffsetBook:
    """Offsets by group and partition."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[Place, CommittedOffset]] = {}
        self._pending: dict[int, dict[str, dict[Place, CommittedOffset]]] = {}
        self._unstable: dict[str, dict[Place, set[int]]] = {}

    def groups(self) -> set[str]:
        """Groups with an offset, committed or pending."""
        return self._committed.keys() | self._unstable.keys()

    def committed(self, group: str) -> dict[Place, CommittedOffset]:
        return self._committed.get(group, {})

    def get(self, group: str, place: Place) -> CommittedOffset | None:
        offsets = self._committed.get(group)
        return offsets.get(place) if offsets is not None else None

    def is_unstable(self, group: str, place: Place) -> bool:
        """Whether a transaction that is not over yet will set this offset."""
        unstable = self._unstable.get(group)
        return unstable is not None and place in unstable

    def has_pending(self, group: str) -> bool:
        return group in self._unstable

    def each(self) -> Iterator[tuple[str, Place, CommittedOffset]]:
        for group, offsets in self._committed.items():
            for place, committed in offsets.items():
                yield group, place, committed

    # --- changes -------------------------------------------------------------------------------------------------

    def commit(self, group: str, place: Place, committed: CommittedOffset) -> None:
        offsets = self._committed.setdefault(group, {})
        present = offsets.get(place)
        if present is None or present.log_offset <= committed.log_offset:
            offsets[place] = committed

    def forget(self, group: str, place: Place) -> None:
        offsets = self._committed.get(group)
        if offsets is not None:
            offsets.pop(place, None)
            if not offsets:
                del self._committed[group]

    def forget_group(self, group: str) -> None:
        self._committed.pop(group, None)
        for place, producers in self._unstable.pop(group, {}).items():
            for producer_id in producers:
                groups = self._pending[producer_id]
                groups[group].pop(place)
                if not groups[group]:
                    del groups[group]
                if not groups:
                    del self._pending[producer_id]

    def pend(self, producer_id: int, group: str, place: Place, committed: CommittedOffset) -> None:
        """An offset that counts once the producer's transaction commits."""
        self._pending.setdefault(producer_id, {}).setdefault(group, {})[place] = committed
        self._unstable.setdefault(group, {}).setdefault(place, set()).add(producer_id)

    def complete(self, producer_id: int, commit: bool) -> set[str]:
        """The marker of a transaction; returns the groups it was about."""
        groups = self._pending.pop(producer_id, {})
        for group, offsets in groups.items():
            unstable = self._unstable[group]
            for place, committed in offsets.items():
                unstable[place].discard(producer_id)
                if not unstable[place]:
                    del unstable[place]
                if commit:
                    self.commit(group, place, committed)
            if not unstable:
                del self._unstable[group]
        return set(groups)

    # --- expiry --------------------------------------------------------------------------------------------------

    def expired(
        self,
        group: str,
        now_ms: int,
        retention_ms: int,
        *,
        empty_since_ms: int | None,
        has_members: bool,
        subscribed: Iterable[str] | None,
    ) -> list[Place]:
        """The places of a group whose offsets are over (Rule 3)."""
        read = frozenset(subscribed) if subscribed is not None else None
        found: list[Place] = []
        for place, committed in self.committed(group).items():
            if self.is_unstable(group, place):
                continue
            if has_members and (read is None or place[0] in read):
                continue
            if committed.expire_timestamp != NO_EXPIRY:
                over = committed.expire_timestamp <= now_ms
            else:
                base = committed.commit_timestamp
                if not has_members and empty_since_ms is not None:
                    base = max(base, empty_since_ms)
                over = base + retention_ms <= now_ms
            if over:
                found.append(place)
        return found
