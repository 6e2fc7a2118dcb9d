"""Compaction: of each key the last record stays, at its offset, and a crash in the middle changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.records import Compression, Record, build_batch, parse_batches, read_records
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.storage import LogConfig, LogManager, PartitionLog
from chronik.storage import compaction as compaction_module
from chronik.storage.cleaner import find_candidate
from chronik.storage.manager import Threads
from harness.simulated_disk import InlineExecutor, PowerCut, SimulatedDisk, SteppedExecutor
from harness.storage_logs import BASE_TIME, TOPIC_ID, settled, simulated, synced

DAY = 24 * 60 * 60 * 1000
COMPACT = LogConfig(
    compact=True, delete=False, segment_bytes=1000, index_interval_bytes=100, min_cleanable_dirty_ratio=0.0
)


class Clock:
    def __init__(self) -> None:
        self.ms = BASE_TIME

    def __call__(self) -> float:
        return self.ms / 1000


def put(log: PartitionLog, *pairs: tuple[bytes, bytes | None], **fields: object) -> int:
    records = [Record(number, BASE_TIME, key, value) for number, (key, value) in enumerate(pairs)]
    batch = build_batch(records, **fields)  # type: ignore[arg-type]
    return log.append(batch, leader_epoch=1, now_ms=BASE_TIME).base_offset


def end_transaction(log: PartitionLog, producer: int, committed: bool, epoch: int = 0) -> int:
    marker = build_end_transaction_marker(
        committed=committed, producer_id=producer, producer_epoch=epoch, coordinator_epoch=0, timestamp=BASE_TIME
    )
    return log.append(marker, leader_epoch=1, now_ms=BASE_TIME, internal=True).base_offset


async def compact(logs: LogManager, log: PartitionLog) -> None:
    """Close the last segment and compact everything before the new one."""
    if log.segments[-1].size:
        log.roll()
    await synced(log)
    log.set_high_watermark(log.end_offset)
    await logs._housekeeping.cleaner.run()


async def records(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every data record."""
    found = []
    for info, data in await batches(log):
        if not info.is_control:
            found += [(record.offset, record.key, record.value) for record in read_records(data)]
    return found


async def batches(log: PartitionLog) -> list[tuple[object, bytes]]:
    offset = log.log_start_offset
    found = []
    while offset < log.end_offset:
        data = bytes(await log.read(offset, 1 << 20))
        if not data:
            break
        for info in parse_batches(data):
            found.append((info, data[info.position : info.end]))
            offset = info.next_offset
    return found


async def test_only_the_last_record_of_each_key_stays_at_its_offset() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        last: dict[bytes, tuple[int, bytes]] = {}
        for number in range(120):
            key, value = b"k%d" % (number % 7), b"%d" % number + b"." * 50
            last[key] = (put(log, (key, value)), value)
        before, end = log.size_bytes, log.end_offset
        await compact(logs, log)
        assert sorted((offset, key, value) for offset, key, value in await records(log)) == sorted(
            (offset, key, value) for key, (offset, value) in last.items()
        )
        assert log.size_bytes < before / 4
        assert (log.log_start_offset, log.end_offset, log.cleaned_to) == (0, end, end)
        put(log, (b"k1", b"again"))
        assert log.end_offset == end + 1
        kept = await records(log)
    async with simulated(disk, COMPACT) as logs:
        reopened = logs.get("t", 0)
        assert reopened is not None and reopened.cleaned_to == end
        assert await records(reopened) == kept


async def test_the_time_in_which_nothing_was_compacted_does_not_count_as_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction rests in proportion to its work: an hour without any must not make the next pass rest for hours."""
    rests: list[float] = []
    monkeypatch.setattr(compaction_module.time, "sleep", rests.append)
    async with simulated(SimulatedDisk(), COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(40):
            put(log, (b"k", b"%d" % number + b"." * 50))
        logs._housekeeping.cleaner._pacer._since -= 3_600
        await compact(logs, log)
        assert len(await records(log)) == 1
    assert sum(rests) < 60


async def test_a_batch_that_loses_records_keeps_its_range_and_codec() -> None:
    async with simulated(SimulatedDisk(), COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for codec in (Compression.NONE, Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY):
            put(log, (b"gone", b"1"), (b"stays-" + codec.label.encode(), b"2"), (b"gone", b"3"), compression=codec)
        put(log, (b"gone", b"last"))
        await compact(logs, log)
        kept = await batches(log)
        assert [(info.base_offset, info.last_offset, info.record_count) for info, _ in kept] == [
            *((3 * number, 3 * number + 2, 1) for number in range(5)),
            (15, 15, 1),
        ]
        assert [info.compression.label for info, _ in kept[:5]] == ["none", "gzip", "lz4", "zstd", "snappy"]


async def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    clock = Clock()
    config = LogConfig(compact=True, delete=False, min_cleanable_dirty_ratio=0.0, delete_retention_ms=DAY)
    async with simulated(SimulatedDisk(), config, clock=clock) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"k", b"value"))
        put(log, (b"k", None))
        put(log, (b"other", b"x"))
        await compact(logs, log)
        assert await records(log) == [(1, b"k", None), (2, b"other", b"x")]
        clock.ms += DAY - 1000
        put(log, (b"more", b"y"))
        await compact(logs, log)
        assert (1, b"k", None) in await records(log)
        clock.ms += 2000
        put(log, (b"most", b"z"))
        await compact(logs, log)
        assert [key for _, key, _ in await records(log)] == [b"other", b"more", b"most"]


async def test_the_open_segment_and_undecided_records_are_left_alone() -> None:
    async with simulated(SimulatedDisk(), COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"k", b"1"))
        log.roll()
        put(log, (b"k", b"2"))
        await synced(log)
        assert find_candidate(log, BASE_TIME) is None, "nothing is below the high watermark"
        log.set_high_watermark(1)
        candidate = find_candidate(log, BASE_TIME)
        assert candidate is not None and (candidate.start, candidate.end) == (0, 1)
        await logs._housekeeping.cleaner.run()
        assert [value for _, _, value in await records(log)] == [b"1", b"2"]


async def test_young_records_wait_and_old_ones_are_compacted_whatever_the_ratio() -> None:
    clock = Clock()
    config = LogConfig(compact=True, min_cleanable_dirty_ratio=1.0, min_compaction_lag_ms=1000)
    async with simulated(SimulatedDisk(), config, clock=clock) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"k", b"1"))
        log.roll()
        await synced(log)
        log.set_high_watermark(log.end_offset)
        assert find_candidate(log, BASE_TIME + 999) is None
        assert find_candidate(log, BASE_TIME + 1000) is None, "the ratio is not above 1.0"
        log.config = LogConfig(compact=True, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)
        assert find_candidate(log, BASE_TIME + 5000) is None
        assert find_candidate(log, BASE_TIME + 5001) is not None
        put(log, (b"k", b"2"))
        clock.ms += 5001
        await logs._housekeeping.cleaner.run()
        assert len(log.segments) == 2 or log.segments[-1].size == 0, "the last segment was closed too"


async def test_aborted_records_go_and_markers_go_after_them() -> None:
    clock = Clock()
    config = LogConfig(compact=True, min_cleanable_dirty_ratio=0.0, delete_retention_ms=DAY, retention_ms=-1)
    async with simulated(SimulatedDisk(), config, clock=clock) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"a", b"before"))
        put(log, (b"a", b"aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        abort = end_transaction(log, 7, committed=False)
        put(log, (b"b", b"committed"), producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
        commit = end_transaction(log, 8, committed=True)
        put(log, (b"z", b"end"))
        await compact(logs, log)
        assert [(key, value) for _, key, value in await records(log)] == [
            (b"a", b"before"),
            (b"b", b"committed"),
            (b"z", b"end"),
        ]
        assert [info.base_offset for info, _ in await batches(log) if info.is_control] == [abort, commit]
        assert log.aborted_transactions(0, log.end_offset) == [(7, 1)]
        # Producer 7 is forgotten, its emptied batch goes, the marker gets its horizon, the marker goes.
        for _ in range(3):
            assert abort in [info.base_offset for info, _ in await batches(log)]
            clock.ms += DAY + 1
            await logs._housekeeping.expire_producers()
            put(log, (b"z", b"end"))
            await compact(logs, log)
        assert [info.base_offset for info, _ in await batches(log) if info.is_control and info.record_count] == [commit]


async def test_an_aborted_record_replaces_nothing_though_its_marker_lies_beyond_what_is_compacted() -> None:
    async with simulated(SimulatedDisk(), COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"a", b"committed"))
        put(log, (b"a", b"aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        log.roll()
        put(log, (b"b", b"open"), producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
        end_transaction(log, 7, committed=False)
        await compact(logs, log)
        assert log.cleaned_to == 2, "the first segment alone: in the second a transaction is open"
        assert [(key, value) for _, key, value in await records(log)] == [(b"a", b"committed"), (b"b", b"open")]


async def test_a_producer_that_aborted_once_has_its_later_commits_compacted() -> None:
    async with simulated(SimulatedDisk(), COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"a", b"aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        end_transaction(log, 7, committed=False)
        await compact(logs, log)
        put(log, (b"a", b"first"), producer_id=7, producer_epoch=0, base_sequence=1, transactional=True)
        put(log, (b"a", b"second"), producer_id=7, producer_epoch=0, base_sequence=2, transactional=True)
        end_transaction(log, 7, committed=True)
        await compact(logs, log)
        assert [(key, value) for _, key, value in await records(log)] == [(b"a", b"second")]


async def test_the_sequence_of_a_producer_survives_compaction_and_a_crash() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, COMPACT, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"k", b"idempotent"), producer_id=7, producer_epoch=0, base_sequence=0)
        put(log, (b"k", b"later"))
        await compact(logs, log)
        kept = await batches(log)
        assert [(info.base_offset, info.record_count) for info, _ in kept] == [(0, 0), (1, 1)]
        for name in disk.names("/data/t-0"):
            if name.endswith(".snapshot"):
                disk.remove(f"/data/t-0/{name}")
        disk.sync_everything()
        disk.power_cut()
    async with simulated(disk, COMPACT) as logs:
        log = logs.get("t", 0)
        assert log is not None
        retried = build_batch(
            [Record(0, BASE_TIME, b"k", b"idempotent")], producer_id=7, producer_epoch=0, base_sequence=0
        )
        assert log.append(retried, leader_epoch=1, now_ms=BASE_TIME).duplicate


async def test_a_compacted_segment_still_ends_where_the_next_one_begins() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, COMPACT, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"a", b"1"))
        put(log, (b"b", b"superseded in the same segment"))
        put(log, (b"b", None))
        put(log, (b"b", b"superseded in the next segment" * 20))
        log.roll()
        put(log, (b"b", b"2" * 500))
        await compact(logs, log)
        await settled(log)
        disk.power_cut(keep=0.0)
    async with simulated(disk, COMPACT) as logs:
        log = logs.get("t", 0)
        assert log is not None and log.end_offset == 5
        assert await records(log) == [(0, b"a", b"1"), (4, b"b", b"2" * 500)]


async def test_a_compaction_for_which_there_is_no_room_leaves_nothing_and_is_done_later() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(60):
            put(log, (b"k%d" % number, b"." * 50))
        log.roll()
        await synced(log)
        log.set_high_watermark(log.end_offset)
        kept, before = await records(log), disk.used()
        disk.capacity = before + 100
        await logs._housekeeping.cleaner.run()
        assert disk.used() == before and log.cleaned_to == 0
        disk.capacity = None
        await logs._housekeeping.cleaner.run()
        assert log.cleaned_to == 60 and await records(log) == kept


async def test_damaged_segments_are_not_compacted() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        put(log, (b"k", b"1"))
        put(log, (b"k", b"2"))
        log.roll()
        disk.flip_bit("/data/t-0/00000000000000000000.log", 70)
        damaged = disk.contents("/data/t-0/00000000000000000000.log")
        await compact(logs, log)
        assert disk.contents("/data/t-0/00000000000000000000.log") == damaged


async def test_more_keys_than_fit_in_memory_take_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "KEYS_MAX", 10)
    async with simulated(SimulatedDisk(), COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(60):
            put(log, (b"k%d" % (number % 30), b"%d" % number))
        await compact(logs, log)
        assert 0 < log.cleaned_to < log.end_offset
        for _ in range(10):
            await logs._housekeeping.cleaner.run()
        assert log.cleaned_to == log.segments[-1].base_offset
        assert [value for _, _, value in await records(log)] == [b"%d" % number for number in range(30, 60)]


async def test_a_truncation_meanwhile_voids_a_compaction() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, COMPACT) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(40):
            put(log, (b"k", b"%d" % number + b"." * 50))
        log.roll()
        await synced(log)
        log.set_high_watermark(log.end_offset)
        cleaner = logs._housekeeping.cleaner
        original = cleaner._on_thread

        async def truncate_while_working(job: object) -> object:
            result = await original(job)  # type: ignore[arg-type]
            log.truncate_to(20)
            return result

        cleaner._on_thread = truncate_while_working  # type: ignore[assignment, method-assign]
        await cleaner.run()
        assert [value for _, _, value in await records(log)] == [b"%d" % n + b"." * 50 for n in range(20)]
        assert not [name for name in disk.names("/data/t-0") if name.endswith((".cleaned", ".swap"))]


async def test_power_lost_at_any_step_of_a_compaction_leaves_the_old_or_the_new() -> None:
    outcomes = set()
    for step in range(1, 100):
        disk = SimulatedDisk(step)
        inline, stepped = InlineExecutor(), SteppedExecutor()
        finished = False
        try:
            threads = Threads(stepped, inline, inline)
            async with simulated(disk, COMPACT, threads=threads, close=False) as logs:
                log = logs.create("t", 0, TOPIC_ID)
                for number in range(12):
                    put(log, (b"k%d" % (number % 3), b"%d" % number + b"." * 50))
                    if number % 4 == 3:
                        log.roll()
                await synced(log, stepped)
                await logs._checkpointer.run()
                log.set_high_watermark(log.end_offset)
                before = await records(log)
                disk.cut_at = disk.operations + step
                await logs._housekeeping.cleaner.run()
                finished = True
        except PowerCut:
            pass
        disk.power_cut()
        async with simulated(disk, COMPACT) as logs:
            log = logs.get("t", 0)
            assert log is not None and log.failure is None and log.end_offset == 12
            after = await records(log)
            assert set(after) <= set(before)
            assert {key: value for _, key, value in after} == {key: value for _, key, value in before}
            assert not [name for name in disk.names("/data/t-0") if name.endswith((".cleaned", ".swap", ".deleted"))]
            outcomes.add(len(after))
            assert len(log.segments) == (3 if len(after) < 12 else 4), "a new segment replaces two"
        if finished:
            break
    assert finished and {12, 3} <= outcomes


@settings(max_examples=40, deadline=None)
@given(
    writes=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=4),
        min_size=1,
        max_size=40,
    ),
    rounds=st.integers(1, 3),
)
async def test_compaction_never_changes_what_a_key_ends_with(
    writes: list[list[tuple[int, int | None]]], rounds: int
) -> None:
    config = LogConfig(compact=True, delete=False, segment_bytes=400, min_cleanable_dirty_ratio=0.0)
    final: dict[bytes, bytes | None] = {}
    async with simulated(SimulatedDisk(), config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(rounds):
            for write in writes:
                pairs = [(b"k%d" % key, None if value is None else b"%d.%d" % (number, value)) for key, value in write]
                put(log, *pairs)
                final.update(pairs)
            await compact(logs, log)
        kept = await records(log)
        assert {key: value for _, key, value in kept} == final
        assert len(kept) == len(final)
        assert [offset for offset, _, _ in kept] == sorted(offset for offset, _, _ in kept)
