"""Creating thousands of topics, three ways: many threads, some threads, one client that batches.

A create counts as failed when the cluster refuses it, and when it is not done within its timeout.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable

import msgspec

from chronik.bench.histogram import Histogram
from chronik.bench.progress import LiveProgress
from chronik.bench.result import Result, set_latency
from chronik.bench.runs import TOPIC_PREFIX, Meter, local_brokers
from chronik.bench.tally import Progress
from chronik.client.admin.topics import NewTopic, create_topics, delete_topics, list_topics
from chronik.client.cluster import Cluster, ClusterSettings
from chronik.client.connection import ConnectionSettings
from chronik.client.errors import ClientError
from chronik.client.retry import RetryPolicy
from chronik.protocol.errors import KafkaError

DELETE_BATCH = 200
TICK_S = 0.2
_NS_PER_S = 1e9


class TopicLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What to create: `count` topics by so many threads, so many topics per request."""

    bootstrap: str
    count: int = 3000
    partitions: int = 3
    replication_factor: int = -1
    threads: int = 1
    per_request: int = 1
    timeout_s: float = 60.0
    keep: bool = False


class _Creation:
    """Shared by the threads of one way: what is left to do and what came of it."""

    def __init__(self, load: TopicLoad) -> None:
        self.load = load
        self.prefix = f"{TOPIC_PREFIX}{uuid.uuid4().hex[:8]}-"
        names = [f"{self.prefix}{index:05d}" for index in range(load.count)]
        step = load.per_request
        self.todo = deque(names[start : start + step] for start in range(0, load.count, step))
        self.lock = threading.Lock()
        self.latency = Histogram()
        self.progress = Progress()
        self.kinds: dict[str, int] = {}

    def done(self, count: int, took_ns: int, errors: list[str]) -> None:
        with self.lock:
            self.latency.record(took_ns, count)
            self.progress.messages += count - len(errors)
            self.progress.errors += len(errors)
            for kind in errors:
                self.kinds[kind] = self.kinds.get(kind, 0) + 1


def create_many(cluster: Cluster, load: TopicLoad, name: str) -> Result:
    """Create topics one way and check that they are there."""
    creation = _Creation(load)
    meter = Meter(local_brokers(cluster), 0.0)
    threads = [threading.Thread(target=_work, args=(creation,), daemon=True) for _ in range(load.threads)]
    began = time.monotonic()
    with LiveProgress(f"creating {load.count} topics, {name}", "topics") as live:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                meter.tick()
                live.show(creation.progress)
                thread.join(TICK_S)
    took_s = time.monotonic() - began
    there = [topic for topic in list_topics(cluster) if topic.name.startswith(creation.prefix)]
    result = Result(name=name, duration_s=round(took_s, 3), errors=creation.progress.errors, error_kinds=creation.kinds)
    set_latency(result, creation.latency, "created")
    result.figures = {
        "topics/s": round(creation.progress.messages / took_s, 1),
        "created": creation.progress.messages,
        "listed afterwards": len(there),
        "seconds": round(took_s, 2),
    }
    result.brokers = meter.use()
    if not load.keep:
        names = [topic.name for topic in there]
        for start in range(0, len(names), DELETE_BATCH):
            delete_topics(cluster, names[start : start + DELETE_BATCH])
    return result


def _work(creation: _Creation) -> None:
    load = creation.load
    settings = ClusterSettings(
        connection=ConnectionSettings(request_timeout_s=load.timeout_s),
        retry=RetryPolicy(timeout_s=load.timeout_s, first_contact_s=load.timeout_s),
    )
    with Cluster(load.bootstrap, settings) as cluster:
        while True:
            try:
                names = creation.todo.popleft()
            except IndexError:
                return
            began = time.monotonic_ns()
            errors = _attempt(lambda names=names: _create(cluster, load, names), len(names))  # type: ignore[misc]
            took_ns = time.monotonic_ns() - began
            if took_ns > load.timeout_s * _NS_PER_S:
                errors = ["took longer than its timeout"] * len(names)
            creation.done(len(names), took_ns, errors)


def _create(cluster: Cluster, load: TopicLoad, names: list[str]) -> list[str]:
    topics = [
        NewTopic(name=name, partitions=load.partitions, replication_factor=load.replication_factor) for name in names
    ]
    results = create_topics(cluster, topics, timeout_ms=round(load.timeout_s * 1000))
    return [result.error.code.name for result in results if result.error is not None]


def _attempt(create: Callable[[], list[str]], count: int) -> list[str]:
    """The errors of a create; a connection that fails takes all of its topics with it."""
    try:
        return create()
    except KafkaError as error:
        return [error.code.name] * count
    except ClientError as error:
        return [type(error).__name__] * count
