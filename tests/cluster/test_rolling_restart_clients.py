"""Clients as people use them go through a rolling restart, and no error reaches the application."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from harness.node_process import NodeProcess
from harness.one_node import OneNode
from harness.rolling_restart import rolling_restart
from harness.waiting import eventually

PACE_S = 0.005
DEADLINE_S = 60.0
QUIET = {"log_level": 0}


class Application:
    """Writes numbers and reads them back, in a group, with one client library and its usual settings."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.topic = f"of-{name}"
        self.bootstrap = bootstrap
        self.sent: dict[bytes, int] = {}
        self.read: dict[tuple[int, int], bytes] = {}
        self.errors: list[str] = []
        self.stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in (self.write, self.consume)
        ]

    def write(self) -> None:
        raise AssertionError("each library does this in its own way")

    def consume(self) -> None:
        raise AssertionError("each library does this in its own way")

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever it is, an application would have had to deal with it
            self.errors.append(f"{work.__name__}: {type(error).__name__}: {error}")

    def values(self) -> Iterator[bytes]:
        """Numbers, one after the other, until it is time to stop."""
        for number in itertools.count():
            if self.stopping.wait(PACE_S):
                return
            yield b"%d" % number

    def more_to_read(self) -> bool:
        return self._threads[0].is_alive() or len(set(self.read.values())) < len(self.sent)

    def finish(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), f"{self.topic}: {len(self.sent)} written, {len(self.read)} read"
        assert self.errors == []
        values = list(self.read.values())
        assert len(values) == len(set(values)), "nothing is there twice"
        assert set(values) == set(self.sent), "everything is there"


class WithKafkaPython(Application):
    def write(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all", linger_ms=2)
        pending = [(value, producer.send(self.topic, value)) for value in self.values()]
        for value, future in pending:
            self.sent[value] = future.get(DEADLINE_S).offset
        producer.close()

    def consume(self) -> None:
        consumer = KafkaConsumer(
            self.topic, bootstrap_servers=self.bootstrap, group_id="kafka-python", auto_offset_reset="earliest"
        )
        end = time.monotonic() + 2 * DEADLINE_S
        while self.more_to_read() and time.monotonic() < end:
            for records in consumer.poll(timeout_ms=200).values():
                self.read.update({(record.partition, record.offset): record.value for record in records})
        consumer.close()


class WithConfluent(Application):
    def write(self) -> None:
        producer = Producer({**QUIET, "bootstrap.servers": self.bootstrap, "enable.idempotence": True})

        def delivered(error: object, message: object) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                self.sent[message.value()] = message.offset()  # type: ignore[attr-defined]

        for value in self.values():
            producer.produce(self.topic, value, on_delivery=delivered)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0

    def consume(self) -> None:
        consumer = Consumer(
            {**QUIET, "bootstrap.servers": self.bootstrap, "group.id": "confluent", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([self.topic])
        end = time.monotonic() + 2 * DEADLINE_S
        while self.more_to_read() and time.monotonic() < end:
            for record in consumer.consume(500, timeout=0.2):
                error = record.error()
                if error is None:
                    self.read[record.partition(), record.offset()] = record.value()
                else:
                    self.errors.append(str(error))
        consumer.close()


class WithAiokafka(Application):
    def write(self) -> None:
        async def run() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True)
            await producer.start()
            pending: list[tuple[bytes, asyncio.Future[object]]] = []
            values = self.values()
            while (value := await asyncio.to_thread(next, values, None)) is not None:
                pending.append((value, await producer.send(self.topic, value)))
            for value, future in pending:
                self.sent[value] = (await future).offset  # type: ignore[attr-defined]
            await producer.stop()

        asyncio.run(run())

    def consume(self) -> None:
        async def run() -> None:
            consumer = AIOKafkaConsumer(
                self.topic, bootstrap_servers=self.bootstrap, group_id="aiokafka", auto_offset_reset="earliest"
            )
            await consumer.start()
            end = time.monotonic() + 2 * DEADLINE_S
            while self.more_to_read() and time.monotonic() < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    self.read.update({(record.partition, record.offset): record.value for record in records})
            # `stop` commits as well, but looks for no coordinator any more: if it has not noticed yet that the one it
            # knows is gone (it asks every 3 s), it tries for ever. It notices here.
            await consumer.commit()
            await consumer.stop()

        asyncio.run(run())


@pytest.mark.timeout(240)
def test_no_error_of_a_rolling_restart_reaches_an_application(trio: list[NodeProcess]) -> None:
    bootstrap = ",".join(node.bootstrap for node in trio)
    applications = [
        WithKafkaPython("kafka-python", bootstrap),
        WithConfluent("confluent", bootstrap),
        WithAiokafka("aiokafka", bootstrap),
    ]
    with OneNode(trio[0]) as at:
        for application in applications:
            assert at.create(application.topic, partitions=3, min_insync_replicas="2").error_code == 0
    for application in applications:
        application.start()
    eventually(lambda: all(each.read for each in applications), "everybody reads", DEADLINE_S)
    for _ in rolling_restart(trio):
        for application in applications:
            assert application.errors == [], application.topic
    for application in applications:
        application.finish()
