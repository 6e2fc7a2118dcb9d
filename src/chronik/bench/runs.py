"""Runs of worker processes against a cluster: the topic they use, the brokers that are watched, the result."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from chronik.bench.broker_processes import BrokerProcesses, listening_pids
from chronik.bench.fleet import Fleet
from chronik.bench.progress import LiveProgress
from chronik.bench.result import BrokerUse, Result, result_of
from chronik.bench.specs import AnySpec, ReadSpec, SendSpec
from chronik.bench.tally import Progress, Tally
from chronik.client.admin.topics import BROKER_DEFAULT, create_topic, delete_topics
from chronik.client.cluster import Cluster
from chronik.client.offsets import partitions_of

TOPIC_PREFIX = "chronik-bench-"
FILL_BATCH_BYTES = 256 * 1024
FILL_DEADLINE_S = 600.0


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The topic of a run: a new one that is deleted afterwards, or one that is there and stays."""

    name: str | None = None
    partitions: int = 1
    replication_factor: int = BROKER_DEFAULT
    configs: dict[str, str] = {}
    keep: bool = False


@contextmanager
def topic_for(cluster: Cluster, plan: TopicPlan) -> Iterator[str]:
    """The topic of a run, with leaders for all partitions."""
    if plan.name is not None:
        cluster.topic(plan.name)
        yield plan.name
        return
    name = f"{TOPIC_PREFIX}{uuid.uuid4().hex[:12]}"
    create_topic(
        cluster,
        name,
        partitions=plan.partitions,
        replication_factor=plan.replication_factor,
        configs=plan.configs,
    )
    try:
        for place in partitions_of(cluster, name):
            cluster.leader(place)
        yield name
    finally:
        if not plan.keep:
            delete_topics(cluster, [name])


def local_brokers(cluster: Cluster) -> set[int]:
    """The processes of the cluster's brokers that run on this machine."""
    return listening_pids((broker.host, broker.port) for broker in cluster.brokers())


class Meter:
    """Watches local broker processes during the measurement, which begins when the warm-up is over."""

    def __init__(self, pids: set[int], warmup_s: float) -> None:
        self._pids = pids
        self._begin_at = time.monotonic() + warmup_s
        self._processes: BrokerProcesses | None = None

    def tick(self) -> None:
        if self._processes is None:
            if time.monotonic() >= self._begin_at:
                self._processes = BrokerProcesses(self._pids)
        else:
            self._processes.sample()

    def use(self) -> BrokerUse | None:
        if not self._pids or self._processes is None:
            return None
        self._processes.sample()
        return BrokerUse(len(self._pids), round(self._processes.cpu_s(), 3), round(self._processes.peak_mb(), 1))


def run_workers(
    specs: Sequence[AnySpec], pids: set[int], what: str, *, unit: str = "messages"
) -> tuple[list[Tally], BrokerUse | None]:
    """Run workers together; their tallies in order, and what the local brokers used meanwhile."""
    with Fleet(specs) as fleet, LiveProgress(what, unit) as live:
        fleet.wait_ready()
        meter = Meter(pids, max(spec.warmup_s for spec in specs))

        def on_tick(progress: Progress) -> None:
            meter.tick()
            live.show(progress)

        tallies = fleet.run(on_tick)
        return tallies, meter.use()


def added(tallies: Sequence[Tally]) -> Tally:
    together = Tally()
    for tally in tallies:
        together.add(tally)
    return together


def shares(spec: SendSpec, producers: int) -> list[SendSpec]:
    """The same load divided among processes."""
    rate = spec.rate / producers if spec.rate is not None else None
    return [msgspec.structs.replace(spec, number=number, workers=producers, rate=rate) for number in range(producers)]


def produce(cluster: Cluster, spec: SendSpec, producers: int, plan: TopicPlan) -> Result:
    """Write with so many processes for the time of the spec."""
    with topic_for(cluster, plan) as topic:
        specs = shares(msgspec.structs.replace(spec, topic=topic), producers)
        tallies, use = run_workers(specs, local_brokers(cluster), f"writing with {producers} process(es)")
    result = result_of("produce", added(tallies), latency_of="acknowledged", processes=producers)
    result.brokers = use
    return result


def consume(cluster: Cluster, spec: ReadSpec, consumers: int, plan: TopicPlan, fill: SendSpec, fill_mb: int) -> Result:
    """Read with so many processes; a new topic is filled first."""
    with topic_for(cluster, plan) as topic:
        if plan.name is None:
            fill_topic(msgspec.structs.replace(fill, topic=topic), fill_mb)
        specs = [
            msgspec.structs.replace(spec, topic=topic, number=number, workers=consumers) for number in range(consumers)
        ]
        tallies, use = run_workers(specs, local_brokers(cluster), f"reading with {consumers} process(es)")
    result = result_of("consume", added(tallies), latency_of="fetched", processes=consumers)
    result.brokers = use
    return result


def consume_at_end(
    cluster: Cluster, read: ReadSpec, consumers: int, send: SendSpec, producers: int, plan: TopicPlan, name: str
) -> Result:
    """Write at a rate and read at the end of the log at the same time; the latency is end to end."""
    with topic_for(cluster, plan) as topic:
        readers: list[AnySpec] = [
            msgspec.structs.replace(read, topic=topic, from_start=False, number=number, workers=consumers)
            for number in range(consumers)
        ]
        senders = shares(msgspec.structs.replace(send, topic=topic, stamp=True), producers)
        what = f"writing with {producers}, reading with {consumers} process(es)"
        tallies, use = run_workers([*readers, *senders], local_brokers(cluster), what)
    read_tally, sent_tally = added(tallies[:consumers]), added(tallies[consumers:])
    read_tally.errors += sent_tally.errors
    read_tally.unsent += sent_tally.unsent
    read_tally.error_kinds.update(sent_tally.error_kinds)
    result = result_of(name, read_tally, latency_of="end to end", processes=consumers)
    result.brokers = use
    result.figures = {
        "acknowledged p50 (ms)": round(sent_tally.latency.percentile_ms(50), 4),
        "acknowledged p99 (ms)": round(sent_tally.latency.percentile_ms(99), 4),
    }
    return result


def fill_topic(spec: SendSpec, megabytes: int) -> None:
    """Write so many megabytes as fast as possible, for readers to read."""
    total = max(megabytes * 1_000_000 // max(spec.message_bytes, 1), 1)
    spec = msgspec.structs.replace(
        spec,
        total=total,
        rate=None,
        warmup_s=0.0,
        duration_s=FILL_DEADLINE_S,
        batch_bytes=max(spec.batch_bytes, FILL_BATCH_BYTES),
    )
    run_workers([spec], set(), f"filling the topic with {megabytes} MB")
