"""Fetch serves what is committed, waits without polling, and keeps to its byte budgets; sessions send only news."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chronik.broker.fetch_sessions import EVICTION_IDLE_S, FetchSessions
from chronik.broker.limits import BrokerLimits
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from chronik.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chronik.protocol.records import read_records
from chronik.protocol.records.header import parse_batches
from chronik.protocol.records.message_sets import read_message_set
from unit.broker.serving import ServedNode, batch_of, settled
from unit.broker.wire_client import eventually

StartNode = Callable[..., Awaitable[ServedNode]]
NEWEST = 18


def request_for(
    *offsets: int,
    topic: str = "t",
    topic_id: bytes = bytes(16),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
    isolation: int = 0,
    leader_epoch: int = -1,
) -> FetchRequest:
    """One fetch offset per partition, from partition 0 on."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=topic_id,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=leader_epoch,
                    )
                    for index, offset in enumerate(offsets)
                ],
            )
        ]
        if offsets
        else [],
    )


def only(response: FetchResponse) -> PartitionData:
    (topic,) = response.responses
    (data,) = topic.partitions
    return data


def values(data: PartitionData) -> list[bytes | None]:
    assert data.records is not None, "records are never null"
    found: list[bytes | None] = []
    view = memoryview(data.records)  # type: ignore[arg-type]
    for info in parse_batches(view):
        found.extend(record.value for record in read_records(view[info.position : info.end]))
    return found


@pytest.mark.parametrize("version", range(4, NEWEST + 1))
async def test_what_was_produced_is_served_byte_for_byte_in_every_version(node: ServedNode, version: int) -> None:
    topic_id = await node.create_topic("t")
    node.append("t", b"a", b"b")
    node.append("t", b"c")
    client = await node.connect()
    data = only(await client.ask(request_for(0, topic_id=topic_id), version))
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 3, 3)
    assert bytes(data.records) == b"".join(stored for _, stored in node.log("t").batches)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_old_consumers_get_message_sets(node: ServedNode, version: int) -> None:
    await node.create_topic("t")
    node.append("t", b"a", b"b")
    client = await node.connect()
    data = only(await client.ask(request_for(0), version))
    records = read_message_set(bytes(data.records))  # type: ignore[arg-type]
    assert [(record.offset, record.key, record.value) for record in records] == [(0, b"k", b"a"), (1, b"k", b"b")]
    at_end = only(await client.ask(request_for(2), version))
    assert (at_end.error_code, at_end.records) == (0, b"")


async def test_old_consumers_wait_for_data_too(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    sent = client.send(request_for(0, max_wait_ms=5000), 3)
    await eventually(lambda: node.services.metrics.bytes_in > 0, "the request arrives")
    node.append("t", b"a")
    data = only(await client.receive(FetchResponse, 3, sent))
    assert len(read_message_set(bytes(data.records))) == 1  # type: ignore[arg-type]


async def test_a_topic_may_refuse_old_consumers(node: ServedNode) -> None:
    await node.create_topic("t", message_downconversion_enable="false")
    client = await node.connect()
    assert only(await client.ask(request_for(0), 3)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert only(await client.ask(request_for(0), 4)).error_code == 0


async def test_a_fetch_from_the_middle_of_a_batch_gets_the_whole_batch(node: ServedNode) -> None:
    await node.create_topic("t")
    node.append("t", b"a", b"b", b"c")
    client = await node.connect()
    assert values(only(await client.ask(request_for(1), 11))) == [b"a", b"b", b"c"]


async def test_a_fetch_at_the_end_waits_and_is_then_empty(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    loop = asyncio.get_running_loop()
    before = loop.time()
    data = only(await client.ask(request_for(0, max_wait_ms=60), 11))
    assert loop.time() - before >= 0.055
    assert (data.error_code, data.records) == (0, b"")


async def test_an_append_wakes_a_waiting_fetch_and_nothing_polls(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    sent = client.send(request_for(0, max_wait_ms=60_000), 11)
    await eventually(lambda: node.services.metrics.bytes_in > 0, "the request arrives")
    await settled()
    node.log("t").reads = 0
    await asyncio.sleep(0.05)
    assert node.log("t").reads == 0
    node.append("t", b"a")
    assert values(only(await client.receive(FetchResponse, 11, sent))) == [b"a"]
    assert node.log("t").reads == 1


async def test_what_is_not_committed_is_not_served(node: ServedNode) -> None:
    await node.create_topic("t")
    node.log("t").hold_syncs = True
    node.append("t", b"a")
    client = await node.connect()
    data = only(await client.ask(request_for(0), 11))
    assert (data.error_code, data.records, data.high_watermark) == (0, b"", 0)
    sent = client.send(request_for(0, max_wait_ms=60_000), 11)
    await eventually(lambda: node.services.metrics.apis[1].count == 1, "the first fetch is answered")
    node.log("t").sync()
    assert values(only(await client.receive(FetchResponse, 11, sent))) == [b"a"]


async def test_a_fetch_that_wants_more_bytes_waits_until_they_are_there(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    wanted = 3 * len(batch_of(b"x" * 100))
    sent = client.send(request_for(0, max_wait_ms=60_000, min_bytes=wanted), 11)
    await eventually(lambda: node.services.metrics.bytes_in > 0, "the request arrives")
    for number in range(3):
        await settled()
        assert node.services.metrics.apis[1].count == 0, f"answered after {number} batches"
        node.append("t", b"x" * 100)
    assert values(only(await client.receive(FetchResponse, 11, sent))) == [b"x" * 100] * 3


async def test_time_up_brings_what_there_is(node: ServedNode) -> None:
    await node.create_topic("t")
    node.append("t", b"a")
    client = await node.connect()
    data = only(await client.ask(request_for(0, max_wait_ms=30, min_bytes=10_000), 11))
    assert values(data) == [b"a"]


async def test_no_minimum_means_no_waiting(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    assert only(await client.ask(request_for(0, max_wait_ms=60_000, min_bytes=0), 11)).records == b""


async def test_a_slow_fetch_does_not_let_a_fast_request_pass_it(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    first = client.send(request_for(0, max_wait_ms=80), 11)
    second = client.send(MetadataRequest(topics=[]), 9)
    await client.receive(FetchResponse, 11, first)
    await client.receive(MetadataResponse, 9, second)


async def test_the_first_batch_comes_whatever_its_size_and_the_others_within_the_budget(node: ServedNode) -> None:
    await node.create_topic("t", partitions=3)
    for partition in range(3):
        node.append("t", b"x" * 1000, partition=partition)
    client = await node.connect()
    response = await client.ask(request_for(0, 0, 0, max_bytes=10, partition_max_bytes=10), 11)
    sizes = [len(values(data)) for data in response.responses[0].partitions]
    assert sizes == [1, 0, 0]
    response = await client.ask(request_for(0, 0, 0, max_bytes=2500), 11)
    assert [len(values(data)) for data in response.responses[0].partitions] == [1, 1, 0]
    response = await client.ask(request_for(0, 0, 0, partition_max_bytes=10), 11)
    assert [len(values(data)) for data in response.responses[0].partitions] == [1, 0, 0]


async def test_memory_of_unread_responses_shrinks_what_a_fetch_returns(start_node: StartNode) -> None:
    node = await start_node(limits=BrokerLimits(fetch_response_bytes_max=100_000))
    await node.create_topic("t")
    for _ in range(200):
        node.append("t", b"x" * 1000)
    client = await node.connect()
    assert 80_000 < len(only(await client.ask(request_for(0), 11)).records) <= 100_000  # type: ignore[arg-type]


async def test_cold_data_is_read_from_disk_without_holding_up_the_loop(node: ServedNode) -> None:
    await node.create_topic("t", partitions=2)
    node.append("t", b"cold", partition=0)
    node.append("t", b"warm", partition=1)
    node.log("t", 0).cold = True
    client = await node.connect()
    response = await client.ask(request_for(0, 0), 11)
    assert [values(data) for data in response.responses[0].partitions] == [[b"cold"], [b"warm"]]


async def test_errors_stay_with_their_partition_and_answer_at_once(start_node: StartNode) -> None:
    node = await start_node(brokers=2)
    await node.create_topic("t")
    await node.create_topic("elsewhere", replicas=(2, 1))
    node.append("t", b"a")
    client = await node.connect()
    response = await client.ask(request_for(5, 0, max_wait_ms=60_000), 12)
    assert [data.error_code for data in response.responses[0].partitions] == [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert all(data.records == b"" for data in response.responses[0].partitions)
    moved = only(await client.ask(request_for(0, topic="elsewhere", max_wait_ms=60_000), 12))
    assert moved.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert moved.current_leader is not None and moved.current_leader.leader_id == 2
    missing = only(await client.ask(request_for(0, topic_id=b"\x09" * 16, max_wait_ms=60_000), 13))
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("epoch", "code"), [(0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)])
async def test_the_leader_epoch_that_a_client_knows_is_checked(node: ServedNode, epoch: int, code: int) -> None:
    await node.create_topic("t")
    client = await node.connect()
    assert only(await client.ask(request_for(0, leader_epoch=epoch), 12)).error_code == code


async def test_read_committed_ends_at_the_last_stable_offset_and_names_aborted_transactions(node: ServedNode) -> None:
    await node.create_topic("t")
    for value in (b"a", b"b", b"c"):
        node.append("t", value)
    node.log("t").stable_limit = 2
    node.log("t").aborted = [(7, 0), (8, 5)]
    client = await node.connect()
    data = only(await client.ask(request_for(0, isolation=1), 11))
    assert values(data) == [b"a", b"b"]
    assert data.last_stable_offset == 2
    assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions or []] == [(7, 0)]
    uncommitted = only(await client.ask(request_for(0), 11))
    assert values(uncommitted) == [b"a", b"b", b"c"]
    assert uncommitted.aborted_transactions is None


async def test_a_client_that_leaves_takes_its_waiting_fetch_with_it(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    client.send(request_for(0, max_wait_ms=60_000), 11)
    partition = node.replicas.partition("t", 0)
    await eventually(lambda: bool(partition._room) and len(partition._room) == 1, "the fetch waits")
    await client.close()
    await eventually(lambda: len(partition._room) == 0, "nobody waits any more")  # type: ignore[arg-type]


# --- sessions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 12, 13, NEWEST])
async def test_a_session_answers_only_what_is_new(node: ServedNode, version: int) -> None:
    topic_id = await node.create_topic("t", partitions=3) if version >= 13 else bytes(16)
    if version < 13:
        await node.create_topic("t", partitions=3)
    client = await node.connect()
    first = await client.ask(request_for(0, 0, 0, topic_id=topic_id, session=(0, 0), min_bytes=0), version)
    session = first.session_id
    assert session > 0
    assert len(first.responses[0].partitions) == 3
    quiet = await client.ask(request_for(session=(session, 1), min_bytes=0), version)
    assert (quiet.session_id, quiet.responses) == (session, [])
    node.append("t", b"news", partition=1)
    news = await client.ask(request_for(session=(session, 2)), version)
    assert [(data.partition_index, values(data)) for data in news.responses[0].partitions] == [(1, [b"news"])]


async def test_a_waiting_session_fetch_is_woken_by_any_of_its_partitions(node: ServedNode) -> None:
    await node.create_topic("t", partitions=3)
    client = await node.connect()
    session = (await client.ask(request_for(0, 0, 0, session=(0, 0), min_bytes=0), 11)).session_id
    sent = client.send(request_for(session=(session, 1), max_wait_ms=60_000), 11)
    await settled()
    node.append("t", b"x", partition=2)
    response = await client.receive(FetchResponse, 11, sent)
    assert [data.partition_index for data in response.responses[0].partitions] == [2]


async def test_a_session_takes_changes_and_forgets(node: ServedNode) -> None:
    await node.create_topic("t", partitions=2)
    node.append("t", b"a", partition=0)
    node.append("t", b"b", partition=1)
    client = await node.connect()
    session = (await client.ask(request_for(0, 0, session=(0, 0)), 11)).session_id
    change = request_for(1, session=(session, 1), min_bytes=0)
    change.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=[1])]
    assert (await client.ask(change, 11)).responses == []
    assert len(next(iter(node.services.fetch_sessions._sessions.values())).partitions) == 1
    forget_all = request_for(session=(session, 2))
    forget_all.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=[0])]
    assert (await client.ask(forget_all, 11)).session_id == 0
    assert len(node.services.fetch_sessions) == 0


async def test_an_error_is_news_every_time(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    session = (await client.ask(request_for(9, session=(0, 0)), 11)).session_id
    for epoch in (1, 2):
        again = await client.ask(request_for(session=(session, epoch)), 11)
        assert only(again).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_unknown_sessions_and_wrong_epochs_are_refused(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    unknown = await client.ask(request_for(session=(12345, 1)), 11)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session = (await client.ask(request_for(0, session=(0, 0), min_bytes=0), 11)).session_id
    skipped = await client.ask(request_for(session=(session, 5)), 11)
    assert skipped.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    mixed = await client.ask(request_for(session=(session, 1)), 13)
    assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


async def test_the_final_epoch_closes_a_session(node: ServedNode) -> None:
    await node.create_topic("t")
    client = await node.connect()
    session = (await client.ask(request_for(0, session=(0, 0), min_bytes=0), 11)).session_id
    closing = await client.ask(request_for(0, session=(session, -1), min_bytes=0), 11)
    assert closing.session_id == 0
    assert len(node.services.fetch_sessions) == 0


def test_a_full_cache_serves_without_a_session_until_an_idle_one_can_give_way() -> None:
    now = [0.0]
    sessions = FetchSessions(limit=2, clock=lambda: now[0])
    first, _ = sessions.open(request_for(0, session=(0, 0)), 11)
    sessions.open(request_for(0, session=(0, 0)), 11)
    assert first is not None
    assert sessions.open(request_for(0, session=(0, 0)), 11) == (None, False)
    now[0] = EVICTION_IDLE_S + 1
    assert sessions.open(request_for(0, session=(0, 0)), 11)[0] is not None
    assert len(sessions) == 2
    with pytest.raises(KafkaError):
        sessions.open(request_for(session=(first.id, 1)), 11)


def test_a_session_that_grew_too_large_is_over_after_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chronik.broker.fetch_sessions.PARTITIONS_PER_SESSION_MAX", 3)
    sessions = FetchSessions()
    session, _ = sessions.open(request_for(0, 0, session=(0, 0)), 11)
    assert session is not None
    more = [FetchTopic(topic="u", partitions=[FetchPartition(partition=index) for index in range(2)])]
    sessions.open(FetchRequest(session_id=session.id, session_epoch=1, topics=more), 11)
    assert not sessions.is_open(session) and len(sessions) == 0


async def test_who_got_data_is_served_last_the_next_time(node: ServedNode) -> None:
    await node.create_topic("t", partitions=2)
    client = await node.connect()
    for partition in (0, 1):
        for _ in range(3):
            node.append("t", b"x" * 100, partition=partition)
    small = {"max_bytes": 10, "partition_max_bytes": 10}
    first = await client.ask(request_for(0, 0, session=(0, 0), **small), 11)  # type: ignore[arg-type]
    served = [d.partition_index for d in first.responses[0].partitions if d.records]
    assert served == [0]
    second = await client.ask(request_for(session=(first.session_id, 1), **small), 11)  # type: ignore[arg-type]
    assert [d.partition_index for t in second.responses for d in t.partitions if d.records] == [1]
