"""One function per kind of measurement: a running system and the scale of the run in, figures out.

Every measurement has a topic of its own, which is deleted afterwards. CPU and memory are those of the broker
processes, from before the client starts until after it ended.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from chronik.bench import group_load, runs, topic_creation
from chronik.bench.broker_processes import BrokerProcesses
from chronik.bench.failover import Failover
from chronik.bench.result import Result
from chronik.bench.specs import ReadSpec, SendSpec, TransactSpec
from chronik.client.admin.topics import create_topic, delete_topics, list_topics
from chronik.client.cluster import Cluster
from chronik.client.offsets import partitions_of
from side_by_side import java_tools
from side_by_side.java_tools import ToolFailed
from side_by_side.systems import System, settle

Figures = dict[str, float]
Measure = Callable[[System, float], Figures]
"""Takes the system and the scale: 1 for a full run (about 15 s), less for a quick one."""

TIMEOUT_S = 300.0
IDLE_S = 4.0
WARM_UP_MIN_S = 4.0
GB = 1e9
BASE_PROPERTIES = {"linger.ms": "5", "acks": "all"}
END_TO_END_RATE = 1000.0


@contextmanager
def fresh_topic(system: System, partitions: int) -> Iterator[str]:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with Cluster(system.bootstrap) as cluster:
        create_topic(cluster, name, partitions=partitions, replication_factor=system.environment.nodes)
        for place in partitions_of(cluster, name):
            cluster.leader(place)
        settle()
        try:
            yield name
        finally:
            delete_topics(cluster, [name])


def produce(messages: int, size: int = 1024, partitions: int = 1, properties: dict[str, str] | None = None) -> Measure:
    """Kafka's ProducerPerformance."""

    def measure(system: System, scale: float) -> Figures:
        count = round(messages * scale)
        with fresh_topic(system, partitions) as topic:
            watched = BrokerProcesses(system.pids)
            settings = {**BASE_PROPERTIES, **(properties or {})}
            figures = java_tools.produce(system.bootstrap, topic, count, size, settings)
            return figures | _broker(watched, count * size, "in")

    return measure


def consume(messages: int, size: int = 1024) -> Measure:
    """Kafka's ConsumerPerformance, over a topic that was filled before."""

    def measure(system: System, scale: float) -> Figures:
        count = round(messages * scale)
        with fresh_topic(system, 1) as topic:
            _fill(system, topic, count, size)
            watched = BrokerProcesses(system.pids)
            figures = java_tools.consume(system.bootstrap, topic, count)
            return figures | _broker(watched, count * size, "out")

    return measure


def rdkafka(
    kind: str,
    messages: int = 0,
    *,
    size: int = 1024,
    clients: int = 1,
    partitions: int = 1,
    settings: dict[str, str] | None = None,
) -> Measure:
    """A load of librdkafka."""

    def measure(system: System, scale: float) -> Figures:
        count = round(messages * scale)
        with fresh_topic(system, partitions) as topic:
            if kind == "consume":
                _fill(system, topic, count, size)
            load = {
                "bootstrap": system.bootstrap,
                "topic": topic,
                "messages": count // clients * clients,
                "size": size,
                "clients": clients,
                "rate": END_TO_END_RATE,
                "duration_s": 10.0 * scale,
                "settings": settings or {},
            }
            watched = BrokerProcesses(system.pids)
            return _rdkafka(kind, load) | _broker(watched, count * size, "out" if kind == "consume" else "in")

    return measure


def one_in_flight(acks: int) -> Measure:
    """`chronik bench latency --one-in-flight`: next to nothing of a client in the way."""

    def measure(system: System, scale: float) -> Figures:
        with fresh_topic(system, 1) as topic, Cluster(system.bootstrap) as cluster:
            spec = SendSpec(
                bootstrap=system.bootstrap,
                topic=topic,
                batch_bytes=1,
                acks=acks,
                idempotent=False,
                in_flight=1,
                warmup_s=2.0,
                duration_s=10.0 * scale,
            )
            result = runs.produce(cluster, spec, 1, runs.TopicPlan(name=topic))
        _no_errors(result.errors)
        return {"p50_ms": result.p50_ms, "p99_ms": result.p99_ms, "messages_per_s": result.messages_per_s}

    return measure


def warm_up(system: System, scale: float) -> None:
    """Write and read for a while before anything is measured: a JVM compiles, caches fill. For both systems."""
    with fresh_topic(system, 2) as topic, Cluster(system.bootstrap) as cluster:
        seconds = max(12.0 * scale, WARM_UP_MIN_S)
        send = SendSpec(bootstrap=system.bootstrap, topic=topic, duration_s=seconds)
        read = ReadSpec(bootstrap=system.bootstrap, topic=topic, duration_s=seconds)
        runs.consume_at_end(cluster, read, 1, send, 1, runs.TopicPlan(name=topic), "warm-up")


def start(system: System, scale: float) -> Figures:
    """How long the start took, and the memory some seconds later."""
    time.sleep(IDLE_S)
    return {"start_s": system.start_s, "idle_mb": system.memory_mb()}


def groups(system: System, scale: float) -> Figures:
    with Cluster(system.bootstrap) as cluster:
        plan = runs.TopicPlan(partitions=10, replication_factor=system.environment.nodes)
        result = group_load.groups(
            cluster, count=1, members=10, committers=1, warmup_s=2.0, duration_s=10.0 * scale, plan=plan
        )
    _no_errors(result.errors)
    return {
        "join_ms": result.figures["join of 10 members p50 (ms)"],
        "commits_per_s": result.figures["commits/s"],
        "p99_ms": result.p99_ms,
    }


def transactions(system: System, scale: float) -> Figures:
    with Cluster(system.bootstrap) as cluster:
        spec = TransactSpec(
            bootstrap=system.bootstrap,
            topic="",
            transactional_id=f"bench-{uuid.uuid4().hex[:8]}",
            warmup_s=2.0,
            duration_s=10.0 * scale,
        )
        plan = runs.TopicPlan(replication_factor=system.environment.nodes)
        result = group_load.transactions(cluster, [spec], plan)
    _no_errors(result.errors)
    return {"transactions_per_s": result.figures["transactions/s"], "p99_ms": result.p99_ms}


@contextmanager
def many_topics(system: System, scale: float, threads: int, per_request: int) -> Iterator[Result]:
    """3000 topics of three partitions, a replica on every node: what came of creating them, and they for a while."""
    load = topic_creation.TopicLoad(
        bootstrap=system.bootstrap,
        count=round(3000 * scale),
        replication_factor=system.environment.nodes,
        threads=threads,
        per_request=per_request,
        keep=True,
    )
    with Cluster(system.bootstrap) as cluster:
        try:
            yield topic_creation.create_many(cluster, load, f"{threads} threads, {per_request} per request")
        finally:
            made = [t.name for t in list_topics(cluster) if t.name.startswith(runs.TOPIC_PREFIX)]
            for first in range(0, len(made), topic_creation.DELETE_BATCH):
                delete_topics(cluster, made[first : first + topic_creation.DELETE_BATCH])


def topics(threads: int, per_request: int) -> Measure:
    """3000 topics of three partitions, created one way; the memory of the largest node afterwards."""

    def measure(system: System, scale: float) -> Figures:
        with many_topics(system, scale, threads, per_request) as result:
            time.sleep(IDLE_S)
            memory = system.memory_mb()
        return {"topics_per_s": result.figures["topics/s"], "failed": result.errors, "memory_mb": memory}

    return measure


def failover(system: System, scale: float) -> Figures:
    """kill -9 of a partition's leader, and of the controller that leads a partition."""
    run = Failover(system.bootstrap, system)
    figures: Figures = {}
    try:
        run.prepare()
        for of_controller, name in ((False, "leader"), (True, "controller")):
            gap = run.leader_gap(of_controller=of_controller, with_signal=signal.SIGKILL)
            if gap is None:
                continue
            figures[f"{name}_gap_s"] = gap.write_gap_s
            if gap.metadata_gap_s is not None:
                figures["metadata_gap_s"] = gap.metadata_gap_s
            run.recover(gap.node_id)
    finally:
        run.close()
    return figures


def failover_of_many(system: System, scale: float) -> Figures:
    """The same with a replica of each of 9,000 partitions on the node that is killed."""
    with many_topics(system, scale, threads=1, per_request=100) as created:
        _no_errors(created.errors)
        return failover(system, scale)


def _rdkafka(kind: str, load: dict[str, object]) -> Figures:
    command = [sys.executable, "-m", "side_by_side.rdkafka_client", kind, msgspec.json.encode(load).decode()]
    here = Path(__file__).parent.parent
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=here)
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"the librdkafka client did not end within {TIMEOUT_S:g} s") from error
    if ended.returncode:
        raise ToolFailed(ended.stderr[-1000:])
    return msgspec.json.decode(ended.stdout, type=Figures)


def _fill(system: System, topic: str, messages: int, size: int) -> None:
    spec = SendSpec(bootstrap=system.bootstrap, topic=topic, message_bytes=size)
    # A little more than is read: the tools stop at a count, and must not wait for a message that never comes.
    runs.fill_topic(spec, -(-messages * size // 1_000_000) + 1)
    settle()


def _broker(watched: BrokerProcesses, moved_bytes: int, direction: str) -> Figures:
    watched.sample()
    return {f"cpu_s_per_gb_{direction}": watched.cpu_s() / (moved_bytes / GB or 1), "load_mb": watched.peak_mb()}


def _no_errors(errors: int) -> None:
    if errors:
        raise ToolFailed(f"{errors} operations failed")
