"""Where the replicas of new partitions go. Pure: brokers and a starting point in, assignments out.

Rules:
1. Leaders go round the brokers in turn, and each topic goes on where the last one ended, so that thousands of small
   topics are spread as evenly as one large one. Whoever places keeps a `Cursor`.
2. Followers go round as well, in another step each time round, so that a broker's load does not fall on one neighbour.
3. Replicas of a partition stand in different racks as far as there are racks, then on different hosts.
4. Brokers that are offline or in maintenance are used only when the others are too few for the replicas asked for.
5. What cannot be had (racks, hosts, online brokers) is a warning, never a refusal; too few brokers at all is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from chronik.metadata.commands import MAX_PARTITIONS_PER_COMMAND
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import BrokerInfo
from chronik.protocol.errors import ErrorCode, KafkaError

Assignments = tuple[tuple[int, ...], ...]


class Placement(msgspec.Struct, frozen=True):
    """One list of replicas per partition, the first being the preferred leader; and what could not be had."""

    assignments: Assignments
    warning: str | None = None


class Cursor:
    """Where the next placement begins. Every node has its own; starting apart keeps their first topics apart."""

    def __init__(self, start: int) -> None:
        self._next = start

    def take(self, partitions: int) -> int:
        start = self._next
        self._next += partitions
        return start


def place(brokers: Sequence[BrokerInfo], partitions: int, replication_factor: int, *, start: int) -> Placement:
    """Places `partitions` partitions; raises KafkaError when there are not enough brokers, in Kafka's words."""
    if not 0 < partitions <= MAX_PARTITIONS_PER_COMMAND:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions was set to {partitions}; it must be from 1 to {MAX_PARTITIONS_PER_COMMAND}.",
        )
    if replication_factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 to use the default."
        )
    online = sorted((broker for broker in brokers if broker.online), key=_by_id)
    others = sorted((broker for broker in brokers if not broker.online), key=_by_id)
    if replication_factor > len(brokers) or not online:
        reason = f"only {len(brokers)} broker(s) are registered" if online else "no broker is online"
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): "
            f"The target replication factor of {replication_factor} cannot be reached because {reason}.",
        )
    assignments = tuple(
        _replicas(online, others, replication_factor, start + partition) for partition in range(partitions)
    )
    return Placement(assignments, _warning(brokers, assignments, replication_factor, len(online)))


def place_in(image: MetadataImage, partitions: int, replication_factor: int, cursor: Cursor) -> Placement:
    """Places over the brokers of the image."""
    start = cursor.take(max(partitions, 0))
    return place(list(image.brokers.values()), partitions, replication_factor, start=start)


def explicit(image: MetadataImage, given: Mapping[int, Sequence[int]], *, first: int = 0) -> Assignments:
    """Checks an assignment that the client chose, by partition number, and puts it in order."""
    if sorted(given) != list(range(first, first + len(given))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Partitions should be a consecutive integer sequence beginning with {first}.",
        )
    factors = {len(replicas) for replicas in given.values()}
    if len(factors) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "All partitions should have the same number of replicas."
        )
    for partition, replicas in given.items():
        check_replicas(image, partition, replicas)
    return tuple(tuple(given[partition]) for partition in sorted(given))


def check_replicas(image: MetadataImage, partition: int, replicas: Sequence[int]) -> None:
    """Raises KafkaError when a partition cannot have these replicas."""
    problem = None
    if not replicas:
        problem = "it is empty"
    elif len(set(replicas)) != len(replicas):
        problem = f"it names a broker twice: {list(replicas)}"
    else:
        unknown = [replica for replica in replicas if replica not in image.brokers]
        if unknown:
            problem = f"broker {unknown[0]} is not registered"
    if problem is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The replica list of partition {partition} cannot be used: {problem}.",
        )


def _by_id(broker: BrokerInfo) -> int:
    return broker.node_id


def _replicas(online: list[BrokerInfo], others: list[BrokerInfo], count: int, turn: int) -> tuple[int, ...]:
    leader = online[turn % len(online)]
    chosen = [leader]
    if len(online) > 1:
        step = 1 + (turn // len(online)) % (len(online) - 1)
        first = (turn + step) % len(online)
        candidates = [broker for broker in online[first:] + online[:first] if broker is not leader]
    else:
        candidates = []
    _choose(chosen, candidates, count)
    if len(chosen) < count and others:
        first = turn % len(others)
        _choose(chosen, others[first:] + others[:first], count)
    return tuple(broker.node_id for broker in chosen)


def _choose(chosen: list[BrokerInfo], candidates: list[BrokerInfo], count: int) -> None:
    """Adds candidates until there are enough: each time the one whose rack, then host, is the least used so far."""
    racks: Counter[str | None] = Counter(broker.rack for broker in chosen if broker.rack is not None)
    hosts = Counter(broker.host_name for broker in chosen)
    remaining = list(candidates)
    while remaining and len(chosen) < count:
        best = min(
            range(len(remaining)),
            key=lambda position: (racks[remaining[position].rack], hosts[remaining[position].host_name], position),
        )
        broker = remaining.pop(best)
        chosen.append(broker)
        if broker.rack is not None:
            racks[broker.rack] += 1
        hosts[broker.host_name] += 1


def _warning(brokers: Sequence[BrokerInfo], assignments: Assignments, count: int, online: int) -> str | None:
    if online < count:
        return f"only {online} broker(s) are online for {count} replicas; the others get theirs when they return"
    by_id = {broker.node_id: broker for broker in brokers}
    racks = {broker.rack for broker in brokers if broker.rack is not None}
    for replicas in assignments:
        members = [by_id[replica] for replica in replicas]
        if racks and len({broker.rack for broker in members}) < count:
            return f"{count} replicas in {len(racks)} rack(s): some partitions have several replicas in one rack"
        if len({broker.host_name for broker in members}) < count:
            return "some partitions have several replicas on one host; a fault of that host can take all of them"
    return None
