"""The store: proposals with their results, listeners that miss nothing, and what it refuses to propose or to apply."""

from __future__ import annotations

import asyncio

import pytest

from chronik.metadata import commands as c
from chronik.metadata.delta import Delta
from chronik.metadata.model import ResourceType
from chronik.metadata.store import AppliedOutOfOrder, MetadataStore, as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.driver_errors import NodeFailed, NoLeader, ProposeTimeout
from harness.metadata_double import SharedLog, bring_up, local_store

TOPIC = b"t" * 16


def create(name: str, topic_id: bytes = TOPIC) -> c.CreateTopic:
    return c.CreateTopic(name, topic_id, ((1,), (1,)))


async def test_whoever_proposes_reads_his_write_here() -> None:
    store = local_store()
    await bring_up(store, 1)
    result = await store.propose(create("t"))
    assert result.value is store.image.topics["t"]


async def test_two_stores_that_follow_one_log_know_the_same() -> None:
    log = SharedLog()
    one, other = log.join(MetadataStore()), log.join(MetadataStore())
    await bring_up(one, 1)
    log.hold(other)
    await one.propose(create("t"))
    assert "t" not in other.image.topics
    log.release(other)
    assert vars(one.image) == vars(other.image)


async def test_listeners_hear_of_everything_once_and_one_that_fails_does_not_harm_the_others() -> None:
    store = local_store()
    await bring_up(store, 1)
    heard: list[Delta] = []

    def broken(delta: Delta) -> None:
        raise RuntimeError("broken listener")

    store.subscribe(broken)
    stop = store.subscribe(heard.append)
    assert (await store.propose(create("t"))).ok
    await store.propose(c.AddPartitions(TOPIC, 2, ((1,),)))
    await store.propose(c.SetConfig(ResourceType.TOPIC, "t", [c.ConfigChange(c.ConfigOperation.SET, "flush.ms", "1")]))
    await store.propose(c.DeleteTopic(b"unknown"))
    await store.propose(c.DeleteTopic(TOPIC))
    created, grown, configured, deleted = heard
    assert created.topics_created == {TOPIC: "t"} and not created.partitions_changed
    assert grown.partitions_changed == {TOPIC: {2}}
    assert configured.configs_changed == {(ResourceType.TOPIC, "t")}
    assert list(deleted.topics_deleted) == [TOPIC] and deleted.topics_deleted[TOPIC].name == "t"
    stop()
    await store.propose(create("u", b"u" * 16))
    assert len(heard) == 4


async def test_entries_applied_together_make_one_delta_of_what_is_true_at_the_end() -> None:
    store = local_store()
    await bring_up(store, 1)
    heard: list[Delta] = []
    store.subscribe(heard.append)
    index = store.image.applied_index
    entries = [create("t"), c.AddPartitions(TOPIC, 2, ((1,),)), create("u", b"u" * 16), c.DeleteTopic(TOPIC)]
    store.apply([(index + 1 + n, c.encode(entry)) for n, entry in enumerate(entries)])
    (delta,) = heard
    assert delta.topics_created == {b"u" * 16: "u"}
    assert list(delta.topics_deleted) == [TOPIC]
    assert not delta.partitions_changed
    assert (delta.first_index, delta.last_index) == (index + 1, index + 4)


async def test_an_entry_from_a_newer_version_stops_the_store_before_it_and_not_after() -> None:
    store = local_store()
    await bring_up(store, 1)
    index = store.image.applied_index
    heard: list[Delta] = []
    store.subscribe(heard.append)
    with pytest.raises(c.UnknownCommand):
        store.apply([(index + 1, c.encode(create("t"))), (index + 2, b"\x09"), (index + 3, c.encode(create("u")))])
    assert "t" in store.image.topics and "u" not in store.image.topics
    assert store.image.applied_index == index + 1
    assert len(heard) == 1


async def test_no_entry_is_applied_twice() -> None:
    store = local_store()
    await bring_up(store, 1)
    with pytest.raises(AppliedOutOfOrder):
        store.apply([(store.image.applied_index, c.encode(create("t")))])
    assert "t" not in store.image.topics


async def test_restoring_tells_listeners_what_differs_and_keeps_the_image_object() -> None:
    source = local_store()
    await bring_up(source, 1, 2)
    await source.propose(create("new", b"n" * 16))
    await source.propose(create("kept"))
    target = local_store()
    await bring_up(target, 1)
    await target.propose(create("kept"))
    await target.propose(create("old", b"o" * 16))
    image = target.image
    heard: list[Delta] = []
    target.subscribe(heard.append)
    state = source.image.topics["kept"].partitions[0]
    await source.propose(c.SetPartitionLeader([c.LeaderChange(TOPIC, 0, -1, state.partition_epoch)]))
    target.restore(source.snapshot()())
    assert target.image is image and vars(image) == vars(source.image)
    (delta,) = heard
    assert delta.restored
    assert delta.topics_created == {b"n" * 16: "new"} and list(delta.topics_deleted) == [b"o" * 16]
    assert delta.partitions_changed == {TOPIC: {0}}
    assert {1, 2} <= delta.brokers_changed


async def test_a_snapshot_is_of_the_moment_it_was_taken_however_late_it_is_written() -> None:
    store = local_store()
    await bring_up(store, 1)
    write = store.snapshot()
    before = vars(store.image.detached())
    await store.propose(create("later"))
    other = MetadataStore()
    other.restore(await asyncio.to_thread(write))
    assert vars(other.image) == before


async def test_a_command_above_the_clusters_level_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = SharedLog()
    store = log.join(MetadataStore())
    monkeypatch.setitem(c.LEVELS, c.RemoveNode, 2)
    for command in (c.RemoveNode(1), c.Batch([c.SetClusterId("x"), c.RemoveNode(1)])):
        with pytest.raises(KafkaError) as raised:
            await store.propose(command)
        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert log.entries == []


async def test_a_store_that_is_still_starting_refuses_in_a_retriable_way() -> None:
    with pytest.raises(KafkaError) as raised:
        await MetadataStore().propose(c.RemoveNode(1))
    assert raised.value.retriable


async def test_waiting_for_the_image_ends_when_it_is_so_or_when_time_is_up() -> None:
    store = local_store()
    await bring_up(store, 1)
    waiting = asyncio.create_task(store.wait_until(lambda image: "t" in image.topics, 5.0))
    await asyncio.sleep(0)
    await store.propose(create("t"))
    assert await waiting
    assert not await store.wait_until(lambda image: "u" in image.topics, 0.01)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoLeader("no quorum: 1 of 3 voters reachable"), ErrorCode.REQUEST_TIMED_OUT),
        (ProposeTimeout("not known in time"), ErrorCode.REQUEST_TIMED_OUT),
        (TimeoutError(), ErrorCode.REQUEST_TIMED_OUT),
        (KafkaError(ErrorCode.POLICY_VIOLATION, "no"), ErrorCode.POLICY_VIOLATION),
        (NodeFailed("disk"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_clients_are_told_to_retry_what_can_be_retried_and_why_it_failed(error: Exception, code: ErrorCode) -> None:
    told = as_kafka_error(error)
    assert told.code == code
    assert str(error) in str(told)
