"""Transactions on one node: librdkafka, aiokafka, and a producer that speaks the wire itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPlace
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, TopicPartition

from chronik.client.admin.groups import committed_offsets
from chronik.client.admin.topics import create_topic, delete_topic
from chronik.client.admin.transactions import describe_transaction
from chronik.client.cluster import Cluster
from chronik.client.metadata import TopicPartition as Place
from chronik.protocol.errors import ErrorCode
from groups.transacting import DEADLINE_S, QUICK, eventually_reads, read, transactional, write
from harness.node_process import NodeProcess
from harness.waiting import eventually
from harness.wire_producer import WireProducer, until_done


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("txn-node"), settings=QUICK, http=True).start()
    yield running
    running.close()


@pytest.fixture
def cluster(node: NodeProcess) -> Iterator[Cluster]:
    with Cluster(node.bootstrap) as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid4().hex[:10]}"
    create_topic(cluster, name, partitions=2)
    return name


@pytest.fixture
def name() -> str:
    return f"n-{uuid4().hex[:10]}"


def test_committed_is_seen_and_aborted_is_not(node: NodeProcess, topic: str, name: str) -> None:
    """Hard case 40: several transactions of one producer, one of them aborted."""
    producer = transactional(node.bootstrap, name)
    write(producer, topic, ["a", "b"])
    write(producer, topic, ["no", "never"], commit=False)
    write(producer, topic, ["c"])
    assert read(node.bootstrap, topic) == ["a", "b", "c"]
    assert read(node.bootstrap, topic, committed=False) == ["a", "b", "no", "never", "c"]


def test_aiokafka_commits_and_aborts(node: NodeProcess, topic: str, name: str) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=name)
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"a", partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"no", partition=0)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"b", partition=0)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert read(node.bootstrap, topic) == ["a", "b"]


def test_readers_of_committed_data_wait_before_an_open_transaction(
    node: NodeProcess, cluster: Cluster, topic: str, name: str
) -> None:
    slow = WireProducer(cluster, name)
    assert slow.init() is ErrorCode.NONE
    assert slow.send(Place(topic, 0), b"first") is ErrorCode.NONE
    quick = transactional(node.bootstrap, f"{name}-quick")
    write(quick, topic, ["second"])
    assert read(node.bootstrap, topic) == []
    assert read(node.bootstrap, topic, committed=False) == ["first", "second"]
    assert slow.end(commit=True) is ErrorCode.NONE
    eventually_reads(node.bootstrap, topic, ["first", "second"], "the transaction before is decided")


def test_a_zombie_is_fenced(node: NodeProcess, topic: str, name: str) -> None:
    """Hard case 42."""
    zombie = transactional(node.bootstrap, name)
    zombie.begin_transaction()
    zombie.produce(topic, b"no", partition=0)
    assert zombie.flush(DEADLINE_S) == 0
    successor = transactional(node.bootstrap, name)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].fatal()
    write(successor, topic, ["yes"])
    assert read(node.bootstrap, topic) == ["yes"]


def test_a_zombie_of_aiokafka_is_fenced(node: NodeProcess, topic: str, name: str) -> None:
    async def run() -> None:
        zombie = AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=name)
        successor = AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=name)
        await zombie.start()
        try:
            await zombie.begin_transaction()
            await zombie.send_and_wait(topic, b"no", partition=0)
            await successor.start()
            with pytest.raises(AioError):
                await zombie.commit_transaction()
            async with successor.transaction():
                await successor.send_and_wait(topic, b"yes", partition=0)
        finally:
            await successor.stop()
            await zombie.stop()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert read(node.bootstrap, topic) == ["yes"]


def test_an_abandoned_transaction_times_out_and_readers_go_on(
    node: NodeProcess, cluster: Cluster, topic: str, name: str
) -> None:
    """Hard case 42: nobody ends it, and still the last stable offset moves on."""
    abandoned = WireProducer(cluster, name, timeout_ms=500)
    assert abandoned.init() is ErrorCode.NONE
    assert abandoned.send(Place(topic, 0), b"no") is ErrorCode.NONE
    write(transactional(node.bootstrap, f"{name}-other"), topic, ["yes"])
    eventually_reads(node.bootstrap, topic, ["yes"], "the abandoned transaction is aborted")
    assert abandoned.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert abandoned.send(Place(topic, 0), b"no") is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_timeout_beyond_the_limit_of_the_broker_is_refused(cluster: Cluster, name: str) -> None:
    assert WireProducer(cluster, name, timeout_ms=3_600_000).init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction_count_only_when_it_commits(
    node: NodeProcess, cluster: Cluster, topic: str, name: str, commit: bool
) -> None:
    """Hard case 43, as consume-transform-produce loops of librdkafka do it (KIP-447)."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    write(transactional(node.bootstrap, f"{name}-in"), topic, ["in"])
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.2) is not None, "a record arrives", DEADLINE_S)
    producer = transactional(node.bootstrap, name)
    producer.begin_transaction()
    producer.produce(topic, b"out", partition=1)
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), DEADLINE_S)
    (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)
    done = "CompleteCommit" if commit else "CompleteAbort"
    eventually(lambda: describe_transaction(cluster, name).state == done, "the markers are written")
    wanted = {Place(topic, 0): 1} if commit else {}

    def offsets() -> bool:
        found = {place: offset for place, offset in _committed(cluster, name).items() if offset >= 0}
        assert commit or not found
        return found == wanted

    eventually(offsets, f"the offsets are {wanted}")
    consumer.close()


def _committed(cluster: Cluster, group: str) -> dict[Place, int]:
    return {place: getattr(found, "offset", found) for place, found in committed_offsets(cluster, group).items()}


def test_offsets_of_aiokafka_that_abort_leave_nothing(
    node: NodeProcess, cluster: Cluster, topic: str, name: str
) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=name)
        await producer.start()
        try:
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({AioPlace(topic, 0): 5}, name)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_offsets_to_transaction({AioPlace(topic, 1): 6}, name)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    eventually(lambda: _committed(cluster, name) == {Place(topic, 1): 6}, "only the committed offset counts")


# --- KIP-890 ----------------------------------------------------------------------------------------------------------


def test_writing_joins_and_the_end_raises_the_epoch(node: NodeProcess, cluster: Cluster, topic: str, name: str) -> None:
    producer = WireProducer(cluster, name)
    assert producer.init() is ErrorCode.NONE
    place = Place(topic, 0)
    for number in range(3):
        assert producer.epoch == number
        until_done(lambda number=number: producer.send(place, f"v{number}".encode()), "the batch joins")  # type: ignore[misc]
        described = describe_transaction(cluster, name)
        assert (described.state, described.partitions) == ("Ongoing", [place])
        assert producer.end(commit=number != 1) is ErrorCode.NONE
    eventually_reads(node.bootstrap, topic, ["v0", "v2"], "both are committed")


def test_what_comes_late_never_touches_the_next_transaction(
    node: NodeProcess, cluster: Cluster, topic: str, name: str
) -> None:
    """Hard case 41, over the wire: delayed EndTxn, Produce and TxnOffsetCommit of the last transaction."""
    producer = WireProducer(cluster, name)
    producer.init()
    place = Place(topic, 0)
    assert producer.send(place, b"one") is ErrorCode.NONE
    assert producer.commit_offset(name, place, 1) is ErrorCode.NONE
    late = producer.copy()
    assert producer.end(commit=True) is ErrorCode.NONE
    again = late.copy()
    until_done(lambda: again.end(commit=True), "the same request again is answered alike")
    assert (again.producer_id, again.epoch) == (producer.producer_id, producer.epoch)
    until_done(lambda: producer.send(place, b"two"), "the next transaction is open")
    for commit in (True, False):
        assert late.copy().end(commit=commit) is ErrorCode.PRODUCER_FENCED
    assert late.send(place, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert late.commit_offset(name, place, 99) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert describe_transaction(cluster, name).state == "Ongoing"
    assert producer.end(commit=False) is ErrorCode.NONE
    eventually_reads(node.bootstrap, topic, ["one"], "the second transaction is aborted")
    assert _committed(cluster, name) == {place: 1}


def test_an_older_client_must_have_added_the_partition(
    node: NodeProcess, cluster: Cluster, topic: str, name: str
) -> None:
    producer = WireProducer(cluster, name, version=0)
    producer.init()
    place = Place(topic, 0)
    assert producer.send(place, b"no") is ErrorCode.INVALID_TXN_STATE
    assert producer.add(place) is ErrorCode.NONE
    assert producer.send(place, b"yes") is ErrorCode.NONE
    assert producer.send(Place(topic, 1), b"no") is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=True) is ErrorCode.NONE
    until_done(lambda: producer.end(commit=True), "the same request again")
    assert producer.send(place, b"no") is ErrorCode.INVALID_TXN_STATE
    eventually_reads(node.bootstrap, topic, ["yes"], "only the verified batch is there", 2)


def test_an_unknown_partition_is_added_by_nobody(cluster: Cluster, topic: str, name: str) -> None:
    producer = WireProducer(cluster, name, version=0)
    producer.init()
    assert producer.add(Place(topic, 7)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_deleted_in_mid_transaction_does_not_hold_it_up(
    cluster: Cluster, topic: str, name: str
) -> None:
    producer = WireProducer(cluster, name)
    producer.init()
    assert producer.send(Place(topic, 0), b"gone") is ErrorCode.NONE
    delete_topic(cluster, topic)
    assert producer.end(commit=True) is ErrorCode.NONE
    eventually(lambda: describe_transaction(cluster, name).state == "CompleteCommit", "the transaction is complete")


# --- people -----------------------------------------------------------------------------------------------------------


def _chronik(node: NodeProcess, *arguments: str) -> str:
    command = [sys.executable, "-m", "chronik", *arguments, "--bootstrap", node.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_people_see_open_transactions_and_can_end_one(
    node: NodeProcess, cluster: Cluster, topic: str, name: str
) -> None:
    producer = WireProducer(cluster, name)
    producer.init()
    assert producer.send(Place(topic, 0), b"no") is ErrorCode.NONE
    listed = json.loads(_chronik(node, "txn", "list", "--state", "Ongoing", "--json"))
    assert [one["producer_id"] for one in listed if one["transactional_id"] == name] == [producer.producer_id]
    assert f"{topic}-0" in _chronik(node, "txn", "describe", name)
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics", timeout=DEADLINE_S) as response:
        metrics = response.read().decode()
    assert 'chronik_transactions{state="Ongoing"} 1.0' in metrics and "chronik_transactions_open 1.0" in metrics
    write(transactional(node.bootstrap, f"{name}-other"), topic, ["yes"])
    assert read(node.bootstrap, topic) == []
    assert "aborted the transaction" in _chronik(node, "txn", "abort", topic, "0")
    eventually_reads(node.bootstrap, topic, ["yes"], "readers go on")
    producer.end(commit=False)


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_a_killed_node_remembers_what_was_open_and_what_was_decided(tmp_path_factory: pytest.TempPathFactory) -> None:
    node = NodeProcess(tmp_path_factory.mktemp("killed"), settings=QUICK).start()
    try:
        with Cluster(node.bootstrap) as cluster:
            create_topic(cluster, "orders", partitions=1)
            place = Place("orders", 0)
            producers = [WireProducer(cluster, f"p{number}") for number in range(3)]
            for number, producer in enumerate(producers):
                assert producer.init() is ErrorCode.NONE
                assert producer.send(place, f"v{number}".encode()) is ErrorCode.NONE
            assert producers[0].end(commit=True) is ErrorCode.NONE
            assert producers[1].end(commit=False) is ErrorCode.NONE
            node.kill()
            node.start()
            assert read(node.bootstrap, "orders") in ([], ["v0"])
            until_done(lambda: producers[2].end(commit=True), "the open transaction goes on")
        eventually_reads(node.bootstrap, "orders", ["v0", "v2"], "what was decided is carried out")
    finally:
        node.close()
