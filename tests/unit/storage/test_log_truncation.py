"""Truncating a follower's log: exactly, with everything that was known of the records that go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.storage import LogConfig, PartitionLog
from harness.simulated_disk import SimulatedDisk
from harness.storage_logs import BASE_TIME, TOPIC_ID, append, read_all, settled, simulated, synced

SMALL = LogConfig(index_interval_bytes=50, segment_bytes=500)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 40),
    cut=st.integers(0, 45),
    segment_bytes=st.integers(200, 2000),
    after=st.integers(0, 5),
    cold=st.booleans(),
)
async def test_after_a_truncation_the_log_is_as_if_the_rest_had_never_been(
    count: int, cut: int, segment_bytes: int, after: int, cold: bool
) -> None:
    config = LogConfig(index_interval_bytes=50, segment_bytes=segment_bytes)
    disk = SimulatedDisk()
    disk.cold = cold
    truth: list[tuple[int, bytes]] = []
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(count):
            append(log, b"old %d" % number, epoch=number // 5, timestamp=BASE_TIME + number)
            truth.append((number, b"old %d" % number))
        log.set_high_watermark(count)
        log.truncate_to(cut)
        truth = truth[:cut]
        assert log.end_offset == log.high_watermark == len(truth)
        assert log.latest_epoch == ((len(truth) - 1) // 5 if truth else -1)
        assert await log.offset_for_timestamp(BASE_TIME + len(truth)) is None
        for number in range(after):
            append(log, b"new %d" % number, epoch=100, timestamp=BASE_TIME + 1000 + number)
            truth.append((log.end_offset - 1, b"new %d" % number))
        assert await read_all(log, step=100) == truth
        if truth:
            newest = await log.max_timestamp_offset()
            assert newest is not None and newest[0] == truth[-1][0]
    async with simulated(disk, config) as logs:
        log = logs.get("t", 0)
        assert log is not None and await read_all(log) == truth


async def test_a_batch_cut_in_its_middle_goes_as_a_whole() -> None:
    async with simulated(SimulatedDisk(), SMALL) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a")
        append(log, b"b", b"c", b"d")
        log.truncate_to(2)
        assert log.end_offset == 1 and await read_all(log) == [(0, b"a")]


async def test_producer_state_is_what_it_was_at_the_new_end() -> None:
    def idempotent(log: PartitionLog, sequence: int) -> object:
        data = build_batch(
            [Record(0, BASE_TIME, None, b"%d" % sequence)], producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        return log.append(data, leader_epoch=1, now_ms=BASE_TIME)

    async with simulated(SimulatedDisk(), SMALL) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for sequence in range(30):
            idempotent(log, sequence)
        log.truncate_to(12)
        assert idempotent(log, 11).duplicate, "the last batch that is left is known"  # type: ignore[attr-defined]
        with pytest.raises(KafkaError):
            idempotent(log, 13)
        assert idempotent(log, 12).base_offset == 12  # type: ignore[attr-defined]
        log.truncate_to(0)
        assert idempotent(log, 5).base_offset == 0, "nobody knows the producer any more"  # type: ignore[attr-defined]


async def test_transactions_are_open_again_when_their_marker_goes() -> None:
    async with simulated(SimulatedDisk(), LogConfig()) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        data = build_batch(
            [Record(0, BASE_TIME, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        )
        log.append(data, leader_epoch=1, now_ms=BASE_TIME)
        marker = build_end_transaction_marker(
            committed=False, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=BASE_TIME
        )
        log.append(marker, leader_epoch=1, now_ms=BASE_TIME, internal=True)
        await synced(log)
        log.set_high_watermark(2)
        assert (log.last_stable_offset, log.aborted_transactions(0, 2)) == (2, [(7, 0)])
        log.truncate_to(1)
        assert [entry.first_offset for entry in log.open_transactions()] == [0]
        assert (log.last_stable_offset, log.aborted_transactions(0, 2)) == (0, [])


async def test_reset_starts_the_log_anew_at_an_offset() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, SMALL) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(10):
            append(log, b"%d" % number)
        log.reset_to(500)
        assert (log.log_start_offset, log.end_offset, log.size_bytes, log.latest_epoch) == (500, 500, 0, -1)
        with pytest.raises(KafkaError) as refused:
            log.read_nowait(9, 100)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        await settled(log)
        disk.power_cut(keep=0.0)
    async with simulated(disk, SMALL) as logs:
        log = logs.get("t", 0)
        assert log is not None and (log.log_start_offset, log.end_offset) == (500, 500)
        assert append(log, b"first") == 500


async def test_a_read_that_waits_while_the_log_is_truncated_returns_no_old_bytes() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, LogConfig()) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(4):
            append(log, b"old %d" % number)
        disk.cold = True
        original = log._on_thread.__func__  # type: ignore[attr-defined]
        changed = False

        async def truncate_meanwhile(self: PartitionLog, job: object) -> object:
            nonlocal changed
            found = await original(self, job)
            if not changed:
                changed = True
                log.truncate_to(2)
                append(log, b"new 2", epoch=9)
            return found

        type(log)._on_thread = truncate_meanwhile  # type: ignore[assignment, method-assign]
        try:
            assert await read_all(log, 2) == [(2, b"new 2")]
        finally:
            del type(log)._on_thread
