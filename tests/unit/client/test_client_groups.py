"""Groups and transactions as an operator sees them, against scripted answers of their coordinator."""

from __future__ import annotations

import pytest

from chronik.client import Cluster, TopicPartition
from chronik.client.admin import groups, transactions
from chronik.client.admin.groups import PartitionLag
from chronik.protocol.api import ApiKey
from chronik.protocol.codec import Message, encode
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages import group_admin, group_offsets, transaction_admin
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedGroup,
    DescribedMember,
    DescribedTopicPartitions,
)
from chronik.protocol.messages.internal_consumer_protocol import ConsumerProtocolAssignment, TopicPartitions
from chronik.protocol.messages.producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from chronik.protocol.records import Record, build_batch
from harness.fake_cluster import FakeCluster


def script(fake: FakeCluster, key: ApiKey, *answers: Message) -> None:
    """Give these answers one after another, the last one for ever."""
    left = list(answers)
    fake.scripts[key] = lambda _: left.pop(0) if len(left) > 1 else left[0]


def committed(*rows: tuple[str, int, int]) -> group_offsets.OffsetFetchResponse:
    """An answer that holds for the versions before and after several groups could be asked for."""
    return group_offsets.OffsetFetchResponse(
        topics=[
            group_offsets.OffsetFetchResponseTopic(
                name=topic,
                partitions=[
                    group_offsets.OffsetFetchResponsePartition(
                        partition_index=partition, committed_offset=offset, metadata="m"
                    )
                ],
            )
            for topic, partition, offset in rows
        ],
        groups=[
            group_offsets.OffsetFetchResponseGroup(
                group_id="g",
                topics=[
                    group_offsets.OffsetFetchResponseTopics(
                        name=topic,
                        partitions=[
                            group_offsets.OffsetFetchResponsePartitions(
                                partition_index=partition, committed_offset=offset, metadata="m"
                            )
                        ],
                    )
                    for topic, partition, offset in rows
                ],
            )
        ],
    )


def test_groups_of_all_brokers_are_listed(fake: FakeCluster, cluster: Cluster) -> None:
    asked = iter(["b", "a", "c"])
    fake.scripts[ApiKey.LIST_GROUPS] = lambda _: group_admin.ListGroupsResponse(
        groups=[group_admin.ListedGroup(group_id=next(asked), protocol_type="consumer", group_state="Stable")]
    )
    assert [(g.group_id, g.state, g.group_type) for g in groups.list_groups(cluster)] == [
        ("a", "Stable", "classic"),
        ("b", "Stable", "classic"),
        ("c", "Stable", "classic"),
    ]


def test_a_group_is_described_with_what_its_members_read(fake: FakeCluster, cluster: Cluster) -> None:
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(topic="t", partitions=[1, 0]), TopicPartitions(topic="a", partitions=[2])]
    )
    member = group_admin.DescribedGroupMember(
        member_id="m-1",
        client_id="app",
        client_host="/10.0.0.1",
        member_assignment=b"\x00\x01" + encode(assignment, 1),
    )
    odd = group_admin.DescribedGroupMember(member_id="odd", member_assignment=b"\x00\x01\xff")
    script(
        fake,
        ApiKey.DESCRIBE_GROUPS,
        group_admin.DescribeGroupsResponse(
            groups=[
                group_admin.DescribedGroup(
                    group_id="g",
                    group_state="Stable",
                    protocol_type="consumer",
                    protocol_data="range",
                    members=[member, odd],
                )
            ]
        ),
    )
    described = groups.describe_group(cluster, "g")
    assert (described.state, described.assignor, described.coordinator_id) == ("Stable", "range", 3)
    assert described.members[0].assigned == [("a", 2), ("t", 0), ("t", 1)]
    assert described.members[1].assigned == []


def test_a_group_of_the_newer_protocol_is_described_by_its_own_api(fake: FakeCluster, cluster: Cluster) -> None:
    script(
        fake,
        ApiKey.DESCRIBE_GROUPS,
        group_admin.DescribeGroupsResponse(
            groups=[group_admin.DescribedGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)]
        ),
    )
    reads = DescribedAssignment(topic_partitions=[DescribedTopicPartitions(topic_name="t", partitions=[3])])
    script(
        fake,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ConsumerGroupDescribeResponse(
            groups=[
                DescribedGroup(
                    group_id="g",
                    group_state="Stable",
                    assignor_name="uniform",
                    members=[DescribedMember(member_id="m", assignment=reads)],
                )
            ]
        ),
    )
    described = groups.describe_group(cluster, "g")
    assert (described.state, described.assignor) == ("Stable", "uniform")
    assert described.members[0].assigned == [("t", 3)]


def test_a_group_that_does_not_exist_is_refused(fake: FakeCluster, cluster: Cluster) -> None:
    del fake.offered[ApiKey.CONSUMER_GROUP_DESCRIBE]
    script(
        fake,
        ApiKey.DESCRIBE_GROUPS,
        group_admin.DescribeGroupsResponse(groups=[group_admin.DescribedGroup(group_id="g", group_state="Dead")]),
    )
    with pytest.raises(KafkaError, match="check the name") as caught:
        groups.describe_group(cluster, "g")
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("newest", [1, 5, 7, 8, 10])
def test_committed_offsets_are_read_in_every_kind_of_version(fake: FakeCluster, cluster: Cluster, newest: int) -> None:
    fake.offer(ApiKey.OFFSET_FETCH, 0, newest)
    script(fake, ApiKey.OFFSET_FETCH, committed(("t", 0, 5), ("t", 1, -1)))
    found = groups.committed_offsets(cluster, "g", [TopicPartition("t", 0), TopicPartition("t", 1)])
    assert {place: at.offset for place, at in found.items()} == {TopicPartition("t", 0): 5}
    assert found[TopicPartition("t", 0)].metadata == "m"
    assert fake.versions_used(ApiKey.OFFSET_FETCH) == {min(newest, 9)}


def test_a_coordinator_that_moved_or_is_loading_is_asked_again(fake: FakeCluster, cluster: Cluster) -> None:
    loading = committed()
    loading.groups[0].error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    moved = committed()
    moved.groups[0].error_code = ErrorCode.NOT_COORDINATOR
    script(fake, ApiKey.OFFSET_FETCH, loading, moved, committed(("t", 0, 5)))
    assert len(groups.committed_offsets(cluster, "g")) == 1
    assert len(fake.asked(ApiKey.FIND_COORDINATOR)) == 3


@pytest.mark.parametrize("newest", [2, 6])
def test_the_coordinator_is_found_in_old_and_new_versions(fake: FakeCluster, cluster: Cluster, newest: int) -> None:
    fake.offer(ApiKey.FIND_COORDINATOR, 0, newest)
    script(fake, ApiKey.OFFSET_FETCH, committed(("t", 0, 5)))
    fake.fail(ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=2)
    assert len(groups.committed_offsets(cluster, "g")) == 1
    assert [node for node, key, _, _ in fake.journal if key is ApiKey.OFFSET_FETCH] == [3]


def test_lag_is_what_lies_between_the_commit_and_the_end(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    for partition, count in zip(fake.topics["t"].partitions, (10, 4, 7), strict=True):
        partition.append(build_batch([Record(i, 0, None, b"v") for i in range(count)]))
    script(fake, ApiKey.OFFSET_FETCH, committed(("t", 0, 6), ("t", 1, 4)))
    assert groups.group_lag(cluster, "g") == [
        PartitionLag(TopicPartition("t", 0), 6, 10, 4),
        PartitionLag(TopicPartition("t", 1), 4, 4, 0),
    ]
    assert groups.group_lag(cluster, "g", topics=["t"])[2] == PartitionLag(TopicPartition("t", 2), None, 7, None)


def test_a_group_without_commits_has_no_lag_to_tell(fake: FakeCluster, cluster: Cluster) -> None:
    script(fake, ApiKey.OFFSET_FETCH, committed())
    assert groups.group_lag(cluster, "g") == []


def test_groups_are_deleted_and_those_with_members_are_not(fake: FakeCluster, cluster: Cluster) -> None:
    script(
        fake,
        ApiKey.DELETE_GROUPS,
        group_admin.DeleteGroupsResponse(results=[group_admin.DeletableGroupResult(group_id="a")]),
        group_admin.DeleteGroupsResponse(
            results=[group_admin.DeletableGroupResult(group_id="b", error_code=ErrorCode.NON_EMPTY_GROUP)]
        ),
    )
    results = groups.delete_groups(cluster, ["a", "b"])
    assert results["a"] is None
    assert results["b"] is not None and results["b"].code is ErrorCode.NON_EMPTY_GROUP


def test_offsets_are_set_and_deleted(fake: FakeCluster, cluster: Cluster) -> None:
    place = TopicPartition("t", 1)
    ok = group_offsets.OffsetCommitResponsePartition(partition_index=1)
    script(
        fake,
        ApiKey.OFFSET_COMMIT,
        group_offsets.OffsetCommitResponse(topics=[group_offsets.OffsetCommitResponseTopic(name="t", partitions=[ok])]),
    )
    groups.commit_offsets(cluster, "g", {place: 42})
    (request,) = fake.asked(ApiKey.OFFSET_COMMIT)
    assert isinstance(request, group_offsets.OffsetCommitRequest)
    assert request.generation_id_or_member_epoch == -1
    assert request.topics[0].partitions[0].committed_offset == 42
    script(
        fake,
        ApiKey.OFFSET_DELETE,
        group_offsets.OffsetDeleteResponse(error_code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
    )
    with pytest.raises(KafkaError) as caught:
        groups.delete_offsets(cluster, "g", [place])
    assert caught.value.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_transactions_are_listed_and_described(fake: FakeCluster, cluster: Cluster) -> None:
    script(
        fake,
        ApiKey.LIST_TRANSACTIONS,
        transaction_admin.ListTransactionsResponse(
            transaction_states=[
                transaction_admin.ListedTransaction(transactional_id="x", producer_id=7, transaction_state="Ongoing")
            ]
        ),
    )
    (listed,) = transactions.list_transactions(cluster, states=["Ongoing"])
    assert (listed.transactional_id, listed.producer_id, listed.state) == ("x", 7, "Ongoing")
    described = transaction_admin.DescribedTransaction(
        transactional_id="x",
        transaction_state="Ongoing",
        producer_id=7,
        producer_epoch=2,
        transaction_timeout_ms=60000,
        transaction_start_time_ms=123,
        topics=[transaction_admin.TransactionTopic(topic="t", partitions=[1, 0])],
    )
    unknown = transaction_admin.DescribedTransaction(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    script(
        fake,
        ApiKey.DESCRIBE_TRANSACTIONS,
        transaction_admin.DescribeTransactionsResponse(transaction_states=[described]),
        transaction_admin.DescribeTransactionsResponse(transaction_states=[unknown]),
    )
    found = transactions.describe_transaction(cluster, "x")
    assert (found.state, found.producer_epoch, found.start_time_ms) == ("Ongoing", 2, 123)
    assert found.partitions == [("t", 0), ("t", 1)]
    with pytest.raises(KafkaError):
        transactions.describe_transaction(cluster, "x")


def test_producers_of_a_partition_are_described_by_its_leader(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    place = TopicPartition("t", 1)
    state = ProducerState(producer_id=9, producer_epoch=1, current_txn_start_offset=4)
    script(
        fake,
        ApiKey.DESCRIBE_PRODUCERS,
        DescribeProducersResponse(
            topics=[
                TopicResponse(name="t", partitions=[PartitionResponse(partition_index=1, active_producers=[state])])
            ]
        ),
    )
    assert transactions.active_producers(cluster, [place])[place][0].current_txn_start_offset == 4
    assert [node for node, key, _, _ in fake.journal if key is ApiKey.DESCRIBE_PRODUCERS] == [2]
