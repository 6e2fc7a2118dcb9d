"""Kafka's own `kafka-dump-log` reads every kind of file that a partition log consists of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chronik.protocol.records import Compression, Record, build_batch
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.storage import LogConfig, PartitionLog
from harness.storage_logs import BASE_TIME, TOPIC_ID, opened, synced

DUMP = "kafka.tools.DumpLogSegments"
PRODUCER = 9


async def write_transactions(log: PartitionLog) -> None:
    for number in range(120):
        records = [Record(i, BASE_TIME + number, b"k%d" % (number % 4), b"v" * 300) for i in range(3)]
        data = build_batch(
            records,
            compression=list(Compression)[number % 5],
            producer_id=PRODUCER,
            producer_epoch=1,
            base_sequence=3 * number,
            transactional=True,
        )
        log.append(data, leader_epoch=1 + number // 50, now_ms=BASE_TIME)
        if number % 10 == 9:
            marker = build_end_transaction_marker(
                committed=number % 20 == 9,
                producer_id=PRODUCER,
                producer_epoch=1,
                coordinator_epoch=3,
                timestamp=BASE_TIME + number,
            )
            log.append(marker, leader_epoch=1 + number // 50, now_ms=BASE_TIME, internal=True)
    await synced(log)


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A plain log with transactions and a compacted one, both with several segments, after a clean stop."""
    async with opened(tmp_path, LogConfig(segment_bytes=15_000)) as logs:
        await write_transactions(logs.create("plain", 0, TOPIC_ID))
        config = LogConfig(segment_bytes=15_000, compact=True, min_cleanable_dirty_ratio=0.0)
        compacted = logs.create("compacted", 0, TOPIC_ID, config)
        await write_transactions(compacted)
        compacted.set_high_watermark(compacted.end_offset)
        before = compacted.size_bytes
        await logs._housekeeping.cleaner.run()
        assert compacted.size_bytes < before
    return tmp_path


def test_dump_log_reads_segments_indexes_and_snapshots(folder: Path, java: Callable[..., str]) -> None:
    def dump(pattern: str, *options: str) -> str:
        files = sorted(str(path) for path in folder.glob(pattern))
        assert files
        return java(DUMP, "--files", ",".join(files), *options)

    plain = dump("plain-0/*.log", "--deep-iteration", "--print-data-log")
    assert plain.count("isvalid: true") == 132 and "isvalid: false" not in plain
    assert plain.count("endTxnMarker: COMMIT") == plain.count("endTxnMarker: ABORT") == 6
    compacted = dump("compacted-0/*.log", "--deep-iteration")
    assert "isvalid: true" in compacted and "isvalid: false" not in compacted

    for name in ("plain", "compacted"):
        checked = dump(f"{name}-0/*.index") + dump(f"{name}-0/*.timeindex")
        assert "Mismatches" not in checked and "not found" not in checked
        assert "passed sanity check" in dump(f"{name}-0/*.timeindex", "--index-sanity-check")

    assert dump("plain-0/*.txnindex").count(f"producerId: {PRODUCER}") == 6
    snapshots = dump("plain-0/*.snapshot")
    assert "lastSequence: 359" in snapshots and f"producerId: {PRODUCER} producerEpoch: 1" in snapshots
