"""`chronik bench`: measure a cluster, this one or any other that speaks Kafka's protocol."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from chronik.bench.fleet import WorkerFailed
from chronik.bench.result import Result, rows_of
from chronik.bench.runs import TOPIC_PREFIX, TopicPlan
from chronik.bench.runs import consume as run_consume
from chronik.bench.runs import consume_at_end as run_consume_at_end
from chronik.bench.runs import produce as run_produce
from chronik.bench.specs import ReadSpec, SendSpec, TransactSpec
from chronik.cli.output import show_json, show_table
from chronik.cli.session import AsJson, Bootstrap, bootstrap_address, fail, open_cluster, settings_of
from chronik.client.cluster import Cluster

app = App(name="bench", help="Measure throughput, latency, topic creation, groups, transactions and failover.")

Acks = Literal["all", "1", "0"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
_ACKS = {"all": -1, "1": 1, "0": 0}

Topic = Annotated[str | None, Parameter(help="A topic that is there; else one is made, and deleted afterwards.")]
Partitions = Annotated[int, Parameter(help="Partitions of the topic that is made.")]
Replicas = Annotated[int, Parameter(help="Its replication factor; default the broker's.")]
Config = Annotated[tuple[str, ...], Parameter(help="A setting of the topic that is made, NAME=VALUE.")]
Keep = Annotated[bool, Parameter(negative="", help="Do not delete what was made.")]
Size = Annotated[int, Parameter(help="Bytes of a message.")]
Batch = Annotated[int, Parameter(help="Bytes of a batch.")]
Linger = Annotated[float, Parameter(help="How long a batch waits to fill, in ms. Only matters with --rate.")]
Compression = Annotated[Codec, Parameter(help="Compression of batches.")]
InFlight = Annotated[int, Parameter(help="Requests under way per producer and broker.")]
Rate = Annotated[float | None, Parameter(help="Messages/s of all producers together; default as fast as possible.")]
Warmup = Annotated[float, Parameter(help="Seconds before measuring starts.")]
Duration = Annotated[float, Parameter(help="Seconds to measure.")]


@app.command
def produce(
    *,
    message_size: Size = 1024,
    batch_size: Batch = 16_384,
    linger_ms: Linger = 5.0,
    acks: Annotated[Acks, Parameter(help="Who has to have a batch before it is acknowledged.")] = "all",
    idempotence: Annotated[bool, Parameter(help="Sequence numbers; on with acks=all unless --no-idempotence.")] = True,
    compression: Compression = "none",
    in_flight: InFlight = 5,
    rate: Rate = None,
    producers: Annotated[int, Parameter(help="Processes that write.")] = 1,
    partitions: Partitions = 1,
    replication_factor: Replicas = -1,
    config: Config = (),
    topic: Topic = None,
    keep: Keep = False,
    warmup: Warmup = 1.0,
    duration: Duration = 10.0,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Write as fast as possible, or at a rate.

    Example: chronik bench produce --message-size 100 --acks 1 --producers 2 --duration 15

    With --rate a latency counts from when a message was due, not from when it could be sent.
    """
    spec = SendSpec(
        bootstrap=bootstrap_address(bootstrap),
        topic="",
        message_bytes=message_size,
        batch_bytes=batch_size,
        linger_ms=linger_ms,
        acks=_ACKS[acks],
        idempotent=idempotence and acks == "all",
        compression=compression,
        in_flight=in_flight,
        rate=rate,
        warmup_s=warmup,
        duration_s=duration,
    )
    _at_least_one(producers, "--producers")
    with _measured(bootstrap) as cluster:
        result = run_produce(cluster, spec, producers, _plan(topic, partitions, replication_factor, config, keep))
    _show(result, json, spec, producers=producers, partitions=partitions)


@app.command
def consume(
    *,
    from_: Annotated[Literal["start", "end"], Parameter(name="--from", help="Old messages, or new ones.")] = "start",
    consumers: Annotated[int, Parameter(help="Processes that read, each its share of the partitions.")] = 1,
    fetch_size: Annotated[int, Parameter(help="Bytes of a partition per fetch.")] = 1024 * 1024,
    fill_mb: Annotated[int, Parameter(help="How much to write before reading, with --from start.")] = 200,
    message_size: Size = 1024,
    compression: Compression = "none",
    producers: Annotated[int, Parameter(help="Processes that write, with --from end.")] = 1,
    rate: Annotated[float, Parameter(help="Messages/s to write, with --from end.")] = 10_000.0,
    partitions: Partitions = 1,
    replication_factor: Replicas = -1,
    config: Config = (),
    topic: Topic = None,
    keep: Keep = False,
    warmup: Warmup = 1.0,
    duration: Duration = 10.0,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Read from the start, over and over, or at the end while others write.

    Example: chronik bench consume --consumers 2 --partitions 4

    From the start, MB/s are of the log (as stored) and the latency is that of a fetch; at the end it is end to end.
    """
    _at_least_one(consumers, "--consumers")
    where = bootstrap_address(bootstrap)
    read = ReadSpec(bootstrap=where, topic="", fetch_bytes=fetch_size, warmup_s=warmup, duration_s=duration)
    send = SendSpec(
        bootstrap=where,
        topic="",
        message_bytes=message_size,
        compression=compression,
        rate=rate,
        warmup_s=warmup,
        duration_s=duration,
    )
    plan = _plan(topic, partitions, replication_factor, config, keep)
    with _measured(bootstrap) as cluster:
        if from_ == "start":
            result = run_consume(cluster, read, consumers, plan, send, fill_mb)
        else:
            result = run_consume_at_end(cluster, read, consumers, send, producers, plan, "consume at the end")
    _show(result, json, read, consumers=consumers, partitions=partitions)


@app.command
def latency(
    *,
    one_in_flight: Annotated[
        bool, Parameter(negative="", help="One message at a time, the next when answered.")
    ] = False,
    rate: Annotated[float, Parameter(help="Messages/s to write.")] = 1000.0,
    message_size: Size = 1024,
    batch_size: Batch = 16_384,
    linger_ms: Linger = 0.0,
    acks: Annotated[Acks, Parameter(help="Who has to have a batch before it is acknowledged.")] = "all",
    compression: Compression = "none",
    partitions: Partitions = 1,
    replication_factor: Replicas = -1,
    config: Config = (),
    topic: Topic = None,
    keep: Keep = False,
    warmup: Warmup = 1.0,
    duration: Duration = 10.0,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Measure end-to-end latency at a moderate rate, or that of single writes.

    Example: chronik bench latency --rate 2000

    End to end: from when a message was due until a reader at the end of the log has it.
    """
    where = bootstrap_address(bootstrap)
    send = SendSpec(
        bootstrap=where,
        topic="",
        message_bytes=message_size,
        batch_bytes=1 if one_in_flight else batch_size,
        linger_ms=linger_ms,
        acks=_ACKS[acks],
        idempotent=acks == "all",
        compression=compression,
        in_flight=1 if one_in_flight else 5,
        rate=None if one_in_flight else rate,
        warmup_s=warmup,
        duration_s=duration,
    )
    plan = _plan(topic, partitions, replication_factor, config, keep)
    with _measured(bootstrap) as cluster:
        if one_in_flight:
            result = run_produce(cluster, send, 1, plan)
            result.name = "latency, one in flight"
        else:
            read = ReadSpec(bootstrap=where, topic="", warmup_s=warmup, duration_s=duration)
            result = run_consume_at_end(cluster, read, 1, send, 1, plan, "latency, end to end")
    _show(result, json, send, partitions=partitions)


@app.command
def topics(
    *,
    count: Annotated[int, Parameter(help="Topics to create each way.")] = 3000,
    partitions: Partitions = 3,
    replication_factor: Replicas = -1,
    threads: Annotated[tuple[int, ...], Parameter(help="Threads of each way that creates one at a time.")] = (100, 10),
    batch: Annotated[int, Parameter(help="Topics per request of the client that batches; 0 leaves it out.")] = 100,
    timeout: Annotated[float, Parameter(help="Seconds after which a create has failed.")] = 60.0,
    keep: Keep = False,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Create thousands of topics three ways: 100 threads, 10 threads, one client that batches.

    Example: chronik bench topics --count 300
    """
    from chronik.bench.topic_creation import TopicLoad, create_many

    ways = [(f"{number} threads", number, 1) for number in threads]
    if batch:
        ways.append((f"one client, {batch} per request", 1, batch))
    results: list[Result] = []
    with _measured(bootstrap) as cluster:
        for name, workers, per_request in ways:
            load = TopicLoad(
                bootstrap=bootstrap_address(bootstrap),
                count=count,
                partitions=partitions,
                replication_factor=replication_factor,
                threads=workers,
                per_request=per_request,
                timeout_s=timeout,
                keep=keep,
            )
            results.append(create_many(cluster, load, name))
    _show_many(results, json)
    if any(result.errors for result in results):
        fail("some topics were not created; see the errors above")


@app.command
def groups(
    *,
    count: Annotated[int, Parameter(help="Groups to form, one after the other.")] = 3,
    members: Annotated[int, Parameter(help="Members of each group.")] = 10,
    committers: Annotated[int, Parameter(help="Processes that commit offsets.")] = 1,
    partitions: Partitions = 10,
    replication_factor: Replicas = -1,
    warmup: Warmup = 1.0,
    duration: Duration = 10.0,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Measure how long groups take to form, and offset commits per second.

    Example: chronik bench groups --members 50

    The join time includes group.initial.rebalance.delay.ms of the broker (3 s by default).
    """
    from chronik.bench.group_load import groups as run_groups

    _at_least_one(committers, "--committers")
    with _measured(bootstrap) as cluster:
        result = run_groups(
            cluster,
            count=count,
            members=members,
            committers=committers,
            warmup_s=warmup,
            duration_s=duration,
            plan=TopicPlan(partitions=partitions, replication_factor=replication_factor),
        )
    _show(result, json, None, members=members, committers=committers)


@app.command
def transactions(
    *,
    producers: Annotated[int, Parameter(help="Processes, each with a transactional id of its own.")] = 1,
    messages: Annotated[int, Parameter(help="Messages per transaction.")] = 10,
    message_size: Size = 1024,
    partitions: Partitions = 1,
    replication_factor: Replicas = -1,
    warmup: Warmup = 1.0,
    duration: Duration = 10.0,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Measure transactions per second, each a write to one partition and a commit.

    Example: chronik bench transactions --producers 4 --partitions 4
    """
    from chronik.bench.group_load import transactions as run_transactions

    _at_least_one(producers, "--producers")
    run_id = uuid.uuid4().hex[:8]
    specs = [
        TransactSpec(
            bootstrap=bootstrap_address(bootstrap),
            topic="",
            number=number,
            workers=producers,
            transactional_id=f"{TOPIC_PREFIX}{run_id}-{number}",
            messages=messages,
            message_bytes=message_size,
            warmup_s=warmup,
            duration_s=duration,
        )
        for number in range(producers)
    ]
    with _measured(bootstrap) as cluster:
        result = run_transactions(
            cluster, specs, TopicPlan(partitions=partitions, replication_factor=replication_factor)
        )
    _show(result, json, None, producers=producers, messages_per_transaction=messages)


@app.command
def failover(
    *,
    pid_dir: Annotated[Path, Parameter(help="The data folder of `chronik cluster start --restart`.")],
    rounds: Annotated[int, Parameter(help="How often to do all of it.")] = 1,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Kill and restart the leader and the controller of a local cluster; print how long writes paused.

    Example: chronik bench failover --pid-dir ./cluster

    It ends processes with kill -9. Start the cluster with --restart, so that nodes come back for the next kill.
    """
    from chronik.bench.failover import Failover, PidFolder

    gaps: list[Any] = []
    with _measured(bootstrap) as cluster:
        addresses = ",".join(broker.address for broker in cluster.brokers())
        run = Failover(addresses, PidFolder(pid_dir))
        try:
            run.prepare()
            for _ in range(rounds):
                for how in (signal.SIGKILL, signal.SIGTERM):
                    for of_controller in (False, True):
                        gap = run.leader_gap(of_controller=of_controller, with_signal=how)
                        if gap is None:
                            continue
                        gaps.append(gap)
                        if not run.recover(gap.node_id):
                            fail(f"node {gap.node_id} did not come back; start the cluster with --restart")
        finally:
            run.close()
    if json:
        show_json(gaps)
        return
    rows = [(g.what, g.node_id, f"{g.write_gap_s:.3f}", _or_dash(g.metadata_gap_s)) for g in gaps]
    show_table(("what", "node", "writes paused (s)", "metadata writes paused (s)"), rows, "nothing was measured")


def _or_dash(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


@contextmanager
def _measured(bootstrap: str | None) -> Iterator[Cluster]:
    with open_cluster(bootstrap) as cluster:
        try:
            yield cluster
        except (WorkerFailed, TimeoutError) as error:
            fail(str(error))


def _at_least_one(value: int, option: str) -> None:
    if value < 1:
        fail(f"{option} {value}: use 1 or more")


def _plan(topic: str | None, partitions: int, replicas: int, config: tuple[str, ...], keep: bool) -> TopicPlan:
    return TopicPlan(
        name=topic,
        partitions=partitions,
        replication_factor=replicas,
        configs=settings_of(config, "--config"),
        keep=keep,
    )


def _show(result: Result, json: bool, spec: SendSpec | ReadSpec | None, **settings: Any) -> None:
    result.settings = dict(settings)
    if isinstance(spec, SendSpec):
        result.settings |= {
            "message_bytes": spec.message_bytes,
            "batch_bytes": spec.batch_bytes,
            "linger_ms": spec.linger_ms,
            "acks": spec.acks,
            "idempotent": spec.idempotent,
            "compression": spec.compression,
            "in_flight": spec.in_flight,
            "rate": spec.rate,
        }
    if json:
        show_json(result)
    else:
        show_table((result.name, ""), rows_of(result), "nothing was measured")


def _show_many(results: list[Result], json: bool) -> None:
    if json:
        show_json({"errors": sum(result.errors for result in results), "ways": results})
        return
    for result in results:
        show_table((result.name, ""), rows_of(result), "nothing was measured")
