"""Measurements of coordinators: how long groups take to form, offset commits and transactions per second."""

from __future__ import annotations

import time
import uuid

from chronik.bench.histogram import Histogram
from chronik.bench.joining import connect_member, join_together, leave
from chronik.bench.result import Result, result_of
from chronik.bench.runs import TOPIC_PREFIX, TopicPlan, added, local_brokers, run_workers, topic_for
from chronik.bench.specs import CommitSpec, TransactSpec
from chronik.client.cluster import Cluster


def groups(
    cluster: Cluster, *, count: int, members: int, committers: int, warmup_s: float, duration_s: float, plan: TopicPlan
) -> Result:
    """Form `count` groups of `members` one after the other, then commit offsets with so many processes."""
    joins = Histogram()
    for _ in range(count):
        joins.record(_join_once(cluster, members))
    run_id = uuid.uuid4().hex[:8]
    bootstrap = ",".join(broker.address for broker in cluster.brokers())
    with topic_for(cluster, plan) as topic:
        specs = [
            CommitSpec(
                bootstrap=bootstrap,
                topic=topic,
                number=number,
                workers=committers,
                warmup_s=warmup_s,
                duration_s=duration_s,
                group=f"{TOPIC_PREFIX}{run_id}-{number}",
            )
            for number in range(committers)
        ]
        tallies, use = run_workers(
            specs, local_brokers(cluster), f"committing with {committers} member(s)", unit="commits"
        )
    tally = added(tallies)
    result = result_of("groups", tally, latency_of="committed", processes=committers)
    result.brokers = use
    result.figures = {
        "commits/s": result.messages_per_s,
        f"join of {members} members p50 (ms)": round(joins.percentile_ms(50), 2),
        f"join of {members} members max (ms)": round(joins.max_ms, 2),
    }
    return result


def transactions(cluster: Cluster, specs: list[TransactSpec], plan: TopicPlan) -> Result:
    """Transactions with a process per spec; their topic is set here."""
    with topic_for(cluster, plan) as topic:
        for spec in specs:
            spec.topic = topic
        what = f"committing transactions with {len(specs)} process(es)"
        tallies, use = run_workers(specs, local_brokers(cluster), what, unit="transactions")
    tally = added(tallies)
    result = result_of("transactions", tally, latency_of="transaction", processes=len(specs))
    result.brokers = use
    result.figures = {"transactions/s": round(tally.operations / (tally.duration_s or 1e-9), 1)}
    return result


def _join_once(cluster: Cluster, members: int) -> int:
    """Nanoseconds from the first join request to the last assignment, of a new group."""
    group = f"{TOPIC_PREFIX}{uuid.uuid4().hex[:12]}"
    present = [connect_member(cluster, group) for _ in range(members)]
    try:
        began = time.monotonic_ns()
        join_together(present)
        return time.monotonic_ns() - began
    finally:
        leave(present)
