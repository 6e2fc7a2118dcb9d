"""Server-side assignors of KIP-848: who is to read what. Pure, and the same for the same input in any order.

`uniform` spreads partitions as evenly as subscriptions allow and moves as few as it can. `range` gives each member of a
topic a run of its partitions, so that partitions of the same number in topics of the same size meet at one member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

import msgspec

from chronik.groups.consumer_state import Assignment

MOVES_PER_PARTITION_MAX = 2
"""Balancing ends after so many moves for each partition, however odd the subscriptions are."""


class Subscriber(msgspec.Struct, frozen=True):
    """A member to assign to: what it reads, and what it was to have until now."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    target: Assignment


Assignments = dict[str, Assignment]
Assignor = Callable[[list[Subscriber], Mapping[bytes, int]], Assignments]
"""From subscribers, and topics with their number of partitions, to targets by member id."""


def assign_range(subscribers: list[Subscriber], topics: Mapping[bytes, int]) -> Assignments:
    """Static members are ordered by instance id, so that a restart does not move anything."""
    found: dict[str, dict[bytes, frozenset[int]]] = {s.member_id: {} for s in subscribers}
    ordered = sorted(subscribers, key=_range_order)
    for topic_id, count in sorted(topics.items()):
        readers = [s for s in ordered if topic_id in s.topics]
        if not readers:
            continue
        share, extra = divmod(count, len(readers))
        start = 0
        for position, reader in enumerate(readers):
            end = start + share + (position < extra)
            if end > start:
                found[reader.member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(found)


def _range_order(subscriber: Subscriber) -> tuple[bool, str]:
    return subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id


def assign_uniform(subscribers: list[Subscriber], topics: Mapping[bytes, int]) -> Assignments:
    """Everybody keeps what he has up to his fair share; the rest goes to those who have least."""
    ordered = sorted(subscribers, key=lambda s: s.member_id)
    loads: dict[str, set[tuple[bytes, int]]] = {s.member_id: set() for s in ordered}
    owners: dict[tuple[bytes, int], str] = {}
    read = {topic_id: [s.member_id for s in ordered if topic_id in s.topics] for topic_id in topics}
    total = sum(count for topic_id, count in topics.items() if read[topic_id])
    share, extra = divmod(total, len(ordered)) if ordered else (0, 0)
    same = all(s.topics == ordered[0].topics for s in ordered)
    for subscriber in ordered:
        kept = [
            (topic_id, partition)
            for topic_id, partitions in sorted(subscriber.target.items())
            if topic_id in subscriber.topics
            for partition in sorted(partitions)
            if partition < topics.get(topic_id, 0) and (topic_id, partition) not in owners
        ]
        limit = len(kept)
        if same and limit > share:
            limit = share + 1 if extra > 0 else share
            extra -= limit > share
        for place in kept[:limit]:
            owners[place] = subscriber.member_id
            loads[subscriber.member_id].add(place)
    _fill(topics, read, owners, loads)
    if not same:
        _even_out(read, owners, loads)
    return {member_id: _grouped(places) for member_id, places in loads.items()}


def _fill(
    topics: Mapping[bytes, int],
    read: Mapping[bytes, list[str]],
    owners: dict[tuple[bytes, int], str],
    loads: dict[str, set[tuple[bytes, int]]],
) -> None:
    """Gives what nobody has to the reader with least; topics with few readers first."""
    for topic_id in sorted(topics, key=lambda t: (len(read[t]), t)):
        readers = read[topic_id]
        if not readers:
            continue
        heap = [(len(loads[member_id]), member_id) for member_id in readers]
        heapify(heap)
        for partition in range(topics[topic_id]):
            place = (topic_id, partition)
            if place in owners:
                continue
            load, member_id = heappop(heap)
            owners[place] = member_id
            loads[member_id].add(place)
            heappush(heap, (load + 1, member_id))


def _even_out(
    read: Mapping[bytes, list[str]],
    owners: dict[tuple[bytes, int], str],
    loads: dict[str, set[tuple[bytes, int]]],
) -> None:
    """Moves single partitions from members with more to readers with at least two less, until there are none."""
    moves = MOVES_PER_PARTITION_MAX * len(owners)
    moved = True
    while moved and moves > 0:
        moved = False
        for place in sorted(owners, key=lambda p: (-len(loads[owners[p]]), p)):
            giver = owners[place]
            taker = min(read[place[0]], key=lambda m: (len(loads[m]), m))
            if len(loads[giver]) - len(loads[taker]) < 2:
                continue
            loads[giver].remove(place)
            loads[taker].add(place)
            owners[place] = taker
            moves -= 1
            moved = True


def _grouped(places: set[tuple[bytes, int]]) -> Assignment:
    grouped: dict[bytes, set[int]] = {}
    for topic_id, partition in places:
        grouped.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in sorted(grouped.items())}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
