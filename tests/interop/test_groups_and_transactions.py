"""Kafka's Java clients in groups and transactions against one real node: consumers, tools, Streams, Connect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from chronik.client.admin.groups import committed_offsets
from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer, ConsumerSettings
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import EARLIEST, Isolation, end_offsets
from chronik.client.producer import Producer
from harness.node_process import NodeProcess
from harness.waiting import eventually

TOOLS = "org.apache.kafka.tools"
CONNECT_DEADLINE_S = 180.0  # it loads every plugin there is before it begins
ASSIGNORS = "org.apache.kafka.clients.consumer."


def fill(node: NodeProcess, topic: str, values: list[str], partitions: int) -> None:
    with Cluster(node.bootstrap) as cluster:
        create_topic(cluster, topic, partitions=partitions)
        with Producer(cluster) as producer:
            for number, value in enumerate(values):
                producer.send(topic, value.encode(), key=str(number).encode(), partition=number % partitions)


def read_committed(node: NodeProcess, topic: str, partitions: int = 1) -> list[tuple[bytes | None, bytes | None]]:
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    found: list[tuple[bytes | None, bytes | None]] = []
    with Cluster(node.bootstrap) as cluster:
        ends = end_offsets(cluster, places, isolation=Isolation.READ_COMMITTED)
        settings = ConsumerSettings(isolation=Isolation.READ_COMMITTED)
        with Consumer(cluster, dict.fromkeys(places, EARLIEST), settings) as consumer:
            while any(consumer.position(place) < ends[place] for place in places):
                found.extend((record.key, record.value) for record in consumer.poll(1.0))
    return found


@pytest.mark.parametrize(
    ("protocol", "assignor"),
    [
        ("classic", f"{ASSIGNORS}RangeAssignor"),
        ("classic", f"{ASSIGNORS}CooperativeStickyAssignor"),
        ("consumer", "uniform"),
    ],
    ids=["eager", "cooperative", "consumer"],
)
def test_java_consumers_share_a_topic_and_commit(
    node: NodeProcess, java: Callable[..., str], topic: str, protocol: str, assignor: str
) -> None:
    fill(node, topic, [f"v{number}" for number in range(400)], 4)
    group = f"group-{topic}"
    printed = java("GroupClient", node.bootstrap, topic, group, protocol, assignor, "400")
    assert dict(line.split("=") for line in printed.splitlines()) == {"owned": "4", "shared": "true", "seen": "400"}
    with Cluster(node.bootstrap) as cluster:
        assert sum(committed.offset for committed in committed_offsets(cluster, group).values()) == 400
    tool = (f"{TOOLS}.consumer.group.ConsumerGroupCommand", "--bootstrap-server", node.bootstrap)
    assert group in java(*tool, "--list").split()
    described = java(*tool, "--describe", "--group", group)
    assert described.count(f"{group} {topic}") == 4
    reset = java(*tool, "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute")
    assert reset.count(topic) >= 4
    with Cluster(node.bootstrap) as cluster:
        assert {committed.offset for committed in committed_offsets(cluster, group).values()} == {0}
    java(*tool, "--delete", "--group", group)
    assert group not in java(*tool, "--list").split()


def test_the_console_consumer_reads_through_a_group(node: NodeProcess, java: Callable[..., str], topic: str) -> None:
    fill(node, topic, [f"v{number}" for number in range(30)], 1)
    tool = (f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", node.bootstrap, "--topic", topic)
    read = java(*tool, "--group", f"g-{topic}", "--from-beginning", "--max-messages", "30", "--timeout-ms", "30000")
    assert read == "".join(f"v{number}\n" for number in range(30))


def test_streams_with_exactly_once_counts_each_word(node: NodeProcess, java: Callable[..., str], topic: str) -> None:
    words = [("apple", "pear", "plum")[number % 3] for number in range(300)]
    fill(node, topic, words, 1)
    with Cluster(node.bootstrap) as cluster:
        create_topic(cluster, f"{topic}-counts", partitions=1)
    assert java("StreamsClient", node.bootstrap, topic, f"{topic}-counts", "300").strip() == "counted=300"
    counts = {key: int.from_bytes(value or b"", "big") for key, value in read_committed(node, f"{topic}-counts")}
    assert counts == {word.encode(): count for word, count in Counter(words).items()}


def test_kafka_transactions_lists_what_streams_left(node: NodeProcess, java: Callable[..., str], topic: str) -> None:
    fill(node, topic, ["one"] * 10, 1)
    with Cluster(node.bootstrap) as cluster:
        create_topic(cluster, f"{topic}-counts", partitions=1)
    java("StreamsClient", node.bootstrap, topic, f"{topic}-counts", "10")
    tool = (f"{TOOLS}.TransactionsCommand", "--bootstrap-server", node.bootstrap)
    listed = [line.split() for line in java(*tool, "list").splitlines()[1:]]
    mine = [row for row in listed if row and row[0].startswith(f"streams-{topic}")]
    assert mine and mine[0][3] == "CompleteCommit", listed
    described = java(*tool, "describe", "--transactional-id", mine[0][0])
    assert "CompleteCommit" in described


@pytest.mark.timeout(240)
def test_connect_carries_a_file_in_and_out(node: NodeProcess, build: Path, topic: str, tmp_path: Path) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("".join(f"line {number}\n" for number in range(100)))
    worker = tmp_path / "worker.properties"
    converter = "org.apache.kafka.connect.storage.StringConverter"
    worker.write_text(
        f"bootstrap.servers={node.bootstrap}\nkey.converter={converter}\nvalue.converter={converter}\n"
        f"offset.storage.file.filename={tmp_path / 'offsets'}\noffset.flush.interval.ms=500\nlisteners=http://127.0.0.1:0\n"
        "plugin.discovery=service_load\n"
    )
    connectors = {
        "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": topic},
        "sink": {"connector.class": "FileStreamSink", "file": str(sink), "topics": topic},
    }
    files = []
    for name, settings in connectors.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"name": name, "config": {**settings, "tasks.max": "1"}}))
        files.append(str(file))
    command = [
        "java",
        "-Xmx512m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        f"{build / 'kafka' / 'libs'}/*",
    ]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker), *files]
    with (tmp_path / "connect.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(
            lambda: sink.exists() and sink.read_text() == source.read_text(),
            f"the file came out again; see {tmp_path / 'connect.log'}",
            CONNECT_DEADLINE_S,
        )
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
