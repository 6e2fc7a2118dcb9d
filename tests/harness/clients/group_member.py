"""One member of a consumer group in a process of its own, for every client of PyPI; it can be killed like any process.

Run by this environment, `GroupMember` starts and follows it. Run as a script it is the member: it prints a JSON line
for each new assignment and for each batch of records it has read and committed, and leaves when its input is closed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

if __name__ != "__main__":
    from harness.clients.legacy import legacy_python
    from harness.waiting import eventually

LIBRARIES = (
    "kafka-python",
    "kafka-python-2.0.2",
    "kafka-python-2.0.2@0.10.0",
    "confluent-kafka",
    "confluent-kafka-cooperative",
    "confluent-kafka-consumer",
    "aiokafka",
)
SESSION_MS = 3000
HEARTBEAT_MS = 500


class GroupMember:
    """The member as the test sees it."""

    def __init__(
        self, library: str, bootstrap: str, group: str, topic: str, log: Path, instance: str | None = None
    ) -> None:
        python = str(legacy_python()) if "2.0.2" in library else sys.executable
        self.library = library
        self.assigned: list[int] | None = None
        self.generations = 0
        self.records: list[tuple[int, int]] = []
        """(partition, offset) of everything it has read and committed, in order."""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).resolve()), library, bootstrap, group, topic, instance or ""],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if "assigned" in event:
                self.assigned = event["assigned"]
                self.generations += 1
            if "records" in event:
                self.records.extend((partition, offset) for partition, offset in event["records"])

    def wait_assigned(self, count: int, deadline_s: float = 30.0) -> None:
        eventually(
            lambda: self.assigned is not None and len(self.assigned) == count,
            f"{self.library} is assigned {count} partitions, it has {self.assigned}",
            deadline_s,
        )

    def leave(self) -> None:
        """Closes politely and waits for the end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._reader.join(5)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()
        self._reader.join(5)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()


# --- the member itself -----------------------------------------------------------------------------------------------


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class Stop:
    """Set when the input is closed."""

    def __init__(self) -> None:
        self._event = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.read()
        self._event.set()

    @property
    def asked(self) -> bool:
        return self._event.is_set()


def run_kafka_python(library: str, bootstrap: str, group: str, topic: str, instance: str) -> None:
    from kafka import KafkaConsumer

    options: dict[str, Any] = {"api_version": (0, 10, 0)} if library.endswith("@0.10.0") else {}
    if instance:
        options["group_instance_id"] = instance
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=20,
        **options,
    )
    stop, assigned = Stop(), None
    while not stop.asked:
        batches = consumer.poll(timeout_ms=100)
        now = sorted(place.partition for place in consumer.assignment())
        if now != assigned:
            assigned = now
            say(assigned=now)
        found = [(record.partition, record.offset) for records in batches.values() for record in records]
        if found:
            try:
                consumer.commit()
            except Exception as error:
                print(f"commit failed: {error!r}", file=sys.stderr, flush=True)
                continue
            say(records=found)
    consumer.close()


def run_confluent(library: str, bootstrap: str, group: str, topic: str, instance: str) -> None:
    from confluent_kafka import Consumer

    options: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 2000,
    }
    if library.endswith("-consumer"):
        options["group.protocol"] = "consumer"
    else:
        options.update({"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS})
        if library.endswith("-cooperative"):
            options["partition.assignment.strategy"] = "cooperative-sticky"
    if instance:
        options["group.instance.id"] = instance
    consumer = Consumer(options)
    consumer.subscribe([topic])
    stop, assigned = Stop(), None
    while not stop.asked:
        messages = [message for message in consumer.consume(20, timeout=0.1) if message.error() is None]
        now = sorted(place.partition for place in consumer.assignment())
        if now != assigned:
            assigned = now
            say(assigned=now)
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except Exception as error:
                print(f"commit failed: {error!r}", file=sys.stderr, flush=True)
                continue
            say(records=[(message.partition(), message.offset()) for message in messages])
    consumer.close()


def run_aiokafka(library: str, bootstrap: str, group: str, topic: str, instance: str) -> None:
    import asyncio

    from aiokafka import AIOKafkaConsumer

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance or None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=2000,
        )
        await consumer.start()
        stop, assigned = Stop(), None
        while not stop.asked:
            batches = await consumer.getmany(timeout_ms=100, max_records=20)
            now = sorted(place.partition for place in consumer.assignment())
            if now != assigned:
                assigned = now
                say(assigned=now)
            found = [(record.partition, record.offset) for records in batches.values() for record in records]
            if found:
                try:
                    await consumer.commit()
                except Exception as error:
                    print(f"commit failed: {error!r}", file=sys.stderr, flush=True)
                    continue
                say(records=found)
        await consumer.stop()

    asyncio.run(run())


if __name__ == "__main__":
    member = sys.argv[1]
    runner = (
        run_confluent if member.startswith("confluent") else run_aiokafka if member == "aiokafka" else run_kafka_python
    )
    started = time.monotonic()
    runner(*sys.argv[1:])
