"""What is measured, as data. One base case, one thing changed at a time; then everything that is not throughput."""

from __future__ import annotations

from dataclasses import dataclass, replace

from side_by_side import growth, measures
from side_by_side.measures import Measure
from side_by_side.systems import Environment

ONE_OS = Environment(1, "os")
ONE_FSYNC = Environment(1, "fsync")
THREE_OS = Environment(3, "os")
THREE_FSYNC = Environment(3, "fsync")
ENVIRONMENTS = (ONE_OS, THREE_OS, ONE_FSYNC, THREE_FSYNC)

JAVA = "Kafka's performance tools"
RDKAFKA = "librdkafka"
OWN = "chronik bench"

QUICK_SCALE = 0.2


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a row that the report shows."""

    key: str
    title: str
    unit: str
    higher_is_better: bool = False


THROUGHPUT = Figure("mb_per_s", "", "MB/s", higher_is_better=True)
P50 = Figure("p50_ms", "p50", "ms")
P99 = Figure("p99_ms", "p99", "ms")
CPU_IN = Figure("cpu_s_per_gb_in", "broker CPU per GB in", "s")
CPU_OUT = Figure("cpu_s_per_gb_out", "broker CPU per GB out", "s")
LOAD_MEMORY = Figure("load_mb", "broker memory under load, all nodes", "MB")


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    environment: Environment
    client: str
    figures: tuple[Figure, ...]
    measure: Measure
    quick: bool = False
    rounds: int | None = None
    """How often at most; None as often as the run says."""


def produce_rows() -> list[Row]:
    changes: list[tuple[str, str, Measure, bool]] = [
        ("100b", "100 B messages", measures.produce(3_500_000, 100), True),
        ("10k", "10 KiB messages", measures.produce(45_000, 10_240), False),
        ("linger0", "linger 0", measures.produce(450_000, properties={"linger.ms": "0"}), False),
        ("acks1", "acks=1", measures.produce(450_000, properties={"acks": "1"}), True),
        ("acks1-100b", "acks=1, 100 B", measures.produce(3_500_000, 100, properties={"acks": "1"}), False),
        ("plain", "idempotence off", measures.produce(450_000, properties={"enable.idempotence": "false"}), False),
        ("lz4", "lz4", measures.produce(450_000, properties={"compression.type": "lz4"}), False),
        ("100p", "100 partitions", measures.produce(450_000, partitions=100), False),
    ]
    base = Row(
        "produce-base",
        "Produce, base case",
        ONE_OS,
        JAVA,
        (THROUGHPUT, P50, P99, CPU_IN, LOAD_MEMORY),
        measures.produce(450_000),
        quick=True,
    )
    changed = [
        Row(f"produce-{key}", f"Produce, {title}", ONE_OS, JAVA, (THROUGHPUT, P99), measure, quick=quick)
        for key, title, measure, quick in changes
    ]
    linger = {"linger.ms": "5", "acks": "all", "enable.idempotence": "true"}
    foreign = [
        Row(
            "produce-rdkafka",
            "Produce, base case",
            ONE_OS,
            RDKAFKA,
            (THROUGHPUT,),
            measures.rdkafka("produce", 1_200_000, settings=linger),
            quick=True,
        ),
        Row(
            "produce-10",
            "Produce, 10 producers",
            ONE_OS,
            RDKAFKA,
            (THROUGHPUT,),
            measures.rdkafka("produce", 1_200_000, clients=10, settings=linger),
        ),
    ]
    return [base, *changed, *foreign]


def consume_rows() -> list[Row]:
    return [
        Row(
            "consume",
            "Consume from the start",
            ONE_OS,
            JAVA,
            (THROUGHPUT, CPU_OUT),
            measures.consume(2_000_000),
            quick=True,
        ),
        Row(
            "consume-100b",
            "Consume from the start, 100 B",
            ONE_OS,
            JAVA,
            (THROUGHPUT,),
            measures.consume(8_000_000, 100),
        ),
        Row(
            "consume-rdkafka",
            "Consume from the start",
            ONE_OS,
            RDKAFKA,
            (THROUGHPUT,),
            measures.rdkafka("consume", 2_000_000),
            quick=True,
        ),
        Row(
            "consume-10",
            "Consume, 10 consumers of one group, 10 partitions",
            ONE_OS,
            RDKAFKA,
            (THROUGHPUT,),
            measures.rdkafka("consume", 2_000_000, clients=10, partitions=10),
        ),
        Row(
            "consume-tail",
            "Write and read at the end of the log together",
            ONE_OS,
            RDKAFKA,
            (THROUGHPUT,),
            measures.rdkafka("tail", 800_000, settings={"linger.ms": "5"}),
        ),
    ]


def latency_rows() -> list[Row]:
    single = {"linger.ms": "0", "acks": "1"}
    return [
        Row("one-in-flight", "One write at a time, acks=1", ONE_OS, OWN, (P50, P99), measures.one_in_flight(1), True),
        Row(
            "one-in-flight-rdkafka",
            "One write at a time, acks=1",
            ONE_OS,
            RDKAFKA,
            (P50, P99),
            measures.rdkafka("one-in-flight", settings=single),
        ),
        Row(
            "end-to-end",
            "End to end at 1000 messages/s",
            ONE_OS,
            RDKAFKA,
            (P50, P99),
            measures.rdkafka("end-to-end", settings={"linger.ms": "0"}),
            quick=True,
        ),
    ]


def coordinator_rows() -> list[Row]:
    return [
        Row(
            "groups",
            "Groups",
            ONE_OS,
            OWN,
            (
                Figure("join_ms", "ten members join", "ms"),
                Figure("commits_per_s", "offset commits", "/s", higher_is_better=True),
            ),
            measures.groups,
            quick=True,
        ),
        Row(
            "transactions",
            "Transactions of ten messages",
            ONE_OS,
            OWN,
            (Figure("transactions_per_s", "", "/s", higher_is_better=True), P99),
            measures.transactions,
            quick=True,
        ),
    ]


def cluster_rows() -> list[Row]:
    created = Figure("topics_per_s", "", "topics/s", higher_is_better=True)
    gaps = (
        Figure("leader_gap_s", "leader", "s"),
        Figure("controller_gap_s", "leader that is the controller", "s"),
        Figure("metadata_gap_s", "controller, metadata writes", "s"),
    )
    failed = Figure("failed", "failed creates", "")
    return [
        Row(
            "produce-3",
            "Produce, base case, three replicas",
            THREE_OS,
            JAVA,
            (THROUGHPUT, P99, CPU_IN),
            measures.produce(200_000),
            quick=True,
        ),
        Row(
            "produce-3-100b",
            "Produce, 100 B, three replicas",
            THREE_OS,
            JAVA,
            (THROUGHPUT, P99),
            measures.produce(1_500_000, 100),
        ),
        Row(
            "produce-3-acks1",
            "Produce, acks=1, three replicas",
            THREE_OS,
            JAVA,
            (THROUGHPUT, P99),
            measures.produce(200_000, properties={"acks": "1"}),
        ),
        Row(
            "failover",
            "kill -9, writes resume",
            THREE_OS,
            OWN,
            gaps,
            measures.failover,
            quick=True,
        ),
        Row(
            "failover-9000",
            "kill -9 with 9,000 replicas on the node, writes resume",
            THREE_OS,
            OWN,
            gaps,
            measures.failover_of_many,
            rounds=1,
        ),
        Row(
            "topics-100",
            "3000 topics × 3 × 3, 100 threads",
            THREE_OS,
            OWN,
            (created, failed),
            measures.topics(100, 1),
            rounds=1,
        ),
        Row(
            "topics-10",
            "3000 topics × 3 × 3, 10 threads",
            THREE_OS,
            OWN,
            (created, failed, Figure("memory_mb", "memory of the largest node with them", "MB")),
            measures.topics(10, 1),
            quick=True,
            rounds=1,
        ),
        Row(
            "topics-batch",
            "3000 topics × 3 × 3, one client, 100 per request",
            THREE_OS,
            OWN,
            (created, failed),
            measures.topics(1, 100),
            rounds=1,
        ),
        Row(
            "produce-fsync",
            "Produce, base case, synced",
            ONE_FSYNC,
            JAVA,
            (THROUGHPUT, P99),
            measures.produce(150_000),
            quick=True,
        ),
        Row(
            "one-in-flight-fsync",
            "One write at a time, acks=all, synced",
            ONE_FSYNC,
            OWN,
            (P50, P99),
            measures.one_in_flight(-1),
        ),
        Row(
            "produce-3-fsync",
            "Produce, base case, three replicas, synced",
            THREE_FSYNC,
            JAVA,
            (THROUGHPUT, P99),
            measures.produce(60_000),
        ),
    ]


def growth_rows() -> list[Row]:
    """How cost grows. Rows that take a minute or more to prepare are measured in one round."""
    rate = Figure("requests_per_s", "requests", "/s", higher_is_better=True)
    cpu = Figure("cpu_us_per_request", "broker CPU per request", "µs")
    restart = Figure("restart_s", "restart until it serves", "s")
    rows = [
        Row(
            f"connections-{count}",
            f"{count} connections that write",
            ONE_OS,
            OWN,
            (rate, cpu),
            growth.connections(count),
        )
        for count in (1, 10, 100, 1000)
    ]
    rows += [
        Row(
            f"write-topics-{count}",
            f"{count} topics written to",
            ONE_OS,
            OWN,
            (rate, cpu),
            growth.topics(count),
            rounds=1 if count == 3000 else None,
        )
        for count in (1, 100, 3000)
    ]
    rows += [
        Row(f"readers-{count}", f"{count} readers of one topic", ONE_OS, OWN, (THROUGHPUT, cpu), growth.readers(count))
        for count in (1, 10, 100)
    ]
    logs = [
        Row(f"log-{size}g", f"Reads anywhere in {size} GB", ONE_OS, OWN, (P50, P99, restart), growth.log_size(size))
        for size in (1, 10)
    ]
    return [*rows, *(replace(row, rounds=1) for row in logs)]


ROWS: tuple[Row, ...] = (
    Row(
        "start",
        "Start",
        ONE_OS,
        OWN,
        (Figure("start_s", "until the first write is acknowledged", "s"), Figure("idle_mb", "memory idle", "MB")),
        measures.start,
        quick=True,
    ),
    *produce_rows(),
    *consume_rows(),
    *latency_rows(),
    *coordinator_rows(),
    *growth_rows(),
    *cluster_rows(),
)
