"""What happens to a log while a thread reads it: the reader gets what is there afterwards, or hears that it is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch, parse_batches, read_records
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.storage import LogConfig, LogManager, PartitionLog
from harness.simulated_disk import SimulatedDisk
from harness.storage_logs import BASE_TIME, EPOCH, TOPIC_ID, append, read_all, simulated, synced

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=50)
COMPACTED = LogConfig(
    compact=True, delete=False, segment_bytes=300, min_cleanable_dirty_ratio=0.0, delete_retention_ms=0
)
ABORTING = 7

Change = Callable[[], Awaitable[None]]


def meanwhile(
    log: PartitionLog, change: Change, monkeypatch: pytest.MonkeyPatch, *, before_the_disk: bool = False
) -> None:
    """Lets `change` happen once, under the next read that a thread does: before it has seen the disk, or after."""
    original = type(log)._on_thread
    pending = [change]

    async def on_thread(self: PartitionLog, job: Callable[[], object]) -> object:
        if before_the_disk and pending:
            await pending.pop()()
        try:
            return await original(self, job)
        finally:
            if pending:
                await pending.pop()()

    monkeypatch.setattr(type(log), "_on_thread", on_thread)


def write(log: PartitionLog, key: bytes, value: bytes, **fields: object) -> int:
    batch = build_batch([Record(0, BASE_TIME, key, value)], **fields)  # type: ignore[arg-type]
    return log.append(batch, leader_epoch=EPOCH, now_ms=BASE_TIME).base_offset


async def with_an_aborted_transaction(logs: LogManager, config: LogConfig) -> PartitionLog:
    """Offset 0 is of a transaction that was aborted, in a segment that is no longer written to."""
    log = logs.create("t", 0, TOPIC_ID, config)
    for sequence, value in enumerate((b"aborted", b"committed")):
        write(log, b"a", value, producer_id=ABORTING, producer_epoch=0, base_sequence=sequence, transactional=True)
        marker = build_end_transaction_marker(
            committed=value == b"committed",
            producer_id=ABORTING,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=BASE_TIME,
        )
        log.append(marker, leader_epoch=EPOCH, now_ms=BASE_TIME, internal=True)
    await write_more(log)
    assert log.segments[0].next_offset < log.end_offset
    return log


async def write_more(log: PartitionLog) -> None:
    for number in range(8):
        write(log, b"b", b"%d" % number + b"." * 40)
    await synced(log)
    log.set_high_watermark(log.end_offset)


def shown(data: bytes | bytearray | memoryview, aborted: list[tuple[int, int]]) -> list[bytes | None]:
    """What a reader of committed data hands to its application, where transactions are of one batch each."""
    return [
        record.value
        for info in parse_batches(data)
        if not info.is_control and (info.producer_id, info.base_offset) not in aborted
        for record in read_records(memoryview(data)[info.position : info.end])
    ]


async def test_a_segment_that_is_compacted_under_a_read_does_not_show_what_was_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    async with simulated(disk) as logs:
        log = await with_an_aborted_transaction(logs, COMPACTED)
        disk.cold = True
        first = log.segments[0]

        async def compact() -> None:
            await logs._housekeeping.cleaner.run()
            await write_more(log)
            await logs._housekeeping.cleaner.run()  # the first run keeps the word of what was aborted
            assert log.segments[0] is not first

        meanwhile(log, compact, monkeypatch)
        data = await log.read(0, 1 << 20)
        values = shown(data, log.aborted_transactions(0, log.last_stable_offset))
        assert values and b"aborted" not in values


async def test_a_segment_that_retention_drops_under_a_read_does_not_show_what_was_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    async with simulated(disk) as logs:
        log = await with_an_aborted_transaction(logs, SMALL)
        disk.cold = True

        async def drop() -> None:
            log.drop_oldest(1)

        meanwhile(log, drop, monkeypatch)
        with pytest.raises(KafkaError) as gone:
            await log.read(0, 1 << 20)
        assert gone.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert log.aborted_transactions(0, log.last_stable_offset) == [], "nothing tells any more what was aborted"


async def test_a_log_that_is_cut_before_the_disk_was_read_is_not_called_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    async with simulated(disk) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(6):
            append(log, b"%d" % number)
        disk.cold = True

        async def truncate() -> None:
            log.truncate_to(2)

        meanwhile(log, truncate, monkeypatch, before_the_disk=True)
        assert await read_all(log, 0, 6) == [(0, b"0"), (1, b"1")]


async def timed(logs: LogManager, config: LogConfig, count: int = 12) -> PartitionLog:
    """A record every millisecond, of two keys in turn, in several segments."""
    log = logs.create("t", 0, TOPIC_ID, config)
    for number in range(count):
        value = b"%d" % number + b"." * 60
        append(log, value, key=b"ab"[number % 2 : number % 2 + 1], timestamp=BASE_TIME + number)
    await synced(log)
    log.set_high_watermark(log.end_offset)
    assert len(log.segments) > 3
    return log


async def test_a_search_does_not_find_what_was_cut_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated(SimulatedDisk()) as logs:
        log = await timed(logs, SMALL)

        async def cut() -> None:
            log.truncate_to(5)
            append(log, b"another", timestamp=BASE_TIME + 5, epoch=EPOCH + 4)

        meanwhile(log, cut, monkeypatch)
        assert await log.offset_for_timestamp(BASE_TIME + 5) == (5, BASE_TIME + 5, EPOCH + 4)


async def test_the_largest_timestamp_is_not_that_of_what_was_cut_under_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with simulated(SimulatedDisk()) as logs:
        log = await timed(logs, SMALL)

        async def cut() -> None:
            log.truncate_to(5)

        meanwhile(log, cut, monkeypatch, before_the_disk=True)
        assert await log.max_timestamp_offset() == (4, BASE_TIME + 4, EPOCH)


async def test_a_search_goes_on_in_the_segments_that_compaction_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated(SimulatedDisk(), clock=lambda: BASE_TIME / 1000 + 1) as logs:
        log = await timed(logs, COMPACTED)
        held = list(log.segments)

        async def compact() -> None:
            await logs._housekeeping.cleaner.run()
            assert log.segments[0] is not held[0]
            await logs._trash.run(everything=True)

        meanwhile(log, compact, monkeypatch)
        found = await log.offset_for_timestamp(BASE_TIME + 1)
        values = dict(await read_all(log))
        assert found is not None and found[0] == min(offset for offset in values if offset >= 1)


async def test_a_search_does_not_answer_with_what_retention_dropped_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated(SimulatedDisk()) as logs:
        log = await timed(logs, SMALL)

        async def drop() -> None:
            log.drop_oldest(2)

        meanwhile(log, drop, monkeypatch)
        found = await log.offset_for_timestamp(BASE_TIME)
        assert found is not None and found[0] == log.log_start_offset > 0


async def test_a_log_that_is_cut_under_compaction_is_not_taken_for_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated(SimulatedDisk(), clock=lambda: BASE_TIME / 1000 + 1) as logs:
        log = await timed(logs, COMPACTED)
        cleaner = logs._housekeeping.cleaner
        original = cleaner._on_thread
        cut = log.segments[0].next_offset - 1

        async def on_thread(job: Callable[[], object]) -> object:
            if log.end_offset > cut:
                log.truncate_to(cut)
            return await original(job)

        monkeypatch.setattr(cleaner, "_on_thread", on_thread)
        await cleaner.run()
        assert log.end_offset == cut
        for number in range(12):
            append(log, b"%d" % number + b"." * 60, key=b"a", timestamp=BASE_TIME)
        await synced(log)
        log.set_high_watermark(log.end_offset)
        size = log.size_bytes
        await cleaner.run()
        assert log.size_bytes < size, "it is compacted as ever"


async def test_a_search_does_not_answer_with_records_that_were_deleted_under_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with simulated(SimulatedDisk()) as logs:
        log = await timed(logs, SMALL)

        async def delete() -> None:
            log.delete_records_to(1)

        meanwhile(log, delete, monkeypatch)
        assert await log.offset_for_timestamp(BASE_TIME) == (1, BASE_TIME + 1, EPOCH)
