"""Compaction among transactions: whatever is compacted when, readers of committed data see the same last values."""

from __future__ import annotations

import random

import pytest

from chronik.protocol.records import Record, build_batch, parse_batches, read_records
from chronik.protocol.records.control import build_end_transaction_marker, read_end_transaction_marker
from chronik.storage import LogConfig, LogManager, PartitionLog, compaction
from harness.simulated_disk import SimulatedDisk
from harness.storage_logs import BASE_TIME, TOPIC_ID, simulated, synced

CONFIG = LogConfig(compact=True, delete=False, segment_bytes=500, min_cleanable_dirty_ratio=0.0)
FLEETING = LogConfig(
    compact=True, delete=False, segment_bytes=500, min_cleanable_dirty_ratio=0.0, delete_retention_ms=0
)

SEEDS = 80
STEPS = 80
KEYS = (b"a", b"b", b"c")
PRODUCERS = 4


class History:
    """What was written to a log, and what a reader of committed data may see of it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        self.committed: list[tuple[int, bytes, bytes | None]] = []

    def plain(self, key: bytes, value: bytes | None) -> None:
        self.committed.append((self._append(key, value), key, value))

    def write(self, producer: int, key: bytes, value: bytes | None) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + 1
        offset = self._append(
            key, value, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        self.open.setdefault(producer, []).append((offset, key, value))

    def _append(self, key: bytes, value: bytes | None, **fields: object) -> int:
        batch = build_batch([Record(0, BASE_TIME, key, value)], **fields)  # type: ignore[arg-type]
        return self.log.append(batch, leader_epoch=1, now_ms=BASE_TIME).base_offset

    def end(self, producer: int, committed: bool) -> None:
        if producer not in self.open:
            return
        marker = build_end_transaction_marker(
            committed=committed, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=BASE_TIME
        )
        self.log.append(marker, leader_epoch=1, now_ms=BASE_TIME, internal=True)
        written = self.open.pop(producer)
        if committed:
            self.committed += written

    def last_values(self) -> dict[bytes, bytes]:
        stable = self.log.last_stable_offset
        found = {key: value for offset, key, value in sorted(self.committed, key=lambda it: it[0]) if offset < stable}
        return {key: value for key, value in found.items() if value is not None}


async def read_committed(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """What a client with isolation.level=read_committed hands to its application."""
    offset, stable = log.log_start_offset, log.last_stable_offset
    aborted = sorted(log.aborted_transactions(offset, stable), key=lambda entry: entry[1])
    skipped: set[int] = set()
    found = []
    while offset < stable:
        data = bytes(await log.read(offset, 1 << 20, end_offset=stable))
        assert data, "there is something up to the last stable offset"
        for info in parse_batches(data):
            raw = data[info.position : info.end]
            offset = info.next_offset
            while aborted and aborted[0][1] <= info.last_offset:
                skipped.add(aborted.pop(0)[0])
            if info.is_control:
                marker = read_end_transaction_marker(raw) if info.record_count else None
                if marker is not None and not marker.committed:
                    skipped.discard(info.producer_id)
            elif not (info.is_transactional and info.producer_id in skipped):
                found += [(record.offset, record.key, record.value) for record in read_records(raw)]
    return found


async def compact(logs: LogManager, log: PartitionLog) -> None:
    await synced(log)
    log.set_high_watermark(log.end_offset)
    await logs._housekeeping.cleaner.run()


@pytest.mark.parametrize("keys_max", [compaction.KEYS_MAX, 2], ids=["one pass", "many passes"])
async def test_readers_of_committed_data_see_the_same_last_values(
    keys_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEYS_MAX", keys_max)
    for seed in range(SEEDS):
        chance = random.Random(seed)
        disk, config = SimulatedDisk(), chance.choice((CONFIG, FLEETING))
        async with simulated(disk, config) as logs:
            log = logs.create("t", 0, TOPIC_ID)
            history = History(log)
            await run(chance, logs, history)
            expected = history.last_values()
            await check(log, expected, seed)
        async with simulated(disk, config) as logs:
            reopened = logs.get("t", 0)
            assert reopened is not None
            reopened.set_high_watermark(reopened.end_offset)
            await check(reopened, expected, seed)


async def run(chance: random.Random, logs: LogManager, history: History) -> None:
    """Steps drawn at rates that are drawn themselves, so that seeds differ in more than their order."""
    kinds = ["plain", "write", "commit", "abort", "roll", "compact"]
    rates = [chance.choice((0, 1, 3)), 4, chance.choice((0, 1, 2)), chance.choice((1, 2)), 1, chance.choice((0, 1))]
    history.plain(KEYS[0], b"first")
    for number, kind in enumerate(chance.choices(kinds, rates, k=STEPS)):
        producer, key = chance.randrange(PRODUCERS), chance.choice(KEYS)
        value = None if chance.random() < 0.1 else b"%d" % number
        if kind == "plain":
            history.plain(key, value)
        elif kind == "write":
            history.write(producer, key, value)
        elif kind == "roll":
            if history.log.segments[-1].size:
                history.log.roll()
        elif kind == "compact":
            await compact(logs, history.log)
        else:
            history.end(producer, kind == "commit")
    await compact(logs, history.log)


async def check(log: PartitionLog, expected: dict[bytes, bytes], seed: int) -> None:
    seen = await read_committed(log)
    assert [offset for offset, _, _ in seen] == sorted({offset for offset, _, _ in seen}), f"seed {seed}"
    last = {key: value for _, key, value in seen}
    assert {key: value for key, value in last.items() if value is not None} == expected, f"seed {seed}"
