"""Plans for moving replicas: off a broker that shall go, or evenly over all brokers. Pure; nothing is moved here.

A plan is a list of moves, each of which stands for one reassignment. Carrying it out is in `moves`. With thousands of
partitions planning takes tenths of a second: plan on a thread, with `image.detached()`.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from chronik.metadata.image import MetadataImage
from chronik.metadata.model import BrokerInfo

MAX_MOVES_PER_PLAN = 100_000

Key = tuple[str, int]


class Move(msgspec.Struct, frozen=True):
    """The replicas a partition has, and those it shall have."""

    topic: str
    topic_id: bytes
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def copies(self) -> int:
        """How many replicas are copied to another broker; 0 when only the preferred leader changes."""
        return len(set(self.after) - set(self.before))


class Plan(msgspec.Struct, frozen=True):
    """`stuck` are partitions that cannot be moved, with the reason."""

    moves: list[Move]
    stuck: list[tuple[str, int, str]]


def plan_drain(image: MetadataImage, node_id: int) -> Plan:
    """Moves every replica off a broker, each to the broker that has the fewest, in another rack and host if it can."""
    online = [broker for broker in image.online_brokers() if broker.node_id != node_id]
    load = _load(image)
    moves: list[Move] = []
    stuck: list[tuple[str, int, str]] = []
    for topic, number, partition in image.each_partition():
        if node_id not in partition.target:
            continue
        others = tuple(replica for replica in partition.target if replica != node_id)
        replacement = _best(online, others, load, image)
        if replacement is None:
            stuck.append((topic.name, number, f"no other broker is online that has no replica of it ({list(others)})"))
            continue
        load[node_id] -= 1
        load[replacement] += 1
        after = tuple(replacement if replica == node_id else replica for replica in partition.target)
        moves.append(Move(topic.name, topic.topic_id, number, partition.target, after))
        if len(moves) >= MAX_MOVES_PER_PLAN:
            break
    return Plan(moves, stuck)


def plan_rebalance(image: MetadataImage) -> Plan:
    """Evens out first the replicas, then the preferred leaders, of the brokers that are online, with few moves."""
    online = image.online_brokers()
    if len(online) < 2:
        return Plan([], [])
    assignment: dict[Key, tuple[int, ...]] = {}
    stuck: list[tuple[str, int, str]] = []
    for topic, number, partition in image.each_partition():
        if partition.reassigning:
            stuck.append((topic.name, number, "it is being reassigned already"))
        else:
            assignment[topic.name, number] = partition.replicas
    _even_replicas(assignment, online)
    _even_leaders(assignment, {broker.node_id for broker in online})
    moves: list[Move] = []
    for (name, number), after in assignment.items():
        topic = image.topics[name]
        before = topic.partitions[number].replicas
        if after != before:
            moves.append(Move(name, topic.topic_id, number, before, after))
    return Plan(moves[:MAX_MOVES_PER_PLAN], stuck)


def _load(image: MetadataImage) -> Counter[int]:
    return Counter(replica for _, _, partition in image.each_partition() for replica in partition.target)


def _best(
    candidates: list[BrokerInfo], others: tuple[int, ...], load: Counter[int], image: MetadataImage
) -> int | None:
    members = [image.brokers[replica] for replica in others if replica in image.brokers]
    racks = {broker.rack for broker in members if broker.rack is not None}
    hosts = {broker.host_name for broker in members}
    free = [broker for broker in candidates if broker.node_id not in others]
    if not free:
        return None
    best = min(free, key=lambda b: (b.rack in racks, b.host_name in hosts, load[b.node_id], b.node_id))
    return best.node_id


def _even_replicas(assignment: dict[Key, tuple[int, ...]], online: list[BrokerInfo]) -> None:
    """Takes replicas from the fullest broker to the emptiest while they differ by more than one."""
    brokers = {broker.node_id: broker for broker in online}
    held: defaultdict[int, dict[Key, None]] = defaultdict(dict)  # in order, so that the same image gives the same plan
    for key, replicas in assignment.items():
        for replica in replicas:
            held[replica][key] = None
    settled: set[tuple[int, int]] = set()
    untried: dict[tuple[int, int], list[Key]] = {}  # each partition is considered once per pair of brokers
    while True:
        pairs = sorted(
            ((len(held[full]) - len(held[empty]), full, empty) for full in brokers for empty in brokers),
            key=lambda pair: (-pair[0], pair[1], pair[2]),
        )
        pair = next(((full, empty) for gap, full, empty in pairs if gap > 1 and (full, empty) not in settled), None)
        if pair is None:
            return
        if pair not in untried:
            untried[pair] = list(held[pair[0]])
        chosen = _movable(assignment, held, brokers, *pair, untried[pair])
        if chosen is None:
            settled.add(pair)
            continue
        full, empty = pair
        assignment[chosen] = tuple(empty if replica == full else replica for replica in assignment[chosen])
        del held[full][chosen]
        held[empty][chosen] = None


def _movable(
    assignment: dict[Key, tuple[int, ...]],
    held: dict[int, dict[Key, None]],
    brokers: dict[int, BrokerInfo],
    full: int,
    empty: int,
    untried: list[Key],
) -> Key | None:
    """A partition whose replica can go from one broker to the other without sharing a rack, or a host, more than
    before."""
    while untried:
        key = untried.pop()
        if key in held[empty] or key not in held[full]:
            continue
        others = [brokers[replica] for replica in assignment[key] if replica != full and replica in brokers]
        if _shares(brokers[empty], others) <= _shares(brokers[full], others):
            return key
    return None


def _shares(broker: BrokerInfo, others: list[BrokerInfo]) -> tuple[bool, bool]:
    """Whether a broker stands in the rack, and on the host, of one of the others; the rack weighs more."""
    return (
        broker.rack is not None and any(other.rack == broker.rack for other in others),
        any(other.host_name == broker.host_name for other in others),
    )


def _even_leaders(assignment: dict[Key, tuple[int, ...]], online: set[int]) -> None:
    """Puts another replica first where its broker is preferred less often; moves no data. A change that only passes a
    surplus on, towards a broker that can use it, counts as well, so paths are followed, not only direct swaps."""
    led: defaultdict[int, dict[Key, None]] = defaultdict(dict)
    for key, replicas in assignment.items():
        led[replicas[0]][key] = None
    while True:
        path = _path_to_less(assignment, led, online)
        if path is None:
            return
        for key, source, target in path:
            replicas = assignment[key]
            assignment[key] = (target, *(replica for replica in replicas if replica != target))
            del led[source][key]
            led[target][key] = None


def _path_to_less(
    assignment: dict[Key, tuple[int, ...]], led: dict[int, dict[Key, None]], online: set[int]
) -> list[tuple[Key, int, int]] | None:
    """Preferences to pass on, from the broker that has the most to one that has at least two fewer; shortest first."""
    for start in sorted(online, key=lambda node: (-len(led[node]), node)):
        goal = len(led[start]) - 2
        came_by: dict[int, tuple[Key, int] | None] = {start: None}
        queue = [start]
        for node in queue:
            for key in reversed(led[node]):
                for replica in assignment[key][1:]:
                    if replica in online and replica not in came_by:
                        came_by[replica] = (key, node)
                        if len(led[replica]) <= goal:
                            return _trace(came_by, replica)
                        queue.append(replica)
                if len(came_by) == len(online):
                    break
    return None


def _trace(came_by: dict[int, tuple[Key, int] | None], end: int) -> list[tuple[Key, int, int]]:
    path: list[tuple[Key, int, int]] = []
    step = came_by[end]
    while step is not None:
        key, source = step
        path.append((key, source, end))
        end, step = source, came_by[source]
    return path
