"""A compacted topic of committed and aborted transactions, on a real node: right before and after a restart."""

from __future__ import annotations

from pathlib import Path

from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster
from chronik.protocol.records import parse_batches, read_records
from groups.transacting import DEADLINE_S, QUICK, transactional
from groups.transacting import read_records as read
from harness.node_process import NodeProcess
from harness.waiting import eventually

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "8000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}
ROUNDS, KEYS = 60, 4
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
        for _ in range(2):
            seen = read(node.bootstrap, "accounts")
            assert {record.key().decode(): record.value().decode() for record in seen} == expected
            numbers = {int(record.value().decode().rstrip(".")) for record in seen}
            assert not {number for number in numbers if number % 3 == 2}, "aborted"
            eventually(lambda: sum(control for control, _ in stored(node)) == ROUNDS, "all markers are there")
            node.kill()
            node.start()
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
