"""The coordinator over the wire: finding it, members, offsets in every version, transactions, loading, moving away."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from chronik.coordination.topic_access import partition_for
from chronik.groups.offset_book import CommittedOffset
from chronik.metadata.commands import DeleteTopic
from chronik.metadata.model import NO_LEADER
from chronik.protocol.api import APIS, ApiKey
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from chronik.protocol.messages.coordinators import FindCoordinatorRequest
from chronik.protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from chronik.protocol.messages.group_membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from chronik.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from chronik.protocol.records import parse_batches
from chronik.protocol.records.control import build_end_transaction_marker
from unit.groups.coordinating import CoordinatingNode

PARTITIONS = 4
DAY_MS = 24 * 3600 * 1000


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[CoordinatingNode]:
    made = await CoordinatingNode.start(tmp_path)
    await made.ask(FindCoordinatorRequest(key="g"), 0)
    yield made
    await made.stop()


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def commit(topic_id: bytes, offsets: dict[int, int], **fields: Any) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=fields.pop("group", "g"),
        topics=[
            OffsetCommitRequestTopic(
                name=fields.pop("topic", "t"),
                topic_id=topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata=fields.get("metadata", f"m{index}"),
                    )
                    for index, offset in offsets.items()
                ],
            )
        ],
        **{name: value for name, value in fields.items() if name != "metadata"},
    )


def codes(response: Any) -> list[int]:
    return [p.error_code for t in response.topics for p in t.partitions]


async def fetched(node: CoordinatingNode, group: str = "g", *, stable: bool = False) -> dict[tuple[str, int], Any]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=stable)
    response = await node.ask(request, 9)
    (answer,) = response.groups
    assert answer.error_code == 0
    return {(t.name, p.partition_index): p for t in answer.topics for p in t.partitions}


async def join(node: CoordinatingNode, group: str = "g", **fields: Any) -> Any:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")],
        **fields,
    )
    return await node.ask(request, 3)


async def stable_member(node: CoordinatingNode, group: str = "g") -> Any:
    joined = await join(node, group)
    assert joined.error_code == 0
    assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")]
    request = SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=assignments
    )
    synced = await node.ask(request, 3)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    return joined


# --- finding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
async def test_every_version_finds_the_coordinator_and_creates_the_topic(tmp_path: Path, version: int) -> None:
    node = await CoordinatingNode.start(tmp_path)
    try:
        answer = await node.ask(FindCoordinatorRequest(key="g", coordinator_keys=["g", "h", ""]), version)
        if version < 4:
            found = [(answer.error_code, answer.node_id, answer.host, answer.port)]
        else:
            found = [(c.error_code, c.node_id, c.host, c.port) for c in answer.coordinators]
            assert len(found) == 3  # a group without a name may have offsets, and so has a coordinator too
        assert set(found) == {(0, 1, "host-1", 9092)}
        topic = node.store.image.topics["__consumer_offsets"]
        assert len(topic.partitions) == PARTITIONS
        assert topic.configs["cleanup.policy"] == "compact"
    finally:
        await node.stop()


async def test_a_group_without_a_leader_has_no_coordinator_now(node: CoordinatingNode) -> None:
    await node.move_lead("__consumer_offsets", partition_for("g", PARTITIONS), NO_LEADER)
    answer = await node.ask(FindCoordinatorRequest(key="g"), 2)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await node.ask(HeartbeatRequest(group_id="g"), 0)).error_code == ErrorCode.NOT_COORDINATOR


async def test_transactions_and_unknown_kinds_of_coordinators_are_refused_clearly(node: CoordinatingNode) -> None:
    transactional = await node.ask(FindCoordinatorRequest(coordinator_keys=["x"], key_type=1), 4)
    assert transactional.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    unknown = await node.ask(FindCoordinatorRequest(key="x", key_type=7), 2)
    assert unknown.error_code == ErrorCode.INVALID_REQUEST


async def test_a_group_needs_a_name(node: CoordinatingNode) -> None:
    assert (await join(node, "")).error_code == ErrorCode.INVALID_GROUP_ID


# --- offsets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
async def test_every_version_commits(node: CoordinatingNode, version: int) -> None:
    topic_id = await node.create_topic("t")
    response = await node.ask(commit(topic_id, {0: 10, 1: 11, 2: 12}), version)
    assert codes(response) == [0, 0, 0]
    found = await fetched(node)
    assert {place[1]: p.committed_offset for place, p in found.items()} == {0: 10, 1: 11, 2: 12}
    assert found["t", 1].metadata == "m1"
    assert found["t", 1].committed_leader_epoch == (3 if version >= 6 else -1)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
@pytest.mark.parametrize("everything", [False, True])
async def test_every_version_fetches_every_partition(node: CoordinatingNode, version: int, everything: bool) -> None:
    topic_id = await node.create_topic("t")
    await node.ask(commit(topic_id, {0: 10, 2: 12}), 9)
    if everything and version < 2:
        return  # those versions cannot ask for everything
    asked = [0, 1, 2]
    request = OffsetFetchRequest(
        group_id="g",
        topics=None if everything else [OffsetFetchRequestTopic(name="t", partition_indexes=asked)],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if everything
                else [OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=asked)],
            )
            for group in ("g", "nobody")
        ],
    )
    response = await node.ask(request, version)
    if version >= 8:
        mine, nobody = response.groups
        assert (mine.error_code, nobody.error_code) == (0, 0)
        assert {p.committed_offset for t in nobody.topics for p in t.partitions} <= {-1}
        topics = mine.topics
        if version >= 10:
            assert topics[0].topic_id == topic_id
    else:
        topics = response.topics
    expected = {0: 10, 2: 12} if everything else {0: 10, 1: -1, 2: 12}
    assert {p.partition_index: p.committed_offset for t in topics for p in t.partitions} == expected


async def test_partitions_that_do_not_exist_are_told_one_by_one(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t", 1)
    assert codes(await node.ask(commit(topic_id, {0: 1, 5: 1}), 8)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    unknown = await node.ask(commit(bytes(16), {0: 1}, topic="nowhere"), 8)
    assert codes(unknown) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(await node.ask(commit(b"\xff" * 16, {0: 1}), 10)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id="g", topics=[OffsetFetchRequestTopics(topic_id=b"\xff" * 16, partition_indexes=[0])]
            )
        ]
    )
    response = await node.ask(request, 10)
    assert response.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_metadata_that_is_too_large_is_refused_for_its_partition(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    large = await node.ask(commit(topic_id, {0: 1}, metadata="ä" * 2049), 8)
    assert codes(large) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert await fetched(node) == {}


async def test_many_commits_in_one_turn_share_one_batch(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    sent = [node.client.send(commit(topic_id, {0: number}), 8) for number in range(50)]
    log = node.replicas.partition("__consumer_offsets", partition_for("g", PARTITIONS)).log
    for correlation_id in sent:
        assert codes(await node.client.receive(OffsetCommitResponse, 8, correlation_id)) == [0]
    assert log.end_offset == 50
    assert len(parse_batches(await log.read(0, 1 << 20))) < 10
    assert (await fetched(node))["t", 0].committed_offset == 49


async def test_a_fetch_behind_a_commit_on_one_connection_sees_it(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    node.client.send(commit(topic_id, {0: 7}), 8)
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    node.client.send(request, 5)
    await node.client.read_frame()
    frame = await node.client.read_frame()
    assert (7).to_bytes(8, "big") in frame


async def test_offsets_are_deleted_unless_they_are_read(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    other_id = await node.create_topic("other")
    member = await stable_member(node)
    for topic, identity in (("t", topic_id), ("other", other_id)):
        request = commit(
            identity,
            {0: 1},
            topic=topic,
            member_id=member.member_id,
            generation_id_or_member_epoch=member.generation_id,
        )
        assert codes(await node.ask(request, 8)) == [0]

    async def delete(topic: str, group: str = "g") -> Any:
        partitions = [OffsetDeleteRequestPartition(partition_index=0)]
        request = OffsetDeleteRequest(
            group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
        )
        return await node.ask(request, 0)

    assert codes(await delete("t")) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert codes(await delete("other")) == [0]
    assert codes(await delete("nowhere")) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await delete("t", "nobody")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert set(await fetched(node)) == {("t", 0)}


async def test_offsets_go_with_their_topic(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    await node.ask(commit(topic_id, {0: 1}), 8)
    await node.store.propose(DeleteTopic(topic_id))
    shard = node.groups.shard_of("g")
    await node.until(lambda: not shard.offsets.committed("g"), "the offset is gone")


async def test_offsets_expire_and_the_group_with_them(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    await node.ask(commit(topic_id, {0: 1}), 8)
    await node.ask(commit(topic_id, {1: 1}, group="short", retention_time_ms=DAY_MS), 3)
    shards = [node.groups.shard_of(group) for group in ("g", "short")]
    node.skipped_ms += 2 * DAY_MS
    assert shards[1].expire_offsets(node._clock_ms()) >= 1
    await node.until(lambda: shards[1].group("short") is None, "the group is gone")
    assert shards[0].group("g") is not None
    node.skipped_ms += 6 * DAY_MS
    assert shards[0].expire_offsets(node._clock_ms()) == 1
    await node.until(lambda: shards[0].group("g") is None, "the group is gone")
    await node.reload(partition_for("g", PARTITIONS))
    assert await fetched(node) == {}


# --- members ---------------------------------------------------------------------------------------------------------


async def test_a_commit_of_the_wrong_generation_is_refused(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    assert codes(await node.ask(commit(topic_id, {0: 1}, generation_id_or_member_epoch=3), 8)) == [
        ErrorCode.ILLEGAL_GENERATION
    ]
    await stable_member(node)
    assert codes(await node.ask(commit(topic_id, {0: 1}), 8)) == [ErrorCode.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_every_version_joins(node: CoordinatingNode, version: int) -> None:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )
    answer = await node.ask(request, version)
    if version >= 4:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        request.member_id = answer.member_id
        answer = await node.ask(request, version)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, answer.member_id)
    assert [member.metadata for member in answer.members] == [b"m"]
    wrong = await node.ask(JoinGroupRequest(group_id="g", member_id="x", session_timeout_ms=30_000), version)
    assert wrong.error_code in (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
async def test_every_version_leaves(node: CoordinatingNode, version: int) -> None:
    member = (await stable_member(node)).member_id
    request = LeaveGroupRequest(
        group_id="g", member_id=member, members=[MemberIdentity(member_id=member), MemberIdentity(member_id="x")]
    )
    answer = await node.ask(request, version)
    assert answer.error_code == 0
    if version >= 3:
        assert [item.error_code for item in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert (await node.ask(request, 0)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_groups_are_listed_described_and_deleted(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    await stable_member(node)
    await node.ask(commit(topic_id, {0: 1}, group="simple"), 8)

    async def listed(**filters: list[str]) -> set[tuple[str, str, str]]:
        answer = await node.ask(ListGroupsRequest(**filters), 5)
        return {(g.group_id, g.group_state, g.group_type) for g in answer.groups}

    everything = {("g", "Stable", "classic"), ("simple", "Empty", "classic")}
    assert await listed() == everything
    assert await listed(states_filter=["stable"]) == {("g", "Stable", "classic")}
    assert await listed(types_filter=["Classic"]) == everything
    assert await listed(types_filter=["consumer"]) == set()
    for version in versions(ApiKey.DESCRIBE_GROUPS):
        answer = await node.ask(DescribeGroupsRequest(groups=["g", "nobody"]), version)
        mine, nobody = answer.groups
        assert (mine.group_state, mine.protocol_type, mine.protocol_data) == ("Stable", "consumer", "range")
        assert [(m.member_assignment, m.client_host) for m in mine.members] == [(b"mine", "/127.0.0.1")]
        assert nobody.group_state == "Dead"
        assert nobody.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    answer = await node.ask(DeleteGroupsRequest(groups_names=["g", "simple", "nobody"]), 2)
    assert {r.group_id: r.error_code for r in answer.results} == {
        "g": ErrorCode.NON_EMPTY_GROUP,
        "simple": 0,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert await fetched(node, "simple") == {}
    await node.reload(partition_for("simple", PARTITIONS))
    assert await listed() == {("g", "Stable", "classic")}


# --- loading and moving ----------------------------------------------------------------------------------------------


async def test_a_coordinator_that_may_have_been_replaced_answers_for_nothing(node: CoordinatingNode) -> None:
    """Cut off from the others it would keep members alive that are dead to its successor, and tell old offsets."""
    topic_id = await node.create_topic("t")
    member = await stable_member(node)
    identity = {"generation_id_or_member_epoch": member.generation_id, "member_id": member.member_id}
    assert codes(await node.ask(commit(topic_id, {0: 7}, **identity), 8)) == [0]
    beat = HeartbeatRequest(group_id="g", generation_id=member.generation_id, member_id=member.member_id)
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    node.replicas.lease.revoke()
    assert (await node.ask(beat, 3)).error_code == ErrorCode.NOT_COORDINATOR
    (answer,) = (await node.ask(asked, 9)).groups
    assert (answer.error_code, answer.topics) == (ErrorCode.NOT_COORDINATOR, [])
    node.replicas.lease.renew(math.inf)
    assert (await node.ask(beat, 3)).error_code == 0, "it is the coordinator still, and goes on"
    assert (await fetched(node))["t", 0].committed_offset == 7


async def test_groups_and_offsets_are_loaded_from_the_log(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    member = await stable_member(node)
    for number in range(3):
        fields = {"member_id": member.member_id, "generation_id_or_member_epoch": member.generation_id}
        await node.ask(commit(topic_id, {0: number, 1: number + 5}, **fields), 8)
    await node.reload(partition_for("g", PARTITIONS))
    found = await fetched(node)
    assert {place[1]: p.committed_offset for place, p in found.items()} == {0: 2, 1: 7}
    request = HeartbeatRequest(group_id="g", generation_id=member.generation_id, member_id=member.member_id)
    assert (await node.ask(request, 3)).error_code == 0


async def test_members_that_wait_are_told_when_the_group_moves_away(node: CoordinatingNode) -> None:
    first = await stable_member(node)
    second = await node.connect()
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )
    waiting = asyncio.ensure_future(second.ask(request, 3))
    shard = node.groups.shard_of("g")
    await node.until(lambda: len(shard.group("g").members) == 2, "the second member waits")  # type: ignore[union-attr]
    assert first.member_id in shard.group("g").members  # type: ignore[union-attr]
    await node.move_lead("__consumer_offsets", partition_for("g", PARTITIONS), NO_LEADER)
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
    await second.close()


async def test_while_a_group_is_loading_clients_are_told_to_wait_and_heartbeats_are_welcome(
    node: CoordinatingNode,
) -> None:
    topic_id = await node.create_topic("t")
    await node.ask(commit(topic_id, {0: 1}), 8)
    partition = partition_for("g", PARTITIONS)
    await node.move_lead("__consumer_offsets", partition, NO_LEADER)
    gate = asyncio.Event()
    original = node.groups.shards._loader._load

    async def slowly(shard: Any) -> None:
        await gate.wait()
        await original(shard)

    node.groups.shards._loader._load = slowly  # type: ignore[method-assign]
    await node.move_lead("__consumer_offsets", partition, 1)
    assert codes(await node.ask(commit(topic_id, {0: 2}), 8)) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert (await node.ask(ListGroupsRequest(), 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await node.ask(HeartbeatRequest(group_id="g"), 3)).error_code == 0
    gate.set()
    await node.until(lambda: not node.groups.shards.are_loading, "loaded")
    assert (await fetched(node))["t", 0].committed_offset == 1


# --- transactions ----------------------------------------------------------------------------------------------------


def pending(offset: int) -> dict[tuple[str, int], CommittedOffset]:
    return {("t", 0): CommittedOffset(offset, -1, "", 0)}


async def append_marker(node: CoordinatingNode, producer_id: int, *, committed: bool) -> int:
    """What the transaction coordinator does: a marker in the log, then word to the group coordinator."""
    index = partition_for("g", PARTITIONS)
    marker = build_end_transaction_marker(
        committed=committed, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=0
    )
    node.replicas.partition("__consumer_offsets", index).append(
        memoryview(marker), required_acks=-1, now_ms=0, internal=True
    )
    node.groups.complete_transaction(index, producer_id, committed)
    return index


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("reloaded", ["never", "before the marker", "after the marker"])
async def test_offsets_of_a_transaction_follow_its_marker(
    node: CoordinatingNode, committed: bool, reloaded: str
) -> None:
    topic_id = await node.create_topic("t")
    await node.ask(commit(topic_id, {0: 1}), 8)
    assert await node.groups.prepare_transactional_commit("g", 7, 0, pending(9)) is ErrorCode.NONE
    assert (await fetched(node))["t", 0].committed_offset == 1
    unstable = (await fetched(node, stable=True))["t", 0]
    assert (unstable.error_code, unstable.committed_offset) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    index = partition_for("g", PARTITIONS)
    if reloaded == "before the marker":
        await node.reload(index)
        assert (await fetched(node, stable=True))["t", 0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    await append_marker(node, 7, committed=committed)
    if reloaded == "after the marker":
        await node.reload(index)
    assert (await fetched(node, stable=True))["t", 0].committed_offset == (9 if committed else 1)


async def test_a_transaction_of_a_member_that_is_fenced_is_refused(node: CoordinatingNode) -> None:
    await node.create_topic("t")
    member = await stable_member(node)
    prepare = node.groups.prepare_transactional_commit
    with pytest.raises(KafkaError) as raised:
        prepare("g", 7, 0, pending(9), generation=member.generation_id + 1, member_id=member.member_id)
    assert raised.value.code is ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(KafkaError) as raised:
        prepare("g", 7, 0, pending(9), generation=1, member_id="x")
    assert raised.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    good = prepare("g", 7, 0, pending(9), generation=member.generation_id, member_id=member.member_id)
    assert await good is ErrorCode.NONE
    assert await prepare("g", 8, 0, pending(9)) is ErrorCode.NONE, "a producer that names no member is let in"


# --- both protocols --------------------------------------------------------------------------------------------------


def beat(member: str = "m", epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=1000 if epoch == 0 else -1,
        subscribed_topic_names=["t"] if epoch == 0 else None,
        topic_partitions=[] if epoch == 0 else None,
    )


async def test_a_group_of_the_new_protocol_lives_leaves_and_is_loaded(node: CoordinatingNode) -> None:
    topic_id = await node.create_topic("t")
    joined = await node.ask(beat(), 1)
    assert (joined.error_code, joined.member_epoch) == (0, 1)
    assert joined.assignment.topic_partitions[0].topic_id == topic_id
    await node.reload(partition_for("g", PARTITIONS))
    assert (await node.ask(beat(epoch=1), 1)).member_epoch == 1
    described = (await node.ask(ConsumerGroupDescribeRequest(group_ids=["g", "x"]), 1)).groups
    assert (described[0].group_state, described[0].assignor_name) == ("Stable", "uniform")
    assert described[0].members[0].assignment.topic_partitions[0].topic_name == "t"
    assert described[1].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    stale = await node.ask(commit(topic_id, {0: 1}, member_id="m", generation_id_or_member_epoch=0), 9)
    assert codes(stale) == [ErrorCode.STALE_MEMBER_EPOCH]
    good = await node.ask(commit(topic_id, {0: 1}, member_id="m", generation_id_or_member_epoch=1), 9)
    assert codes(good) == [0]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", member_id="m", member_epoch=7)])
    assert (await node.ask(request, 9)).groups[0].error_code == ErrorCode.STALE_MEMBER_EPOCH
    assert (await node.ask(beat(epoch=-1), 1)).error_code == 0
    assert [r.error_code for r in (await node.ask(DeleteGroupsRequest(groups_names=["g"]), 2)).results] == [0]
    await node.reload(partition_for("g", PARTITIONS))
    assert (await node.ask(ListGroupsRequest(), 5)).groups == []


async def test_members_of_the_two_protocols_do_not_mix(node: CoordinatingNode) -> None:
    await node.create_topic("t")
    await node.ask(beat(), 1)
    assert (await join(node)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert (await node.ask(request, 3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    await node.ask(beat(epoch=-1), 1)
    member = await stable_member(node)
    refused = await node.ask(beat(), 1)
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "classic" in refused.error_message
    await node.ask(LeaveGroupRequest(group_id="g", member_id=member.member_id), 1)
    assert (await node.ask(beat(), 1)).error_code == 0
    await node.reload(partition_for("g", PARTITIONS))
    assert [g.group_type for g in (await node.ask(ListGroupsRequest(), 5)).groups] == ["consumer"]
