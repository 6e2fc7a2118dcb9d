"""The group protocol of KIP-848: its rules, and what a group is, as the sum of its records. Pure.

Rule 1. The group has an epoch, raised whenever who subscribes to what, or what there is to read, changes. The target
        assignment has the group epoch it was computed for. A member has the epoch of the target it has reached.
Rule 2. A member moves to the target in steps, a state each:
            STABLE                 it has all it is to have
            UNREVOKED_PARTITIONS   it must give up partitions first; its epoch does not move before it has said so
            UNRELEASED_PARTITIONS  it is in the new epoch, and waits for partitions that others still hold
Rule 3. A partition is given to nobody while any member has it, or has not yet said that it gave it up.
Rule 4. A heartbeat in another epoch than the member's is fenced (FENCED_MEMBER_EPOCH), except in the one before, when
        the member owns no more than it was assigned: then an answer was lost.
Rule 5. A member leaves with epoch -1. A static member that means to be back leaves with -2: it keeps its place until
        its session ends, and whoever comes with its instance id takes it over. While it is there, its instance id is
        taken (UNRELEASED_INSTANCE_ID).
Rule 6. A member is removed when its session times out, or when it does not give up within its rebalance timeout what
        it was told to give up.
Rule 7. State is the sum of records. Whatever changes is first a record in a draft; the draft becomes the group when its
        records are in the log. So a group that was loaded is the group that was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

from chronik.protocol.messages.internal_consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartitions,
)
from chronik.protocol.wire import Message

LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
JOIN_EPOCH = 0

Assignment = Mapping[bytes, frozenset[int]]
"""Partitions by topic id; topics without partitions are left out."""

NOTHING: Assignment = {}


class MemberState(IntEnum):
    """How far a member is on its way to the target, by its number in the log (Rule 2)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ConsumerSettings(msgspec.Struct, frozen=True):
    """The broker's settings for these groups."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5000
    max_size: int = (1 << 31) - 1
    assignors: tuple[str, ...] = ("uniform", "range")


class Member(msgspec.Struct, frozen=True):
    """One member: what it asked for, and what it has."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING


class ResolvedRegex(msgspec.Struct, frozen=True):
    """The topics a pattern stood for when it was last looked up."""

    topics: frozenset[str]
    version: int


def to_assignment(parts: Iterable[TopicPartitions]) -> Assignment:
    return {part.topic_id: frozenset(part.partitions) for part in parts if part.partitions}


def from_assignment(assignment: Assignment) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in sorted(assignment.items())
    ]


def overlaps(one: Assignment, other: Assignment) -> bool:
    return any(partitions & other.get(topic_id, frozenset()) for topic_id, partitions in one.items())


def contains(whole: Assignment, part: Assignment) -> bool:
    return all(partitions <= whole.get(topic_id, frozenset()) for topic_id, partitions in part.items())


class GroupData:
    """A group as its records make it."""

    __slots__ = ("assignment_epoch", "epoch", "members", "metadata_hash", "regexes", "static_ids", "targets")

    def __init__(self) -> None:
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}

    def copy(self) -> GroupData:
        made = GroupData()
        made.epoch, made.metadata_hash, made.assignment_epoch = self.epoch, self.metadata_hash, self.assignment_epoch
        made.members, made.static_ids = dict(self.members), dict(self.static_ids)
        made.targets, made.regexes = dict(self.targets), dict(self.regexes)
        return made

    def held(self) -> dict[tuple[bytes, int], str]:
        """Who has each partition, or has not said yet that it gave it up (Rule 3)."""
        return {
            (topic_id, partition): member.member_id
            for member in self.members.values()
            for assignment in (member.assigned, member.revoking)
            for topic_id, partitions in assignment.items()
            for partition in partitions
        }

    def replay(self, key: Message, value: Message | None) -> None:
        """Takes in one record (Rule 7)."""
        if isinstance(key, ConsumerGroupMemberMetadataKey):
            self._replay_member(key.member_id, value)
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            self._replay_current(key.member_id, value)
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
                self.targets[key.member_id] = to_assignment(value.topic_partitions)
            else:
                self.targets.pop(key.member_id, None)
        elif isinstance(key, ConsumerGroupMetadataKey):
            if isinstance(value, ConsumerGroupMetadataValue):
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                self.assignment_epoch = value.assignment_epoch
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            if isinstance(value, ConsumerGroupRegularExpressionValue):
                self.regexes[key.regular_expression] = ResolvedRegex(frozenset(value.topics), value.version)
            else:
                self.regexes.pop(key.regular_expression, None)

    def _replay_member(self, member_id: str, value: Message | None) -> None:
        present = self.members.get(member_id)
        if not isinstance(value, ConsumerGroupMemberMetadataValue):
            if present is not None:
                del self.members[member_id]
                if present.instance_id is not None and self.static_ids.get(present.instance_id) == member_id:
                    del self.static_ids[present.instance_id]
            return
        self.members[member_id] = msgspec.structs.replace(
            present if present is not None else Member(member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=tuple(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex or None,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
        )
        if value.instance_id is not None:
            self.static_ids[value.instance_id] = member_id

    def _replay_current(self, member_id: str, value: Message | None) -> None:
        present = self.members.get(member_id)
        if present is None:
            return  # compaction kept the assignment of a member that is gone
        if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            self.members[member_id] = msgspec.structs.replace(
                present,
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                state=MemberState(value.state),
                assigned=to_assignment(value.assigned_partitions),
                revoking=to_assignment(value.partitions_pending_revocation),
            )
        else:
            self.members[member_id] = msgspec.structs.replace(
                present, epoch=JOIN_EPOCH, previous_epoch=-1, state=MemberState.STABLE, assigned={}, revoking={}
            )


class Draft:
    """A group with changes that are not in the log yet, and the records that make them."""

    def __init__(self, group_id: str, data: GroupData) -> None:
        self.group_id = group_id
        self.data = data.copy()
        self.records: list[tuple[Message, Message | None]] = []
        self.topics_version: int | None = None  # of the topics it was made for, where that matters

    def write(self, key: Message, value: Message | None) -> None:
        self.records.append((key, value))
        self.data.replay(key, value)

    def put_member(self, member: Member) -> None:
        """Writes what a member asked for."""
        self.write(
            ConsumerGroupMemberMetadataKey(group_id=self.group_id, member_id=member.member_id),
            ConsumerGroupMemberMetadataValue(
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=list(member.topic_names),
                subscribed_topic_regex=member.topic_regex,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                server_assignor=member.assignor,
            ),
        )

    def put_current(self, member: Member) -> None:
        """Writes what a member has."""
        self.write(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=self.group_id, member_id=member.member_id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=member.epoch,
                previous_member_epoch=member.previous_epoch,
                state=member.state,
                assigned_partitions=from_assignment(member.assigned),
                partitions_pending_revocation=from_assignment(member.revoking),
            ),
        )

    def put_target(self, member_id: str, target: Assignment) -> None:
        self.write(
            ConsumerGroupTargetAssignmentMemberKey(group_id=self.group_id, member_id=member_id),
            ConsumerGroupTargetAssignmentMemberValue(topic_partitions=from_assignment(target)),
        )

    def put_assignment_epoch(self, epoch: int) -> None:
        self.write(
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
        )

    def put_epoch(self, epoch: int, metadata_hash: int) -> None:
        self.write(
            ConsumerGroupMetadataKey(group_id=self.group_id),
            ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
        )

    def put_regex(self, pattern: str, resolved: ResolvedRegex | None, now_ms: int) -> None:
        value = None
        if resolved is not None:
            value = ConsumerGroupRegularExpressionValue(
                topics=sorted(resolved.topics), version=resolved.version, timestamp=now_ms
            )
        self.write(ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=pattern), value)

    def drop_member(self, member_id: str) -> None:
        """Forgets a member; in Kafka's order: what it has, what it was to have, what it asked for."""
        self.write(ConsumerGroupCurrentMemberAssignmentKey(group_id=self.group_id, member_id=member_id), None)
        self.write(ConsumerGroupTargetAssignmentMemberKey(group_id=self.group_id, member_id=member_id), None)
        self.write(ConsumerGroupMemberMetadataKey(group_id=self.group_id, member_id=member_id), None)

    def drop_group(self) -> None:
        """Tombstones for a group without members."""
        for pattern in list(self.data.regexes):
            self.put_regex(pattern, None, 0)
        self.write(ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id), None)
        self.write(ConsumerGroupMetadataKey(group_id=self.group_id), None)
