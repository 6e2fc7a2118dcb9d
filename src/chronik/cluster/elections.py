"""What a partition needs from the controller, given who is up. Pure, one partition at a time, level-triggered: it does
not matter how the state came about, so a controller that dies in the middle leaves nothing for the next one to guess.

| Leader                         | What is decided                                                                     |
|--------------------------------|-------------------------------------------------------------------------------------|
| none                           | the best replica in sync, once whoever led before is known to have stopped; if none |
|                                | is in sync and alive: nobody, or an unclean leader where that is allowed            |
| offline                        | the same, once its lease is over                                                    |
| alive, members of ISR offline  | they leave the ISR, once the leader is known to have outlived them                  |
| alive, new replicas in sync    | the reassignment is finished                                                        |
| in maintenance, others online  | it steps down (and the first row applies)                                           |
| not the preferred one          | it steps down, when leadership is being balanced                                    |
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from chronik.metadata.commands import FinishedAssignment, IsrChange, LeaderChange
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import NO_LEADER, NodeState, PartitionInfo

GONE = (NodeState.LEAVING, NodeState.REMOVED)


class Standing(msgspec.Struct, frozen=True):
    """Who can lead (`online`), who can lead if nobody better can (`alive`), and whose data is gone (`lost`): it came
    back without, or was removed for good, so that what comes back under its id is another node."""

    online: frozenset[int]
    alive: frozenset[int]
    lost: frozenset[int] = frozenset()

    @classmethod
    def of(cls, image: MetadataImage) -> Standing:
        brokers = image.brokers.values()
        return cls(
            frozenset(broker.node_id for broker in brokers if broker.online),
            frozenset(broker.node_id for broker in brokers if broker.alive),
            frozenset(broker.node_id for broker in brokers if broker.data_lost)
            | frozenset(node.node_id for node in image.nodes.values() if node.state in GONE),
        )


class Wait(msgspec.Struct, frozen=True):
    """Something must be done, but whoever led before may still believe that it leads, or may be dead as well."""


Decision = LeaderChange | IsrChange | FinishedAssignment | Wait
WAIT = Wait()


def choose_leader(partition: PartitionInfo, standing: Standing) -> int | None:
    """The first replica in sync, in order of preference, that is online, or at least alive."""
    for group in (standing.online, standing.alive):
        for replica in partition.target:
            if replica in group and replica in partition.isr:
                return replica
        for replica in partition.removing:
            if replica in group and replica in partition.isr:
                return replica
    return None


def choose_unclean_leader(partition: PartitionInfo, standing: Standing) -> int | None:
    """The first replica that is up at all: what it lacks is lost."""
    for group in (standing.online, standing.alive):
        for replica in partition.replicas:
            if replica in group:
                return replica
    return None


def decide(
    topic_id: bytes,
    number: int,
    partition: PartitionInfo,
    standing: Standing,
    *,
    stopped: Callable[[], bool],
    outlived: Callable[[tuple[int, ...]], bool],
    unclean: Callable[[], bool],
    balance: bool = False,
) -> Decision | None:
    """What to do about a partition, or None. `stopped` says whether its last leader is known to have stopped,
    `outlived` whether its leader is known to live after those have gone, `unclean` whether losing records is allowed
    for it; they are asked only when it matters."""
    leader = partition.leader
    settled = not partition.adding and not partition.removing and (not balance or leader == partition.replicas[0])
    if settled and leader in standing.online and standing.alive.issuperset(partition.isr):
        return None  # as nearly every partition is, nearly always
    if leader not in standing.alive:
        return _succession(topic_id, number, partition, standing, stopped, unclean)
    epoch = partition.partition_epoch
    alive_isr = tuple(member for member in partition.isr if member in standing.alive)
    if len(alive_isr) < len(partition.isr):
        gone = tuple(member for member in partition.isr if member not in standing.alive)
        return IsrChange(topic_id, number, partition.leader_epoch, epoch, alive_isr) if outlived(gone) else WAIT
    if partition.reassigning and _can_finish(partition):
        return FinishedAssignment(topic_id, number, epoch)
    if should_step_down(partition, standing, balance=balance):
        return LeaderChange(topic_id, number, NO_LEADER, epoch)
    return None


def _can_finish(partition: PartitionInfo) -> bool:
    """Whether everything a reassignment adds is in sync, and something of what it keeps is."""
    isr = partition.isr
    return all(replica in isr for replica in partition.adding) and any(replica in isr for replica in partition.target)


def should_step_down(partition: PartitionInfo, standing: Standing, *, balance: bool) -> bool:
    """Whether another replica in sync should lead instead of the present leader, which is alive."""
    best = choose_leader(partition, standing)
    if best is None or best == partition.leader:
        return False
    if partition.leader not in standing.online and best in standing.online:
        return True
    return balance and best == partition.preferred_leader


def _succession(
    topic_id: bytes,
    number: int,
    partition: PartitionInfo,
    standing: Standing,
    stopped: Callable[[], bool],
    unclean: Callable[[], bool],
) -> Decision | None:
    epoch = partition.partition_epoch
    leader = choose_leader(partition, standing)
    if leader is not None:
        isr = tuple(member for member in partition.isr if member in standing.alive)
        return LeaderChange(topic_id, number, leader, epoch, isr) if stopped() else WAIT
    if unclean():
        leader = choose_unclean_leader(partition, standing)
        if leader is not None:
            return LeaderChange(topic_id, number, leader, epoch, None, True) if stopped() else WAIT
    trusted = partition.isr
    if len(partition.replicas) > 1:
        trusted = tuple(member for member in partition.isr if member not in standing.lost)
    if partition.leader != NO_LEADER or trusted != partition.isr:
        # Nobody can lead. The ISR stays, for whoever of it returns first; but not those who lost their data.
        return LeaderChange(topic_id, number, NO_LEADER, epoch, trusted) if stopped() else WAIT
    return None
