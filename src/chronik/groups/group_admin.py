"""Groups as administrators see them: list, describe, delete. Answers as Kafka gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from chronik.groups.classic_state import State
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.consumer_state import Assignment, Member
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import (
    DescribedAssignment,
    DescribedMember,
    DescribedTopicPartitions,
)
from chronik.protocol.messages.consumer_groups import DescribedGroup as DescribedConsumerGroup
from chronik.protocol.messages.group_admin import DescribedGroup, DescribedGroupMember, ListedGroup

if TYPE_CHECKING:
    from chronik.groups.classic import ClassicGroup
    from chronik.groups.coordinator import GroupCoordinator
    from chronik.metadata.model import TopicInfo

CONSUMER_MEMBER = 1
"""The type of a member that speaks KIP-848 itself; there are no others here."""


class GroupAdmin:
    """Looks at and deletes the groups that this node coordinates."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def listing(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        """Groups in these states and of these types; no states or no types means all. Case does not matter."""
        if self._coordinator.shards.are_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups are being loaded; try again")
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        found = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state_name,
                group_type=group.kind,
            )
            for shard in self._coordinator.active()
            for group in shard.groups()
        ]
        return [
            group
            for group in found
            if (not wanted_states or group.group_state.lower() in wanted_states)
            and (not wanted_types or group.group_type in wanted_types)
        ]

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """A classic group. One that does not exist is Dead; since version 6 that is an error as well."""
        try:
            shard = self._coordinator.shard_of(group_id, empty_id=True)
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        group = shard.classic(group_id)
        if group is None:
            missing = DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
            if version >= 6:
                missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                missing.error_message = f"Group {group_id} not found."
            return missing
        return _described(group)

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """A group of KIP-848."""
        try:
            shard = self._coordinator.shard_of(group_id, empty_id=True)
        except KafkaError as error:
            return DescribedConsumerGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        group = shard.group(group_id)
        if not isinstance(group, ConsumerGroup):
            reason = "not found" if group is None else "is not a consumer group"
            return DescribedConsumerGroup(
                group_id=group_id,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} {reason}.",
                group_state=State.DEAD.value,
            )
        names = self._coordinator.store.image.topics_by_id
        return DescribedConsumerGroup(
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.data.epoch,
            assignment_epoch=group.data.assignment_epoch,
            assignor_name=group.assignor_name,
            members=[
                _described_member(member, group.data.targets.get(member.member_id, {}), names)
                for member in group.members.values()
            ],
        )

    def delete(self, group_ids: list[str], reply: Callable[[dict[str, ErrorCode]], None]) -> None:
        """Deletes groups without members; a code for each."""
        codes: dict[str, ErrorCode] = {}
        waiting = 1

        def one_done() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                reply(codes)

        for group_id in dict.fromkeys(group_ids):
            try:
                shard = self._coordinator.shard_of(group_id, empty_id=True)
            except KafkaError as error:
                codes[group_id] = error.code
                continue
            group = shard.group(group_id)
            if group is None:
                codes[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                codes[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                waiting += 1

                def written(error: ErrorCode, group_id: str = group_id) -> None:
                    codes[group_id] = error
                    one_done()

                shard.remove_groups([group_id], written)
        one_done()


def _described(group: ClassicGroup) -> DescribedGroup:
    stable = group.state is State.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ],
    )


def _described_member(member: Member, target: Assignment, topics: Mapping[bytes, TopicInfo]) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_described_assignment(member.assigned, topics),
        target_assignment=_described_assignment(target, topics),
        member_type=CONSUMER_MEMBER,
    )


def _described_assignment(assignment: Assignment, topics: Mapping[bytes, TopicInfo]) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=sorted(partitions))
            for topic_id, partitions in sorted(assignment.items())
            if topic_id in topics
        ]
    )
