"""Producers and a consumer that run while things break, and the checker of what was acknowledged meanwhile.

Every value is written once, by an idempotent producer with acks=all; the value names its producer and its number. What
the checker finds at the end is a list of violations: lost, duplicated, reordered, visible-then-gone, or different
between replicas. An empty list is the only good answer.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from chronik.client.cluster import Cluster, ClusterSettings
from chronik.client.consumer import Consumer as OwnConsumer
from chronik.client.metadata import TopicPartition as Place
from chronik.client.offsets import EARLIEST, end_offsets
from chronik.client.retry import RetryPolicy
from chronik.protocol.records import parse_batches
from harness.node_process import NodeProcess
from harness.waiting import eventually

DELIVERY_TIMEOUT_MS = 60_000
FLUSH_DEADLINE_S = 60.0
READ_DEADLINE_S = 60.0
QUEUE_MAX = 2_000
PACE_S = 0.002

Seen = dict[tuple[int, int], bytes]


class Workload:
    """Writes to every partition of a topic, and reads along, until `stop`."""

    def __init__(
        self, nodes: list[NodeProcess], topic: str, partitions: int, *, producers: int = 2, pace_s: float = PACE_S
    ) -> None:
        self.nodes = nodes
        self._pace_s = pace_s
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[bytes, tuple[int, int | None]] = {}
        """Where each value is. librdkafka knows no offset of a batch whose answer was lost, when the next one was
        acknowledged: then it knows that this one was written, but not where."""
        self._per_partition = dict.fromkeys(range(partitions), 0)
        self.failed: list[str] = []
        self.seen: Seen = {}
        self.violations: list[str] = []
        self._last_ack: dict[int, float] = {}
        self._longest_gap_s = 0.0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(number,), daemon=True) for number in range(producers)
        ]
        self._threads.append(threading.Thread(target=self._consume, daemon=True))

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> Workload:
        self.forget_gaps()
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Stops writing, waits for what is under way, and lets the reader reach the end."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(FLUSH_DEADLINE_S + READ_DEADLINE_S)
            assert not thread.is_alive(), "a client of the workload does not come to an end"

    def count(self) -> int:
        with self._lock:
            return len(self.acknowledged)

    def counts(self) -> dict[int, int]:
        """How many records each partition has acknowledged."""
        with self._lock:
            return dict(self._per_partition)

    def forget_gaps(self) -> None:
        with self._lock:
            self._longest_gap_s = 0.0
            self._last_ack = dict.fromkeys(range(self.partitions), time.monotonic())

    def longest_gap_s(self) -> float:
        """The longest time in which some partition acknowledged nothing, since `forget_gaps`."""
        with self._lock:
            now = time.monotonic()
            return max(self._longest_gap_s, *(now - last for last in self._last_ack.values()))

    def wait_for_progress(self, more: int = 50, deadline_s: float = 30.0) -> float:
        """Waits until so many more records were acknowledged; returns how long that took."""
        target = self.count() + more
        started = time.monotonic()
        eventually(lambda: self.count() >= target, f"{more} more records are acknowledged", deadline_s)
        return time.monotonic() - started

    # --- clients -------------------------------------------------------------------------------------------------

    def _produce(self, number: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "request.timeout.ms": 3_000,
                "socket.timeout.ms": 4_000,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        sequence = 0
        try:
            while not self._stopping.is_set():
                if len(producer) < QUEUE_MAX:
                    value, partition = f"{number}:{sequence}".encode(), sequence % self.partitions
                    producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
                    sequence += 1
                producer.poll(self._pace_s)
            left = producer.flush(FLUSH_DEADLINE_S)
        except (KafkaException, SystemError) as error:  # a SystemError where the binding loses its own exception
            # The producer knows of no way on that keeps its promise: the broker has broken one.
            self.violations.append(f"producer {number} gave up: {error.__cause__ or error}")
            return
        if left:
            self.failed.append(f"{left} records were neither acknowledged nor refused")

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        now = time.monotonic()
        with self._lock:
            if error is not None:
                self.failed.append(str(error))
                return
            partition = message.partition()
            self._longest_gap_s = max(self._longest_gap_s, now - self._last_ack[partition])
            self._last_ack[partition] = now
            self.acknowledged[message.value()] = (message.partition(), message.offset())
            self._per_partition[partition] += 1

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "workload",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "socket.timeout.ms": 4_000,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)])
        while not self._stopping.is_set():
            for message in consumer.consume(500, timeout=0.1):
                if message.error() is None:
                    self._saw(message.partition(), message.offset(), message.value())
        # Not waited for: librdkafka (2.16) was seen to wait in it for minutes, after a leader had been cut off, with no
        # connection to any node left and so with no answer to wait for.
        threading.Thread(target=consumer.close, daemon=True).start()

    def _saw(self, partition: int, offset: int, value: bytes) -> None:
        before = self.seen.setdefault((partition, offset), value)
        if before != value:
            self.violations.append(f"offset {offset} of partition {partition} was {before!r} and became {value!r}")

    # --- the checker ---------------------------------------------------------------------------------------------

    def verify(self) -> list[str]:
        """All violations, after `stop`: what clients can see now against what they were told."""
        found = [*self.violations, *(f"not acknowledged: {failure}" for failure in self.failed)]
        log = self._read_all()
        places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for place, value in sorted(log.items()):
            places[value].append(place)
        for value, place in self.acknowledged.items():
            where = places.get(value, [])
            if place not in where and not (place[1] is None and [partition for partition, _ in where] == [place[0]]):
                found.append(f"lost: {value!r} acknowledged at {place}, the log has it at {places.get(value)}")
        found.extend(f"duplicated: {value!r} at {where}" for value, where in places.items() if len(where) > 1)
        for place, value in self.seen.items():
            if log.get(place) != value:
                found.append(f"visible then gone: {value!r} at {place}, now {log.get(place)!r}")
        found.extend(_reordered(log))
        return found

    def _read_all(self) -> Seen:
        settings = ClusterSettings(retry=RetryPolicy(timeout_s=READ_DEADLINE_S))
        log: Seen = {}
        with Cluster(self.bootstrap, settings) as cluster:
            where = [Place(self.topic, partition) for partition in range(self.partitions)]
            ends = end_offsets(cluster, where)
            with OwnConsumer(cluster, dict.fromkeys(where, EARLIEST)) as consumer:
                deadline = time.monotonic() + READ_DEADLINE_S
                while any(consumer.position(place) < ends[place] for place in where):
                    for record in consumer.poll(0.5):
                        log[record.partition, record.offset] = record.value or b""
                    assert time.monotonic() < deadline, "the log cannot be read to its end"
        return log


def _reordered(log: Seen) -> list[str]:
    last: dict[tuple[int, bytes], int] = {}
    found: list[str] = []
    for (partition, offset), value in sorted(log.items()):
        producer, number = value.split(b":")
        key = (partition, producer)
        if last.get(key, -1) >= int(number):
            found.append(f"reordered: {value!r} at offset {offset} of partition {partition} after number {last[key]}")
        last[key] = int(number)
    return found


def replica_bytes(node: NodeProcess, topic: str, partition: int) -> bytes:
    """What a node has on its disk of a partition, in order."""
    folder = next(iter(node.visible_data_dir.rglob(f"{topic}-{partition}")), None)
    if folder is None:
        return b""
    segments: list[Path] = sorted(folder.glob("*.log"))
    return b"".join(segment.read_bytes() for segment in segments)


def differing_replicas(nodes: list[NodeProcess], topic: str, partitions: int, *, only: int | None = None) -> list[str]:
    """Partitions whose replicas are not byte for byte the same; call it when nothing is being written any more."""
    found: list[str] = []
    for partition in range(partitions) if only is None else [only]:
        contents = {node.node_id: replica_bytes(node, topic, partition) for node in nodes}
        if len(set(contents.values())) > 1:
            ends = {node_id: (len(data), _end_offset(data)) for node_id, data in contents.items()}
            found.append(f"the replicas of {topic}-{partition} differ: (bytes, end offset) by node are {ends}")
    return found


def _end_offset(data: bytes) -> int:
    batches = parse_batches(data, allow_partial=True) if data else []
    return batches[-1].next_offset if batches else 0
