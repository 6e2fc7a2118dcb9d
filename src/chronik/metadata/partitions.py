"""Applying what changes partitions: elections, ISR changes, reassignments.

Every change names the partition epoch it was decided upon, and each one that is applied raises it: two deciders that
looked at the same state cannot both succeed. The leader epoch rises with every change of leader, and only then.
A list command is applied line by line; its result is ok, and its value has one Result per line.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, TypeVar

from chronik.metadata.commands import (
    CONTROLLER,
    AssignPartition,
    FinishAssignment,
    FinishedAssignment,
    IsrChange,
    LeaderChange,
    Reassignment,
    SetPartitionLeader,
    UpdateIsr,
)
from chronik.metadata.delta import Delta
from chronik.metadata.model import (
    NO_LEADER,
    UNSET_EPOCH,
    PartitionInfo,
    Result,
    TopicInfo,
    done,
    intern_ids,
    refused,
)
from chronik.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from chronik.metadata.image import MetadataImage

Change = TypeVar("Change", Reassignment, FinishedAssignment, LeaderChange, IsrChange)
_DONE = done()
TOPICS_PER_SLICE = 500  # looked at before whoever applies a command may let others have the loop


class PartitionEdits:
    """Collects new partition states and writes each touched topic back once, however many of its partitions moved."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._open: dict[bytes, tuple[TopicInfo, list[PartitionInfo], set[int]]] = {}

    def get(self, topic_id: bytes, partition: int) -> PartitionInfo | None:
        opened = self._open.get(topic_id)
        if opened is not None:
            entries: list[PartitionInfo] | tuple[PartitionInfo, ...] = opened[1]
        else:
            topic = self._image.topics_by_id.get(topic_id)
            if topic is None:
                return None
            entries = topic.partitions
        return entries[partition] if 0 <= partition < len(entries) else None

    def put(self, topic_id: bytes, partition: int, state: PartitionInfo) -> None:
        opened = self._open.get(topic_id)
        if opened is None:
            topic = self._image.topics_by_id[topic_id]
            self._open[topic_id] = opened = (topic, list(topic.partitions), set())
        opened[1][partition] = state
        opened[2].add(partition)

    def write(self, index: int, delta: Delta) -> None:
        for topic, entries, touched in self._open.values():
            self._image.put_topic(TopicInfo(topic.name, topic.topic_id, tuple(entries), topic.configs), index)
            for partition in touched:
                delta.partition_changed(topic.topic_id, partition)
                leader = topic.partitions[partition].leader
                if leader not in (NO_LEADER, entries[partition].leader):
                    delta.leaders_ended.add(leader)


def set_partition_leader(image: MetadataImage, command: SetPartitionLeader, index: int, delta: Delta) -> Result:
    return _apply_each(image, command.changes, index, delta, lambda old, change: _elect(image, old, change))


def update_isr(image: MetadataImage, command: UpdateIsr, index: int, delta: Delta) -> Result:
    if command.broker_epoch != UNSET_EPOCH:
        broker = image.brokers.get(command.node_id)
        if broker is None or broker.epoch != command.broker_epoch:
            return refused(
                ErrorCode.STALE_BROKER_EPOCH, f"Broker {command.node_id} has registered again since this ISR change."
            )
    return _apply_each(
        image, command.changes, index, delta, lambda old, change: _resize_isr(image, old, change, command.node_id)
    )


def assign_partition(image: MetadataImage, command: AssignPartition, index: int, delta: Delta) -> Result:
    return _apply_each(image, command.changes, index, delta, lambda old, change: _reassign(image, old, change))


def finish_assignment(image: MetadataImage, command: FinishAssignment, index: int, delta: Delta) -> Result:
    return _apply_each(image, command.changes, index, delta, _finish)


def _apply_each(
    image: MetadataImage,
    changes: Iterable[Change],
    index: int,
    delta: Delta,
    decide: Callable[[PartitionInfo, Change], PartitionInfo | Result],
) -> Result:
    edits = PartitionEdits(image)
    results: list[Result] = []
    for change in changes:
        old = edits.get(change.topic_id, change.partition)
        if old is None:
            known = change.topic_id in image.topics_by_id
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.UNKNOWN_TOPIC_ID
            results.append(refused(code, f"Partition {change.partition} of this topic does not exist."))
            continue
        if change.partition_epoch not in (UNSET_EPOCH, old.partition_epoch):
            results.append(_stale(old, change.partition_epoch))
            continue
        outcome = decide(old, change)
        if isinstance(outcome, Result):
            results.append(outcome)
        else:
            results.append(_DONE)
            edits.put(change.topic_id, change.partition, outcome)
    edits.write(index, delta)
    return done(results)


def _stale(old: PartitionInfo, epoch: int) -> Result:
    return refused(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"The partition is at partition epoch {old.partition_epoch}, this change was made for {epoch}.",
    )


def _elect(image: MetadataImage, old: PartitionInfo, change: LeaderChange) -> PartitionInfo | Result:
    isr = old.isr if change.isr is None else change.isr
    leader = change.leader
    if not set(isr) <= set(old.isr):
        return refused(ErrorCode.INVALID_REQUEST, "An election can only shrink the ISR.")
    if leader != NO_LEADER:
        if leader not in old.replicas:
            return refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Broker {leader} is not a replica.")
        if not image.is_alive(leader):
            return refused(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {leader} is offline and cannot lead.")
        if change.unclean:
            isr = (leader,)
        elif leader not in isr:
            return refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"Broker {leader} is not in sync.")
    return _with(old, leader, isr)


def _resize_isr(image: MetadataImage, old: PartitionInfo, change: IsrChange, proposer: int) -> PartitionInfo | Result:
    isr = change.isr
    if change.leader_epoch != old.leader_epoch:
        return refused(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"The partition is at leader epoch {old.leader_epoch}, this change is of {change.leader_epoch}.",
        )
    if proposer == CONTROLLER:
        if not set(isr) <= set(old.isr):
            return refused(ErrorCode.INVALID_REQUEST, "The controller can only shrink the ISR.")
    elif proposer != old.leader:
        return refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Broker {proposer} does not lead this partition.")
    if not isr or len(set(isr)) != len(isr) or not set(isr) <= set(old.replicas):
        return refused(ErrorCode.INVALID_REQUEST, f"ISR {list(isr)} is not a set of replicas of {list(old.replicas)}.")
    if old.leader != NO_LEADER and old.leader not in isr:
        return refused(ErrorCode.INVALID_REQUEST, f"ISR {list(isr)} lacks its leader {old.leader}.")
    for position, member in enumerate(isr):
        if member in old.isr:
            continue
        broker = image.brokers.get(member)
        if broker is None or not broker.alive:
            return refused(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member} is offline and cannot join the ISR.")
        if change.epochs and (position >= len(change.epochs) or change.epochs[position] != broker.epoch):
            return refused(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member} has registered again since it caught up.")
    return _with(old, old.leader, isr)


def _reassign(image: MetadataImage, old: PartitionInfo, change: Reassignment) -> PartitionInfo | Result:
    if change.target is None:
        return _cancel(old)
    target = change.target
    if not target or len(set(target)) != len(target):
        return refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{list(target)} is empty or names a broker twice.")
    unknown = [replica for replica in target if replica not in image.brokers]
    if unknown:
        return refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Broker {unknown[0]} is not registered.")
    # A replica that an unfinished reassignment was adding has never counted: it goes at once when it is not wanted.
    base = tuple(replica for replica in old.replicas if replica not in old.adding)
    removing = tuple(replica for replica in base if replica not in target)
    adding = tuple(replica for replica in target if replica not in base)
    if target + removing == old.replicas and adding == old.adding and removing == old.removing:
        return _DONE  # what is asked for is under way already
    return _settle(old, target + removing, adding, removing)


def _cancel(old: PartitionInfo) -> PartitionInfo | Result:
    if not old.reassigning:
        return refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment is in progress for this partition.")
    replicas = tuple(replica for replica in old.replicas if replica not in old.adding)
    return _settle(old, replicas)


def _finish(old: PartitionInfo, change: FinishedAssignment) -> PartitionInfo | Result:
    if not old.reassigning:
        return refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment is in progress for this partition.")
    late = [replica for replica in old.adding if replica not in old.isr]
    if late:
        return refused(ErrorCode.INVALID_REQUEST, f"Broker {late[0]} has not caught up yet.")
    return _settle(old, old.target)


def _settle(
    old: PartitionInfo,
    replicas: tuple[int, ...],
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionInfo | Result:
    """The partition with these replicas. A leader that is not one of them is out, and nobody is in its place until the
    controller knows that it has stopped: until then two could lead.

    A replica that goes begins a new leader epoch. It may not have heard yet, and come back before it does: were it
    still let to fetch in its old epoch it could join the ISR, then hear that it had to go, and delete what it counts
    for.
    """
    isr = tuple(replica for replica in old.isr if replica in replicas)
    if old.isr and not isr:
        return refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"None of {list(replicas)} is in sync.")
    leader = old.leader if old.leader in isr else NO_LEADER
    fenced = leader != old.leader or not set(old.replicas) <= set(replicas)
    return PartitionInfo(
        leader,
        old.leader_epoch + fenced,
        old.partition_epoch + 1,
        intern_ids(replicas),
        intern_ids(isr),
        intern_ids(adding),
        intern_ids(removing),
    )


def _with(old: PartitionInfo, leader: int, isr: tuple[int, ...]) -> PartitionInfo:
    return PartitionInfo(
        leader,
        old.leader_epoch + (leader != old.leader),
        old.partition_epoch + 1,
        old.replicas,
        intern_ids(isr),
        old.adding,
        old.removing,
    )


class EndedLeadership:
    """What ends when a broker leads nothing any more, made ready aside of the image and then put into it at once, so
    that no reader of the image can see it half done."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicInfo] = {}
        self._topics_by_id: dict[bytes, TopicInfo] = {}
        self._touched: dict[bytes, set[int]] = {}

    def put(self, image: MetadataImage, index: int, delta: Delta) -> None:
        if not self._topics:
            return
        image.topics.update(self._topics)
        image.topics_by_id.update(self._topics_by_id)
        image.version = index
        if delta.partitions_changed or delta.topics_created:
            for topic_id, touched in self._touched.items():
                for partition in touched:
                    delta.partition_changed(topic_id, partition)
        else:
            delta.partitions_changed.update(self._touched)

    def add(self, topic: TopicInfo, led: list[int]) -> None:
        after = list(topic.partitions)
        for position in led:
            after[position] = _with(after[position], NO_LEADER, after[position].isr)
        changed = TopicInfo(topic.name, topic.topic_id, tuple(after), topic.configs)
        self._topics[topic.name] = self._topics_by_id[topic.topic_id] = changed
        self._touched[topic.topic_id] = set(led)


def end_leadership(image: MetadataImage, node_id: int) -> Generator[None, None, EndedLeadership]:
    """A new incarnation leads nothing of what the old one led: had that lost the end of a log, the new one would write
    other records at the same offsets in the same leader epoch. The longest work of any command, and therefore in
    slices."""
    ended = EndedLeadership()
    for count, topic in enumerate(list(image.topics.values())):
        if count % TOPICS_PER_SLICE == TOPICS_PER_SLICE - 1:
            yield
        led = [position for position, state in enumerate(topic.partitions) if state.leader == node_id]
        if led:
            ended.add(topic, led)
    return ended


def trusted_without_data(image: MetadataImage, node_id: int) -> tuple[str, int] | None:
    """A partition that holds the broker to be in sync although other replicas may have what it has lost, if any."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if node_id in partition.isr and len(partition.replicas) > 1:
                return topic.name, index
    return None
