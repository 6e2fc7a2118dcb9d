"""What the tests of transactions share: nodes that abort quickly, producers, and readers that stop at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from harness.waiting import eventually

QUICK = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
DEADLINE_S = 30.0


def transactional(bootstrap: str, transactional_id: str, **settings: Any) -> Producer:
    """A producer of librdkafka that has begun."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 30_000,
            "linger.ms": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    producer.init_transactions(DEADLINE_S)
    return producer


def write(producer: Producer, topic: str, values: Iterable[str], *, partition: int = 0, commit: bool = True) -> None:
    """One transaction."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    # An abort purges what is still queued: it shall be in the log to be aborted there.
    assert producer.flush(DEADLINE_S) == 0
    if commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)


def read(bootstrap: str, topic: str, partitions: int = 1, *, committed: bool = True) -> list[str]:
    """Everything up to the end: the last stable offset, or the high watermark."""
    records = read_records(bootstrap, topic, partitions, committed=committed)
    return [record.value().decode() for record in records]


def read_records(bootstrap: str, topic: str, partitions: int = 1, *, committed: bool = True) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        found: list[Any] = []
        ended: set[int] = set()

        def at_the_end() -> bool:
            for message in consumer.consume(500, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    assert error.retriable() or not error.fatal(), error
            return len(ended) == partitions

        eventually(at_the_end, f"{topic} is read to its end", DEADLINE_S)
        return found
    finally:
        consumer.close()


def eventually_reads(bootstrap: str, topic: str, wanted: list[str], what: str, partitions: int = 1) -> None:
    """Waits for what readers of committed data see; nothing else may be seen meanwhile."""

    def seen() -> bool:
        values = read(bootstrap, topic, partitions)
        assert set(values) <= set(wanted), f"{set(values) - set(wanted)} must never be seen"
        return sorted(values) == sorted(wanted)

    eventually(seen, what, DEADLINE_S)
