"""One stage of an exactly-once chain in a process of its own: reads, transforms, writes and commits its offsets, all in
transactions, some of which it aborts on purpose.

Run by this environment, `Stage` starts and kills it. Run as a script it is the stage. Values of transactions that it
aborts are marked, so that a reader who sees one has caught the cluster.
"""

from __future__ import annotations

import faulthandler
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

ABORTED = b"ABORTED"
BATCH = 100
ABORT_SHARE = 0.15
TRANSACTION_TIMEOUT_MS = 6000
SESSION_MS = 3000
WAIT_S = 20.0
STUCK_S = 10.0
"""librdkafka can wait for ever for a group coordinator that is gone, whatever its timeout says (librdkafka issues 5456
and 5511): it decommissions a node that the metadata does not list, and never lets go of a request that waits for its
connection. Then the stage ends, as if it were killed, and is started again."""


class Stage:
    """The stage as the test sees it. A restart keeps its name, and with it its transactional id."""

    def __init__(
        self, library: str, name: str, bootstrap: str, group: str, source: str, target: str, partitions: int, log: Path
    ) -> None:
        self._arguments = [library, name, bootstrap, group, source, target, str(partitions)]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), *self._arguments], stdout=output, stderr=output
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self.running:
            self.kill()


# --- the stage itself -------------------------------------------------------------------------------------------------


def note(what: str, error: object = "") -> None:
    print(what, error, file=sys.stderr, flush=True)


def partition_of(key: bytes, partitions: int) -> int:
    return zlib.crc32(key) % partitions


def run_confluent(name: str, bootstrap: str, group: str, source: str, target: str, partitions: int) -> None:
    """Partitions by subscription; zombies are fenced by the generation of the group (KIP-447)."""
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    rng = random.Random()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
        }
    )

    def begin() -> Producer:
        while True:
            made = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "transactional.id": name,
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "linger.ms": 2,
                }
            )
            try:
                made.init_transactions(WAIT_S)
                return made
            except KafkaException as error:
                note("init", error)

    def rewind() -> None:
        """What was read and not committed is read again."""
        assigned = consumer.assignment()
        if not assigned:
            return
        for place in consumer.committed(assigned, WAIT_S):
            consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))

    producer = begin()
    consumer.subscribe([source])
    while True:
        messages = [message for message in consumer.consume(BATCH, timeout=0.2) if message.error() is None]
        if not messages:
            continue
        aborts = rng.random() < ABORT_SHARE
        mark = ABORTED if aborts else name.encode()
        try:
            producer.begin_transaction()
            for message in messages:
                key = message.key()
                producer.produce(
                    target, message.value() + b"|" + mark, key=key, partition=partition_of(key, partitions)
                )
            ends: dict[int, int] = {}
            for message in messages:
                ends[message.partition()] = message.offset() + 1
            offsets = [TopicPartition(source, partition, offset) for partition, offset in ends.items()]
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
            faulthandler.cancel_dump_traceback_later()
            if aborts:
                producer.flush(WAIT_S)
                producer.abort_transaction(WAIT_S)
                rewind()
            else:
                producer.commit_transaction(WAIT_S)
        except (KafkaException, BufferError) as error:
            faulthandler.cancel_dump_traceback_later()
            note("transaction", error)
            detail = error.args[0] if error.args else None
            producer = recovered(producer, detail, begin)
            try:
                rewind()
            except KafkaException as second:
                note("rewind", second)
                raise SystemExit(3) from second  # what was read is not known any more: begin anew


def recovered(producer: Any, detail: Any, begin: Any) -> Any:
    """The producer to go on with: this one after an abort, or a new instance when it was fenced."""
    from confluent_kafka import KafkaException

    while True:
        try:
            if detail is not None and hasattr(detail, "txn_requires_abort") and detail.txn_requires_abort():
                producer.abort_transaction(WAIT_S)
                return producer
        except KafkaException as error:
            note("abort", error)
            if error.args[0].retriable():
                continue
        return begin()


def run_aiokafka(name: str, bootstrap: str, group: str, source: str, target: str, partitions: int) -> None:
    """All partitions, by assignment: zombies are fenced by the transactional id alone, as this client can."""
    import asyncio

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.errors import KafkaError

    rng = random.Random()
    places = [TopicPartition(source, index) for index in range(partitions)]

    async def work(producer: AIOKafkaProducer, consumer: AIOKafkaConsumer) -> None:
        for place in places:
            committed = await consumer.committed(place)
            consumer.seek(place, committed or 0)
        while True:
            batches = await consumer.getmany(timeout_ms=200, max_records=BATCH)
            if not batches:
                continue
            aborts = rng.random() < ABORT_SHARE
            mark = ABORTED if aborts else name.encode()
            await producer.begin_transaction()
            for record in (record for records in batches.values() for record in records):
                where = partition_of(record.key, partitions)
                await producer.send(target, record.value + b"|" + mark, key=record.key, partition=where)
            ends = {place: records[-1].offset + 1 for place, records in batches.items()}
            await producer.send_offsets_to_transaction(ends, group)
            if aborts:
                await producer.flush()
                await producer.abort_transaction()
                for place, records in batches.items():
                    consumer.seek(place, records[0].offset)
            else:
                await producer.commit_transaction()

    async def run() -> None:
        while True:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            )
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            )
            try:
                await producer.start()
                consumer.assign(places)
                await consumer.start()
                await work(producer, consumer)
            except (KafkaError, OSError) as error:
                note("again", repr(error))
            finally:
                for part in (consumer, producer):
                    try:
                        await asyncio.wait_for(part.stop(), 5)
                    except (KafkaError, OSError, TimeoutError) as error:
                        note("stop", repr(error))

    asyncio.run(run())


if __name__ == "__main__":
    library, *rest = sys.argv[1:]
    run = {"confluent-kafka": run_confluent, "aiokafka": run_aiokafka}[library]
    run(rest[0], rest[1], rest[2], rest[3], rest[4], int(rest[5]))
