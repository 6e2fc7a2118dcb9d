"""How cost grows: with connections, topics, readers of one topic, and the size of a log."""

from __future__ import annotations

import random
import time

from chronik.bench import runs, topic_creation
from chronik.bench.batches import BatchMaker
from chronik.bench.broker_processes import BrokerProcesses
from chronik.bench.specs import SendSpec
from chronik.client.admin.topics import NewTopic, create_topics, delete_topics
from chronik.client.cluster import Cluster
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import end_offsets
from chronik.client.producer import Producer, ProducerSettings
from chronik.protocol.codec import encode_request
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chronik.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from side_by_side import crowd
from side_by_side.java_tools import ToolFailed
from side_by_side.measures import Figures, Measure, fresh_topic
from side_by_side.systems import System, settle

PRODUCE_VERSION = 9
FETCH_VERSION = 12
TIMEOUT_MS = 30_000
FETCH_BYTES = 1024 * 1024
MESSAGE_BYTES = 1024
WARMUP_S = 1.0
SECONDS = 6.0
IDLE_SHARE = 0.2
IDLE_LOOK_S = 0.5
IDLE_WAIT_MAX_S = 30.0
"""A measurement begins when the brokers use less than this share of a core, or after this time."""

TOPICS_PER_CONNECTION = 10
READ_MB = 200
SEEKS = 64
FIRST_WRITES_PER_REQUEST = 100
FIRST_BYTES = 5000


def connections(count: int) -> Measure:
    """So many connections write one message each at a time, acks=1, to one partition."""

    def measure(system: System, scale: float) -> Figures:
        with fresh_topic(system, 1) as topic:
            figures = _crowd(system, [[_produce_frame(topic)]] * count, scale)
            _check_written(system, [topic], figures)
            return figures

    return measure


def topics(count: int) -> Measure:
    """Ten connections write one message each at a time, in turn to so many topics that have been written to."""

    def measure(system: System, scale: float) -> Figures:
        names = [f"{runs.TOPIC_PREFIX}grow-{index:04}" for index in range(count)]
        with Cluster(system.bootstrap) as cluster:
            for first in range(0, count, topic_creation.DELETE_BATCH):
                part = names[first : first + topic_creation.DELETE_BATCH]
                create_topics(cluster, [NewTopic(name=name, partitions=1, replication_factor=1) for name in part])
            try:
                _write_first(cluster, names)
                settle()
                frames = [_produce_frame(name) for name in names]
                shares = [frames[start::TOPICS_PER_CONNECTION] or frames for start in range(TOPICS_PER_CONNECTION)]
                figures = _crowd(system, shares, scale)
                _check_written(system, names, figures)
                return figures
            finally:
                for first in range(0, count, topic_creation.DELETE_BATCH):
                    delete_topics(cluster, names[first : first + topic_creation.DELETE_BATCH])

    return measure


def readers(count: int) -> Measure:
    """So many readers of one topic that fits in memory, a megabyte a fetch."""

    def measure(system: System, scale: float) -> Figures:
        with fresh_topic(system, 1) as topic:
            end = _fill(system, topic, READ_MB)
            source = random.Random(count)
            starts = range(0, max(end - 2000, 1), 1000)
            requests = []
            for _ in range(count):
                first = source.randrange(len(starts))
                requests.append([_fetch_frame(topic, at) for at in [*starts[first:], *starts[:first]]])
            figures = _crowd(system, requests, scale)
            _check_read(figures)
            return figures

    return measure


def log_size(gigabytes: float) -> Measure:
    """A log of this size: fetches anywhere in it, and how long the node takes to come back with it."""

    def measure(system: System, scale: float) -> Figures:
        with fresh_topic(system, 1) as topic:
            end = _fill(system, topic, round(gigabytes * 1000 * scale))
            source = random.Random(1)
            places = [source.randrange(max(end - 2 * FETCH_BYTES // MESSAGE_BYTES, 1)) for _ in range(SEEKS)]
            figures = _crowd(system, [[_fetch_frame(topic, at) for at in places]], scale)
            _check_read(figures)
            return figures | {"restart_s": _restart(system, topic)}

    return measure


def _write_first(cluster: Cluster, topics: list[str]) -> None:
    """The first records of each topic: it has its leader, its files and an entry in its indexes before time is taken.

    Kafka maps its indexes into memory, and the first entry of each, made when more than FIRST_BYTES were written, costs
    it milliseconds.
    """
    producer = Producer(cluster, ProducerSettings(acks=1))
    for first in range(0, len(topics), FIRST_WRITES_PER_REQUEST):
        for value in (bytes(FIRST_BYTES), b"second"):
            for topic in topics[first : first + FIRST_WRITES_PER_REQUEST]:
                producer.send(topic, value, partition=0)
            producer.flush()


def _crowd(system: System, requests: list[list[bytes]], scale: float) -> Figures:
    _wait_until_idle(system)
    watched = BrokerProcesses(system.pids)
    outcome = crowd.run(("127.0.0.1", system.client_port(1)), requests, WARMUP_S, SECONDS * scale)
    watched.sample()
    # CPU counts from before the warm-up, so answers do too, at the rate that was measured.
    answers = outcome.answers / outcome.seconds * (outcome.seconds + WARMUP_S)
    return {
        "requests": outcome.answers,
        "requests_per_s": outcome.answers / outcome.seconds,
        "mb_per_s": outcome.answer_bytes / outcome.seconds / 1e6,
        "p50_ms": outcome.latency.percentile_ms(50),
        "p99_ms": outcome.latency.percentile_ms(99),
        "cpu_us_per_request": watched.cpu_s() / max(answers, 1) * 1e6,
        "load_mb": watched.peak_mb(),
    }


def _wait_until_idle(system: System) -> None:
    """Creating, filling and deleting topics leaves work behind, which is not what is measured here."""
    deadline = time.monotonic() + IDLE_WAIT_MAX_S
    while time.monotonic() < deadline:
        watched = BrokerProcesses(system.pids)
        time.sleep(IDLE_LOOK_S)
        if watched.cpu_s() < IDLE_SHARE * IDLE_LOOK_S:
            return


def _check_written(system: System, topics: list[str], figures: Figures) -> None:
    """Answers are not decoded while time is taken; what is in the logs tells whether they were good."""
    with Cluster(system.bootstrap) as cluster:
        written = sum(end_offsets(cluster, [TopicPartition(name, 0) for name in topics]).values())
    if written < figures["requests"]:
        raise ToolFailed(f"{figures['requests']:.0f} writes were answered, {written} are in the logs")


def _check_read(figures: Figures) -> None:
    mean = figures["mb_per_s"] * 1e6 / max(figures["requests_per_s"], 1e-9)
    if mean < FETCH_BYTES / 2:
        raise ToolFailed(f"fetches of {FETCH_BYTES} bytes were answered with {mean:.0f} on average")


def _restart(system: System, topic: str) -> float:
    """Stop the node cleanly, start it again, and wait until it serves the topic."""
    system.stop_node(1)
    began = time.monotonic()
    system.start_node(1)
    system.wait_for_topic(topic)
    return time.monotonic() - began


def _fill(system: System, topic: str, megabytes: int) -> int:
    """The end offset after writing so much."""
    spec = SendSpec(bootstrap=system.bootstrap, topic=topic, message_bytes=MESSAGE_BYTES)
    runs.fill_topic(spec, megabytes)
    settle()
    return megabytes * 1_000_000 // MESSAGE_BYTES


def _produce_frame(topic: str) -> bytes:
    batch = BatchMaker(MESSAGE_BYTES, 1, seed=1).make(1, time.time_ns() // 1_000_000)
    data = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=1, timeout_ms=TIMEOUT_MS, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    return b"".join(encode_request(request, PRODUCE_VERSION, 1, "bench"))


def _fetch_frame(topic: str, offset: int) -> bytes:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=FETCH_BYTES, topics=[FetchTopic(topic=topic, partitions=[part])]
    )
    return b"".join(encode_request(request, FETCH_VERSION, 1, "bench"))
