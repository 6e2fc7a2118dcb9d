"""Transactions on three nodes: coordinators apart from leaders, killed in mid-transaction; exactly once in a chain."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from chronik.client.admin.topics import create_topic
from chronik.client.admin.transactions import describe_transaction
from chronik.client.cluster import TRANSACTION, Cluster
from chronik.client.metadata import TopicPartition as Place
from chronik.protocol.errors import ErrorCode
from groups.transacting import DEADLINE_S, QUICK, eventually_reads, read, read_records, transactional, write
from harness.clients.stage import ABORTED, Stage, partition_of
from harness.node_process import NodeProcess, three_nodes
from harness.waiting import eventually
from harness.wire_producer import WireProducer, until_done


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """Three nodes for all tests here: each leaves them running."""
    made = three_nodes(tmp_path_factory.mktemp("txn-cluster"), QUICK)
    for node in made:
        node.start(wait=False)
    for node in made:
        node.wait_ready()
    yield made
    for node in made:
        node.close()


@pytest.fixture
def bootstrap(nodes: list[NodeProcess]) -> str:
    return ",".join(node.bootstrap for node in nodes)


@pytest.fixture
def cluster(bootstrap: str, nodes: list[NodeProcess]) -> Iterator[Cluster]:
    for node in nodes:
        if not node.running:
            node.start()
    with Cluster(bootstrap) as made:
        yield made


def make_topic(cluster: Cluster, partitions: int) -> str:
    name = f"t-{uuid4().hex[:10]}"
    create_topic(cluster, name, partitions=partitions, replication_factor=3)
    _in_sync(cluster, name)
    return name


def _in_sync(cluster: Cluster, *topics: str) -> None:
    def all_there() -> bool:
        cluster.refresh(topics)
        return all(len(p.isr) == 3 for topic in topics for p in cluster.topic(topic).partitions.values())

    eventually(all_there, f"{topics} are on all nodes", 60)


def apart(cluster: Cluster, topic: str) -> tuple[str, Place]:
    """A transactional id and a partition that different nodes look after."""
    for number in range(100):
        name = f"apart-{number}-{uuid4().hex[:6]}"
        coordinator = cluster.coordinator(TRANSACTION, name).node_id
        for index in cluster.topic(topic).partitions:
            if cluster.leader(Place(topic, index)).node_id != coordinator:
                return name, Place(topic, index)
    raise AssertionError("one node leads everything")


def test_commit_and_abort_with_the_coordinator_elsewhere(bootstrap: str, cluster: Cluster) -> None:
    """Hard case 40, with both generations of clients."""
    topic = make_topic(cluster, 3)
    name, place = apart(cluster, topic)
    producer = transactional(bootstrap, name)
    write(producer, topic, ["a"], partition=place.partition)
    write(producer, topic, ["no"], partition=place.partition, commit=False)
    write(producer, topic, ["b"], partition=place.partition)
    newer = WireProducer(cluster, name)
    until_done(newer.init, "a newer instance begins")
    for number, commit in enumerate((True, False, True)):
        until_done(lambda number=number: newer.send(place, f"n{number}".encode()), "a batch joins")  # type: ignore[misc]
        assert newer.end(commit=commit) is ErrorCode.NONE
    eventually_reads(bootstrap, topic, ["a", "b", "n0", "n2"], "everything is decided", 3)


@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_killed_in_mid_transaction(
    bootstrap: str, nodes: list[NodeProcess], cluster: Cluster, commit: bool
) -> None:
    """Hard case 40: the next coordinator knows the open transaction, and its end counts."""
    topic = make_topic(cluster, 3)
    name, place = apart(cluster, topic)
    producer = transactional(bootstrap, name)
    write(producer, topic, ["before"], partition=place.partition)
    producer.begin_transaction()
    producer.produce(topic, b"meanwhile", partition=place.partition)
    assert producer.flush(DEADLINE_S) == 0
    coordinator = nodes[cluster.coordinator(TRANSACTION, name).node_id - 1]
    coordinator.kill()
    (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)
    write(producer, topic, ["after"], partition=place.partition)
    coordinator.start()
    wanted = ["before", "meanwhile", "after"] if commit else ["before", "after"]
    eventually_reads(bootstrap, topic, wanted, "the transaction is decided", 3)


def test_a_coordinator_killed_right_after_the_decision(
    bootstrap: str, nodes: list[NodeProcess], cluster: Cluster
) -> None:
    """The markers may not have left it: its successor sends them."""
    topic = make_topic(cluster, 3)
    name, _ = apart(cluster, topic)
    producer = WireProducer(cluster, name)
    until_done(producer.init, "it begins")
    for index in range(3):
        until_done(lambda index=index: producer.send(Place(topic, index), b"yes"), "a batch joins")  # type: ignore[misc]
    coordinator = nodes[cluster.coordinator(TRANSACTION, name).node_id - 1]
    assert producer.end(commit=True) is ErrorCode.NONE
    coordinator.kill()
    eventually_reads(bootstrap, topic, ["yes"] * 3, "the successor finishes it", 3)
    with Cluster(bootstrap) as fresh:
        eventually(lambda: describe_transaction(fresh, name).state == "CompleteCommit", "it is complete")
    coordinator.start()


def test_a_leader_killed_in_mid_transaction_has_every_record_once(
    bootstrap: str, nodes: list[NodeProcess], cluster: Cluster
) -> None:
    """Hard cases 39 and 40: retries across the failover leave exactly one copy."""
    topic = make_topic(cluster, 1)
    producer = transactional(bootstrap, f"p-{uuid4().hex[:6]}")
    leader = nodes[cluster.leader(Place(topic, 0)).node_id - 1]
    values = [f"v{number}" for number in range(200)]
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=0)
        producer.poll(0)
        if number == 100:
            threading.Thread(target=leader.kill).start()
    producer.commit_transaction(DEADLINE_S)
    assert read(bootstrap, topic) == values
    eventually(lambda: not leader.running, "the leader is gone")
    leader.start()
    assert read(bootstrap, topic, committed=False) == values


# --- exactly once -----------------------------------------------------------------------------------------------------

PARTITIONS = 3
KEYS = 12
STAGES = 3
FEED_PAUSE_S = 0.01
ARRIVAL_S = 90.0
"""On top of the time that things were being killed."""


class Chain:
    """Three stages, topic to topic, with two processes each but for the one that only assignment makes safe."""

    def __init__(self, bootstrap: str, cluster: Cluster, log: Path) -> None:
        self.bootstrap = bootstrap
        self.topics = [make_topic(cluster, PARTITIONS) for _ in range(STAGES + 1)]
        self.stages: list[Stage] = []
        for number in range(STAGES):
            library, copies = ("aiokafka", 1) if number == 1 else ("confluent-kafka", 2)
            for copy in range(copies):
                name = f"{self.topics[0]}-{number}-{copy}"
                self.stages.append(
                    Stage(
                        library,
                        name,
                        bootstrap,
                        f"{self.topics[0]}-{number}",
                        self.topics[number],
                        self.topics[number + 1],
                        PARTITIONS,
                        log,
                    )
                )
        self.sent: dict[int, int] = defaultdict(int)
        self._stopping = threading.Event()
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        rng = random.Random(5)
        while not self._stopping.wait(FEED_PAUSE_S):
            key = rng.randrange(KEYS)
            text = str(key).encode()
            producer.produce(self.topics[0], f"{key}:{self.sent[key]}".encode(), text, partition_of(text, PARTITIONS))
            self.sent[key] += 1
            producer.poll(0)
        assert producer.flush(60) == 0

    def revive(self) -> None:
        for stage in self.stages:
            if not stage.running:
                stage.start()

    def stop_feeding(self) -> None:
        self._stopping.set()
        self._feeder.join(90)

    def output(self) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for record in read_records(self.bootstrap, self.topics[-1], PARTITIONS):
            found.append((record.key(), record.value()))
        return found

    def violations(self, output: list[tuple[bytes, bytes]]) -> list[str]:
        """What breaks exactly-once in the output, in the order of each partition."""
        problems = [f"aborted value seen: {value!r}" for _, value in output if ABORTED in value]
        numbers: dict[int, list[int]] = defaultdict(list)
        for _, value in output:
            key, number = value.split(b"|")[0].split(b":")
            numbers[int(key)].append(int(number))
        for key, count in self.sent.items():
            seen = numbers[key]
            if seen != list(range(count)):
                missing = sorted(set(range(count)) - set(seen))
                twice = sorted({number for number in seen if seen.count(number) > 1})
                problems.append(f"key {key}: {count} sent, missing {missing[:5]}, twice {twice[:5]}, order {seen[:8]}")
        return problems

    def close(self) -> None:
        self._stopping.set()
        for stage in self.stages:
            stage.close()


def exactly_once(
    bootstrap: str, nodes: list[NodeProcess], cluster: Cluster, log: Path, seconds: float, seed: int
) -> None:
    """Kills clients and nodes for a while, then everything that was sent must be in the output, once and in order."""
    rng = random.Random(seed)
    chain = Chain(bootstrap, cluster, log)
    try:
        pause = threading.Event()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pause.wait(rng.uniform(1.0, 2.5))
            if rng.random() < 0.6:
                rng.choice(chain.stages).kill()
                pause.wait(rng.uniform(0.0, 1.0))
            else:
                node = rng.choice(nodes)
                node.kill()
                pause.wait(rng.uniform(0.5, 2.5))
                node.start()
                _in_sync(cluster, *chain.topics, "__transaction_state", "__consumer_offsets")
            chain.revive()
        chain.stop_feeding()
        total = sum(chain.sent.values())
        assert total > 10 * seconds

        def arrived() -> bool:
            chain.revive()
            output = chain.output()
            assert not any(ABORTED in value for _, value in output), "an aborted value was seen"
            return len(output) >= total

        eventually(arrived, f"all {total} records are in the output; the stages' log: {log}", ARRIVAL_S + seconds)
        assert not chain.violations(chain.output())
    finally:
        chain.close()


@pytest.mark.timeout(240)
def test_a_chain_of_three_stages_has_every_record_once_whoever_is_killed(
    bootstrap: str, nodes: list[NodeProcess], cluster: Cluster, tmp_path: Path
) -> None:
    exactly_once(bootstrap, nodes, cluster, tmp_path / "stages.log", 12.0, seed=3)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_three_stages_for_minutes(
    bootstrap: str, nodes: list[NodeProcess], cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    exactly_once(bootstrap, nodes, cluster, tmp_path / "stages.log", 120.0, seed=seed)
