"""Consumer groups: list, describe and delete them, their committed offsets, and how far they lag behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from chronik.client.cluster import GROUP, Cluster
from chronik.client.errors import UnsupportedByBroker, raise_for_code
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import Isolation, by_topic, end_offsets
from chronik.client.retry import retry
from chronik.protocol.codec import DecodeError, decode
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedMember,
)
from chronik.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from chronik.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from chronik.protocol.messages.internal_consumer_protocol import ConsumerProtocolAssignment

_NEWEST_WITH_TOPIC_NAMES = 9
"""From version 10 on, OffsetFetch and OffsetCommit carry topic ids; names serve here as well."""

_CONSUMER_GROUP = "consumer"


class GroupListing(msgspec.Struct, frozen=True):
    group_id: str
    protocol_type: str
    state: str
    group_type: str


class GroupMember(msgspec.Struct, frozen=True):
    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None
    assigned: list[TopicPartition]


class GroupDescription(msgspec.Struct, frozen=True):
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator_id: int
    members: list[GroupMember]


class CommittedOffset(msgspec.Struct, frozen=True):
    offset: int
    leader_epoch: int
    metadata: str


class PartitionLag(msgspec.Struct, frozen=True):
    """`lag` is how many offsets a group has before it; None where it never committed one."""

    place: TopicPartition
    committed: int | None
    end: int
    lag: int | None


def list_groups(cluster: Cluster) -> list[GroupListing]:
    """All groups of the cluster: every broker is asked for those it coordinates."""
    found: dict[str, GroupListing] = {}

    def attempt() -> None:
        cluster.refresh()
        for broker in cluster.brokers():
            answer = cluster.call(broker, ListGroupsRequest(), ListGroupsResponse)
            raise_for_code(answer.error_code, f"listing the groups of broker {broker.node_id}")
            for g in answer.groups:
                found[g.group_id] = GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type or "classic")

    retry("listing groups", cluster.settings.retry, attempt)
    return [group for _, group in sorted(found.items())]


def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """A group with its members and what they read; GROUP_ID_NOT_FOUND when it does not exist."""

    def check(answer: DescribeGroupsResponse) -> None:
        for described in answer.groups:
            if described.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise_for_code(described.error_code, f"describing group {group}", described.error_message)

    request = DescribeGroupsRequest(groups=[group])
    answer = cluster.call_coordinator(GROUP, group, request, DescribeGroupsResponse, check=check)
    coordinator = cluster.coordinator(GROUP, group).node_id
    described = answer.groups[0]
    if described.error_code or described.group_state == "Dead":
        return _describe_consumer_group(cluster, group, coordinator)
    members = [
        GroupMember(m.member_id, m.client_id, m.client_host, m.group_instance_id, _assigned(m.member_assignment))
        for m in described.members
    ]
    return GroupDescription(
        group, described.group_state, described.protocol_type, described.protocol_data, coordinator, members
    )


def _describe_consumer_group(cluster: Cluster, group: str, coordinator: int) -> GroupDescription:
    """Groups of the newer protocol (KIP-848) are described by an API of their own."""

    def check(answer: ConsumerGroupDescribeResponse) -> None:
        for described in answer.groups:
            raise_for_code(described.error_code, f"describing group {group}", described.error_message)

    request = ConsumerGroupDescribeRequest(group_ids=[group])
    try:
        answer = cluster.call_coordinator(GROUP, group, request, ConsumerGroupDescribeResponse, check=check)
    except UnsupportedByBroker:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group} does not exist; check the name") from None
    described = answer.groups[0]
    return GroupDescription(
        group,
        described.group_state,
        _CONSUMER_GROUP,
        described.assignor_name,
        coordinator,
        [
            GroupMember(m.member_id, m.client_id, m.client_host, m.instance_id, _assigned_now(m))
            for m in described.members
        ],
    )


def delete_groups(cluster: Cluster, groups: Iterable[str]) -> dict[str, KafkaError | None]:
    """Delete groups and their offsets; the error of each, or None. A group with members is not deleted."""
    results: dict[str, KafkaError | None] = {}
    for group in groups:

        def check(answer: DeleteGroupsResponse, group: str = group) -> None:
            for item in answer.results:
                raise_for_code(item.error_code, f"deleting group {group}")

        request = DeleteGroupsRequest(groups_names=[group])
        try:
            cluster.call_coordinator(GROUP, group, request, DeleteGroupsResponse, check=check)
            results[group] = None
        except KafkaError as error:
            results[group] = error
    return results


def committed_offsets(
    cluster: Cluster, group: str, places: Iterable[TopicPartition] | None = None, *, stable: bool = False
) -> dict[TopicPartition, CommittedOffset]:
    """What a group has committed, for all partitions or those named; partitions without a commit are left out.

    With `stable`, offsets that a transaction is about to change are the retriable error UNSTABLE_OFFSET_COMMIT.
    """
    wanted = None if places is None else by_topic(places)

    def check(answer: OffsetFetchResponse) -> None:
        raise_for_code(answer.error_code, f"reading the offsets of group {group}")
        for item in answer.groups:
            raise_for_code(item.error_code, f"reading the offsets of group {group}")

    request = OffsetFetchRequest(
        group_id=group,
        topics=None
        if wanted is None
        else [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in wanted.items()],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if wanted is None
                else [
                    OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in wanted.items()
                ],
            )
        ],
        require_stable=stable,
    )
    answer = cluster.call_coordinator(
        GROUP, group, request, OffsetFetchResponse, check=check, newest=_NEWEST_WITH_TOPIC_NAMES
    )
    answers: list[tuple[str, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]] = []
    answers += [(t.name, p) for t in answer.topics for p in t.partitions]
    answers += [(t.name, p) for item in answer.groups for t in item.topics for p in t.partitions]
    found: dict[TopicPartition, CommittedOffset] = {}
    for name, p in answers:
        place = TopicPartition(name, p.partition_index)
        raise_for_code(p.error_code, f"reading the offset of group {group} for {place}")
        if p.committed_offset >= 0:
            found[place] = CommittedOffset(p.committed_offset, p.committed_leader_epoch, p.metadata or "")
    return found


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], *, metadata: str = "") -> None:
    """Set the offsets of a group that has no members, as when its reading is to start elsewhere."""

    def check(answer: OffsetCommitResponse) -> None:
        for topic in answer.topics:
            for p in topic.partitions:
                raise_for_code(
                    p.error_code, f"setting the offset of group {group} for {topic.name}-{p.partition_index}"
                )

    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offsets[TopicPartition(name, index)],
                        committed_metadata=metadata,
                    )
                    for index in indexes
                ],
            )
            for name, indexes in by_topic(offsets).items()
        ],
    )
    cluster.call_coordinator(GROUP, group, request, OffsetCommitResponse, check=check, newest=_NEWEST_WITH_TOPIC_NAMES)


def delete_offsets(cluster: Cluster, group: str, places: Iterable[TopicPartition]) -> None:
    """Forget what a group has committed for partitions that none of its members reads."""

    def check(answer: OffsetDeleteResponse) -> None:
        raise_for_code(answer.error_code, f"deleting offsets of group {group}")
        for topic in answer.topics:
            for p in topic.partitions:
                raise_for_code(
                    p.error_code, f"deleting the offset of group {group} for {topic.name}-{p.partition_index}"
                )

    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
            )
            for name, indexes in by_topic(places).items()
        ],
    )
    cluster.call_coordinator(GROUP, group, request, OffsetDeleteResponse, check=check)


def group_lag(
    cluster: Cluster,
    group: str,
    *,
    topics: Iterable[str] | None = None,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> list[PartitionLag]:
    """How far a group is behind the end of the partitions it has committed, and of all partitions of `topics`."""
    committed = committed_offsets(cluster, group)
    places = set(committed)
    for name in topics or ():
        places.update(TopicPartition(name, index) for index in cluster.topic(name).partitions)
    ends = end_offsets(cluster, places, isolation=isolation) if places else {}
    return [_lag(place, committed.get(place), ends[place]) for place in sorted(places)]


def _lag(place: TopicPartition, committed: CommittedOffset | None, end: int) -> PartitionLag:
    if committed is None:
        return PartitionLag(place, None, end, None)
    return PartitionLag(place, committed.offset, end, max(end - committed.offset, 0))


def _assigned(assignment: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment; none where it is not in the format of consumers."""
    if len(assignment) < 2:
        return []
    version = int.from_bytes(assignment[:2], "big", signed=True)
    try:
        decoded = decode(
            ConsumerProtocolAssignment, min(max(version, 0), 3), memoryview(assignment)[2:], allow_trailing=True
        )
    except DecodeError:
        return []
    return sorted(TopicPartition(t.topic, p) for t in decoded.assigned_partitions for p in t.partitions)


def _assigned_now(member: DescribedMember) -> list[TopicPartition]:
    return sorted(TopicPartition(t.topic_name, p) for t in member.assignment.topic_partitions for p in t.partitions)
