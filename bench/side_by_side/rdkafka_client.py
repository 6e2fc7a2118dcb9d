"""Loads with librdkafka, through confluent-kafka. Runs as a process of its own: arguments in, one line of JSON out.

python -m side_by_side.rdkafka_client produce '{"bootstrap": …, "topic": …, "messages": …}'
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from chronik.bench.histogram import Histogram

POLL_EVERY = 1000
CONSUME_BATCH = 10_000
IDLE_DEADLINE_S = 30.0
FLUSH_S = 120.0
STAMP_BYTES = 8
QUEUE_MESSAGES = 1_000_000


class Load(msgspec.Struct, kw_only=True):
    bootstrap: str
    topic: str
    messages: int = 0
    size: int = 1024
    clients: int = 1
    rate: float = 1000.0
    duration_s: float = 10.0
    warmup_s: float = 1.0
    settings: dict[str, str] = {}


class Counter:
    """Delivery reports of one producer."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1


def producer(load: Load) -> Producer:
    return Producer(
        {"bootstrap.servers": load.bootstrap, "queue.buffering.max.messages": str(QUEUE_MESSAGES), **load.settings}
    )


def consumer(load: Load, group: str, **settings: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": load.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            # By default the client rests for a second when its queue is full, and a fast broker fills it often.
            "fetch.queue.backoff.ms": "1",
            **settings,
        }
    )


def send_all(load: Load, made: Producer, messages: int, counter: Counter) -> None:
    payload = bytes(65 + index % 26 for index in range(load.size))
    for index in range(messages):
        while True:
            try:
                made.produce(load.topic, payload, on_delivery=counter)
                break
            except BufferError:
                made.poll(0.01)
        if index % POLL_EVERY == 0:
            made.poll(0)
    made.flush(FLUSH_S)


def run_produce(load: Load) -> dict[str, float]:
    """All clients write their share, each in a thread of its own."""
    counters = [Counter() for _ in range(load.clients)]
    made = [producer(load) for _ in range(load.clients)]
    share = load.messages // load.clients
    threads = [
        threading.Thread(target=send_all, args=(load, each, share, counter))
        for each, counter in zip(made, counters, strict=True)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _rates(sum(counter.delivered for counter in counters), load.size, began, share * load.clients)


def run_consume(load: Load) -> dict[str, float]:
    """All clients read as one group until every message was read once; time counts from the first message."""
    group = f"bench-{uuid.uuid4().hex[:8]}"
    lock = threading.Lock()
    state = {"read": 0, "began": 0.0, "ended": 0.0}

    def work() -> None:
        reader = consumer(load, group)
        reader.subscribe([load.topic])
        deadline = time.monotonic() + IDLE_DEADLINE_S
        while time.monotonic() < deadline and state["read"] < load.messages:
            got = len(reader.consume(CONSUME_BATCH, 0.1))
            now = time.monotonic()
            if got:
                deadline = now + IDLE_DEADLINE_S
                with lock:
                    state["began"] = state["began"] or now
                    state["read"] += got
                    state["ended"] = now
        reader.close()

    threads = [threading.Thread(target=work) for _ in range(load.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if state["read"] < load.messages:
        raise RuntimeError(f"read {state['read']} of {load.messages} messages")
    seconds = max(state["ended"] - state["began"], 1e-9)
    return {"messages_per_s": state["read"] / seconds, "mb_per_s": state["read"] * load.size / seconds / 1e6}


def run_tail(load: Load) -> dict[str, float]:
    """One client writes as fast as it can while another reads at the end of the log; until the last is read."""
    reader = consumer(load, "unused")
    reader.assign([TopicPartition(load.topic, 0, 0)])
    counter = Counter()
    writer = threading.Thread(target=send_all, args=(load, producer(load), load.messages, counter))
    began = time.monotonic()
    writer.start()
    read, deadline = 0, time.monotonic() + IDLE_DEADLINE_S
    while read < load.messages and time.monotonic() < deadline:
        got = len(reader.consume(CONSUME_BATCH, 0.1))
        read += got
        if got:
            deadline = time.monotonic() + IDLE_DEADLINE_S
    writer.join()
    reader.close()
    return _rates(read, load.size, began, load.messages)


def run_end_to_end(load: Load) -> dict[str, float]:
    """Write on a schedule, read at the end of the log; latencies count from when a message was due."""
    reader = consumer(load, "unused")
    reader.assign([TopicPartition(load.topic, 0, 0)])
    total = round((load.warmup_s + load.duration_s) * load.rate)
    start_ns = time.monotonic_ns() + 500_000_000
    step_ns = round(1e9 / load.rate)

    def write() -> None:
        made = producer(load)
        rest = b"x" * (load.size - STAMP_BYTES)
        for index in range(total):
            due_ns = start_ns + index * step_ns
            while (left := due_ns - time.monotonic_ns()) > 0:
                made.poll(left / 1e9)
            made.produce(load.topic, due_ns.to_bytes(STAMP_BYTES, "big") + rest)
        made.flush(FLUSH_S)

    writer = threading.Thread(target=write)
    writer.start()
    latency = Histogram()
    read, deadline = 0, time.monotonic() + load.warmup_s + load.duration_s + IDLE_DEADLINE_S
    measure_from = start_ns + round(load.warmup_s * 1e9)
    while read < total and time.monotonic() < deadline:
        message = reader.poll(0.1)
        if message is None or message.error():
            continue
        now = time.monotonic_ns()
        read += 1
        due = int.from_bytes((message.value() or b"")[:STAMP_BYTES], "big")
        if due >= measure_from:
            latency.record(now - due)
    writer.join()
    reader.close()
    if read < total:
        raise RuntimeError(f"read {read} of {total} messages")
    return _percentiles(latency)


def run_one_in_flight(load: Load) -> dict[str, float]:
    """One message, its acknowledgement, the next message."""
    made = producer(load)
    payload = b"x" * load.size
    latency = Histogram()
    begin = time.monotonic() + load.warmup_s
    end = begin + load.duration_s
    while (now := time.monotonic()) < end:
        sent_ns = time.monotonic_ns()
        made.produce(load.topic, payload)
        made.flush(FLUSH_S)
        if now >= begin:
            latency.record(time.monotonic_ns() - sent_ns)
    return _percentiles(latency) | {"messages_per_s": latency.total / load.duration_s}


def _rates(done: int, size: int, began: float, wanted: int) -> dict[str, float]:
    if done < wanted:
        raise RuntimeError(f"only {done} of {wanted} messages went through")
    seconds = time.monotonic() - began
    return {"messages": done, "messages_per_s": done / seconds, "mb_per_s": done * size / seconds / 1e6}


def _percentiles(latency: Histogram) -> dict[str, float]:
    return {
        "p50_ms": latency.percentile_ms(50),
        "p99_ms": latency.percentile_ms(99),
        "p999_ms": latency.percentile_ms(99.9),
        "max_ms": latency.max_ms,
    }


LOADS: dict[str, Any] = {
    "produce": run_produce,
    "consume": run_consume,
    "tail": run_tail,
    "end-to-end": run_end_to_end,
    "one-in-flight": run_one_in_flight,
}


def main() -> int:
    kind, described = sys.argv[1:]
    try:
        result = LOADS[kind](msgspec.json.decode(described, type=Load))
    except (RuntimeError, KafkaException) as error:
        print(f"librdkafka client: {error}", file=sys.stderr)
        return 1
    print(msgspec.json.encode(result).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
