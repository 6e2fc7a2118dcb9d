"""A compacted topic of committed and aborted transactions, on a real node: right before and after a restart."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from chronik.client.admin.groups import commit_offsets
from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster
from chronik.client.metadata import TopicPartition as Place
from chronik.protocol.records import parse_batches, read_records
from groups.reading import wait_committed
from groups.transacting import DEADLINE_S, QUICK, transactional
from groups.transacting import read_records as read
from harness.node_process import NodeProcess
from harness.waiting import eventually

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "5000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}
ROUNDS, KEYS = 36, 4
PADDING = "." * 200


def test_compaction_keeps_what_was_committed_and_the_markers_that_say_so(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, settings=QUICK | {"log.cleaner.backoff.ms": "200"}).start()
    try:
        with Cluster(node.bootstrap) as cluster:
            create_topic(cluster, "accounts", partitions=1, configs=COMPACTED)
        producer = transactional(node.bootstrap, "teller")
        expected: dict[str, str] = {}
        for number in range(ROUNDS):
            committed = number % 3 != 2
            producer.begin_transaction()
            for key in range(KEYS):
                producer.produce("accounts", f"{number}{PADDING}", key=f"k{key}", partition=0)
            assert producer.flush(DEADLINE_S) == 0
            if committed:
                producer.commit_transaction(DEADLINE_S)
                expected.update({f"k{key}": f"{number}{PADDING}" for key in range(KEYS)})
            else:
                producer.abort_transaction(DEADLINE_S)

        def compacted() -> bool:
            return sum(not control for control, _ in stored(node)) < ROUNDS * KEYS / 2

        eventually(compacted, "the log is compacted", DEADLINE_S)
        for restarted in (False, True):
            if restarted:
                node.kill()
                node.start()
            seen = read(node.bootstrap, "accounts")
            assert {record.key().decode(): record.value().decode() for record in seen} == expected
            numbers = {int(record.value().decode().rstrip(".")) for record in seen}
            assert not {number for number in numbers if number % 3 == 2}, "aborted"
            eventually(lambda: sum(control for control, _ in stored(node)) == ROUNDS, "all markers are there")
        producer.begin_transaction()
        producer.produce("accounts", "after", key="k0", partition=0)
        producer.commit_transaction(DEADLINE_S)
        assert [record.value() for record in read(node.bootstrap, "accounts")][-1] == b"after"
    finally:
        node.close()


def stored(node: NodeProcess) -> list[tuple[bool, int]]:
    """(whether it is a marker, its offset) of each record on the disk."""
    found = []
    for path in sorted(node.data_dir.rglob("accounts-0/*.log")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # compacted a moment ago
            continue
        for info in parse_batches(data):
            records = read_records(data[info.position : info.end]) if info.record_count else []
            found += [(info.is_control, record.offset) for record in records]
    return found


INTERNAL = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.segment.bytes": "3000",
    "transaction.state.log.segment.bytes": "3000",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "1",
    "log.cleaner.backoff.ms": "200",
}


def test_coordinators_find_everything_in_internal_topics_that_were_compacted(tmp_path: Path) -> None:
    """Markers that nobody needs are emptied after `delete.retention.ms`, and the coordinators read on."""
    node = NodeProcess(tmp_path, settings=QUICK | INTERNAL).start()
    group = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "tellers"})
    try:
        with Cluster(node.bootstrap) as cluster:
            create_topic(cluster, "accounts", partitions=1)
        producer = transactional(node.bootstrap, "teller")

        def transact(producer: Producer, number: int, *, commit: bool) -> None:
            producer.begin_transaction()
            offsets = [TopicPartition("accounts", 0, number)]
            producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), DEADLINE_S)
            (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)

        for number in range(30):
            transact(producer, number, commit=number % 3 != 2)
        with Cluster(node.bootstrap) as cluster:

            def emptied() -> bool:
                for number in range(60):
                    commit_offsets(cluster, "simple", {Place("accounts", 0): number})
                return any(marker and not count for marker, count in internal_batches(node))

            eventually(emptied, "a marker has lost its record", DEADLINE_S)
        node.kill()
        node.start()
        wait_committed(node.bootstrap, "tellers", {0: 28})
        wait_committed(node.bootstrap, "simple", {0: 59})
        transact(transactional(node.bootstrap, "teller"), 70, commit=True)
        wait_committed(node.bootstrap, "tellers", {0: 70})
    finally:
        group.close()
        node.close()


def internal_batches(node: NodeProcess) -> list[tuple[bool, int]]:
    """(whether it is a marker, how many records it has) of the batches of `__consumer_offsets`."""
    paths = sorted(node.data_dir.rglob("__consumer_offsets-0/*.log"))
    return [(info.is_control, info.record_count) for path in paths for info in parse_batches(path.read_bytes())]
