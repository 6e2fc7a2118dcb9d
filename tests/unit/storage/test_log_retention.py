"""Deleting what need not be kept: by age, by size, by request, with whole topics; never beyond the high watermark."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace

import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.storage import LogConfig, LogManager, PartitionLog
from chronik.storage.deletion import REMOVALS_PER_ROUND, REST_PER_WORK, Trash
from chronik.storage.manager import Threads
from harness.simulated_disk import InlineExecutor, SimulatedDisk, SteppedExecutor
from harness.storage_logs import BASE_TIME, TOPIC_ID, append, read_all, simulated, synced, until

HOUR = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.ms = BASE_TIME

    def __call__(self) -> float:
        return self.ms / 1000


def config(**changes: object) -> LogConfig:
    fields = {"retention_ms": -1, "segment_bytes": 300, "index_interval_bytes": 50, "file_delete_delay_ms": 1000}
    return LogConfig(**{**fields, **changes})  # type: ignore[arg-type]


async def filled(logs: LogManager, settings: LogConfig, count: int = 12) -> PartitionLog:
    """A log with two records of about 100 bytes in each segment, an hour apart."""
    log = logs.create("t", 0, TOPIC_ID, settings)
    for number in range(count):
        append(log, b"%d" % number + b"." * 40, timestamp=BASE_TIME + number * HOUR)
    await synced(log)
    log.set_high_watermark(log.end_offset)
    return log


async def test_segments_older_than_the_retention_time_go() -> None:
    clock = Clock()
    async with simulated(SimulatedDisk(), clock=clock) as logs:
        log = await filled(logs, config(retention_ms=3 * HOUR))
        clock.ms = BASE_TIME + 8 * HOUR
        await logs._housekeeping.apply_retention()
        assert 0 < log.log_start_offset <= 5
        assert log.log_start_offset == log.bases[0]
        assert [offset for offset, _ in await read_all(log)] == list(range(log.log_start_offset, 12))
        with pytest.raises(KafkaError):
            log.read_nowait(0, 100)


async def test_a_full_disk_does_not_keep_retention_from_making_room() -> None:
    clock, disk = Clock(), SimulatedDisk()
    settings = config(retention_ms=3 * HOUR, file_delete_delay_ms=0)
    async with simulated(disk, clock=clock) as logs:
        made = [logs.create(name, 0, TOPIC_ID, settings) for name in ("a", "b")]
        for log in made:
            for number in range(6):
                append(log, b"%d" % number + b"." * 40, timestamp=BASE_TIME + number * HOUR)
            await synced(log)
            log.set_high_watermark(log.end_offset)
        clock.ms = BASE_TIME + 100 * HOUR
        disk.capacity = disk.used()
        await logs._housekeeping.apply_retention()
        assert [len(log.segments) for log in made] == [1, 1], "all but the last, for which a new one cannot begin"
        await logs._trash.run()
        disk.capacity = None
        await logs._housekeeping.apply_retention()
        assert [log.log_start_offset for log in made] == [6, 6]


async def test_an_open_transaction_holds_up_neither_retention_nor_readers_of_what_is_left() -> None:
    clock = Clock()
    async with simulated(SimulatedDisk(), clock=clock) as logs:
        log = logs.create("t", 0, TOPIC_ID, config(retention_ms=3 * HOUR))
        append(log, b"open", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        for number in range(12):
            append(log, b"%d" % number + b"." * 40, timestamp=BASE_TIME + number * HOUR)
        await synced(log)
        log.set_high_watermark(log.end_offset)
        assert log.last_stable_offset == 0
        clock.ms = BASE_TIME + 8 * HOUR
        await logs._housekeeping.apply_retention()
        assert log.log_start_offset > 0, "it goes, though the transaction that it belongs to is open"
        assert log.last_stable_offset == log.log_start_offset, "an offset that can be read from, not one that is gone"


async def test_when_everything_is_too_old_the_log_is_empty_but_goes_on_at_its_end() -> None:
    clock, disk = Clock(), SimulatedDisk()
    async with simulated(disk, clock=clock) as logs:
        log = await filled(logs, config(retention_ms=3 * HOUR))
        clock.ms = BASE_TIME + 100 * HOUR
        await logs._housekeeping.apply_retention()
        assert (log.log_start_offset, log.end_offset, log.size_bytes) == (12, 12, 0)
        assert append(log, b"next", timestamp=clock.ms) == 12
    async with simulated(disk, clock=clock) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        assert (log.log_start_offset, log.end_offset) == (12, 13)


async def test_nothing_beyond_the_high_watermark_goes() -> None:
    clock = Clock()
    async with simulated(SimulatedDisk(), clock=clock) as logs:
        log = logs.create("t", 0, TOPIC_ID, config(retention_ms=1, retention_bytes=1))
        for number in range(12):
            append(log, b"%d" % number + b"." * 40)
        clock.ms += 1000 * HOUR
        await logs._housekeeping.apply_retention()
        assert log.log_start_offset == 0
        log.set_high_watermark(5)
        await logs._housekeeping.apply_retention()
        assert 0 < log.log_start_offset <= 5


async def test_segments_beyond_the_retention_size_go_and_the_last_stays() -> None:
    async with simulated(SimulatedDisk()) as logs:
        log = await filled(logs, config(retention_bytes=500))
        before = log.size_bytes
        await logs._housekeeping.apply_retention()
        assert 500 <= log.size_bytes < min(before, 800)
        log.config = config(retention_bytes=0)
        await logs._housekeeping.apply_retention()
        assert len(log.segments) == 1 and log.end_offset == 12


async def test_a_compacted_topic_is_not_deleted_by_age() -> None:
    clock = Clock()
    async with simulated(SimulatedDisk(), clock=clock) as logs:
        log = await filled(logs, config(retention_ms=1, delete=False, compact=True))
        clock.ms += 1000 * HOUR
        await logs._housekeeping.apply_retention()
        assert log.log_start_offset == 0


async def test_delete_records_moves_the_start_and_frees_whole_segments() -> None:
    disk = SimulatedDisk()
    async with simulated(disk) as logs:
        log = await filled(logs, config())
        assert log.delete_records_to(7) == 7
        assert [offset for offset, _ in await read_all(log)] == [7, 8, 9, 10, 11]
        with pytest.raises(KafkaError) as refused:
            log.read_nowait(6, 100)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert log.delete_records_to(3) == 7, "the start never goes back"
        with pytest.raises(KafkaError):
            log.delete_records_to(13)
        before = log.size_bytes
        await logs._housekeeping.apply_retention()
        assert log.size_bytes < before and log.log_start_offset == 7
    async with simulated(disk) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        assert log.log_start_offset == 7


async def test_files_stay_for_readers_until_their_delay_is_over() -> None:
    clock, disk = Clock(), SimulatedDisk()
    async with simulated(disk, clock=clock) as logs:
        log = await filled(logs, config(retention_bytes=0))
        await logs._housekeeping.apply_retention()
        deleted = [name for name in disk.names("/data/t-0") if name.endswith(".deleted")]
        assert any(name.endswith(".log.deleted") for name in deleted)
        await logs._trash.run()
        assert set(deleted) <= set(disk.names("/data/t-0"))
        clock.ms += 1001
        await logs._trash.run()
        assert not [name for name in disk.names("/data/t-0") if name.endswith(".deleted")]
        assert await read_all(log)


async def test_deleting_a_topic_frees_its_disk_and_the_name() -> None:
    clock, disk = Clock(), SimulatedDisk()
    async with simulated(disk, clock=clock) as logs:
        log = await filled(logs, config())
        used = disk.used()
        logs.delete("t", 0)
        assert logs.get("t", 0) is None
        with pytest.raises(KafkaError) as refused:
            append(log, b"late")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        new = logs.create("t", 0, bytes(16), config())
        assert append(new, b"other topic") == 0
        clock.ms += 1001
        await logs._trash.run()
        assert disk.used() < used / 4
        assert not [name for name in disk.names("/data") if name.endswith("-delete")]
        assert await read_all(new) == [(0, b"other topic")]


@pytest.mark.parametrize("checkpoint", [False, True], ids=["at once", "after a checkpoint"])
async def test_a_new_topic_of_an_old_name_inherits_nothing_from_checkpoints(checkpoint: bool) -> None:
    disk = SimulatedDisk()
    async with simulated(disk, close=False) as logs:
        log = await filled(logs, config())
        log.delete_records_to(9)
        await logs._checkpointer.run()
        logs.delete("t", 0)
        if checkpoint:
            await logs._checkpointer.run()
            assert b"t 0" not in disk.contents("/data/recovery-point-offset-checkpoint")
        new = logs.create("t", 0, bytes(16), config())
        append(new, b"first")
        append(new, b"second")
        await synced(new)
        disk.power_cut(keep=0.0)
    async with simulated(disk) as logs:
        new = logs.create("t", 0, bytes(16))
        assert (new.log_start_offset, new.high_watermark) == (0, 0)
        assert await read_all(new) == [(0, b"first"), (1, b"second")]


async def test_a_log_deleted_and_made_again_during_a_checkpoint_is_not_mixed_with_the_old_one() -> None:
    disk = SimulatedDisk()
    inline, stepped = InlineExecutor(), SteppedExecutor()
    async with simulated(disk, close=False, threads=Threads(inline, inline, inline)) as logs:
        log = await filled(logs, config())
        for sequence in range(3):
            append(log, b"x", producer_id=7, producer_epoch=0, base_sequence=sequence, epoch=30)
        await synced(log)
        logs._checkpointer._executor = stepped
        writing = asyncio.ensure_future(logs._checkpointer.run())
        await until(lambda: len(stepped.jobs) == 1)
        logs.delete("t", 0)
        new = logs.create("t", 0, bytes(16), config())
        append(new, b"first", epoch=1)
        stepped.step()
        await writing
        logs._checkpointer._executor = inline
        await synced(new)
        await logs._checkpointer.run()
        assert [name for name in disk.names("/data/t-0") if name.endswith(".snapshot")] == []
        disk.power_cut(keep=0.0)
    async with simulated(disk) as logs:
        new = logs.create("t", 0, bytes(16))
        assert await read_all(new) == [(0, b"first")]
        assert (new.latest_epoch, new.log_start_offset, new.producers()) == (1, 0, [])


async def test_a_deletion_that_a_crash_interrupts_is_finished_at_the_next_start() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, close=False) as logs:
        await filled(logs, config())
        logs.delete("t", 0)
        disk.sync_everything()
    async with simulated(disk) as logs:
        assert len(logs) == 0
        await logs._trash.run()
        assert not [name for name in disk.names("/data") if name.endswith("-delete")]


async def test_the_removal_of_many_files_rests_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it keeps the loop from the interpreter for as long as it lasts."""
    disk, rounds, rests, now = SimulatedDisk(), [], [], [0.0]

    class Slow(InlineExecutor):
        def submit(self, job, paths):  # type: ignore[no-untyped-def]
            rounds.append(len(paths))
            now[0] += 2.0
            return super().submit(job, paths)

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("chronik.storage.deletion.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("chronik.storage.deletion.asyncio.sleep", rest)
    trash = Trash(disk, Slow(), lambda: 0)
    for number in range(2 * REMOVALS_PER_ROUND + 1):
        disk.open(f"/{number}.deleted", create=True).close()
        trash.add_path(f"/{number}.deleted", 0)
    assert await trash.run() == 2 * REMOVALS_PER_ROUND + 1
    assert disk.names("/") == []
    assert rounds == [REMOVALS_PER_ROUND, REMOVALS_PER_ROUND, 1]
    assert rests == [2.0 * REST_PER_WORK] * 2


async def test_deleting_a_partition_without_data_touches_no_disk() -> None:
    disk = SimulatedDisk()
    async with simulated(disk) as logs:
        logs.create("t", 0, TOPIC_ID)
        operations = disk.operations
        logs.delete("t", 0)
        logs.delete("never", 0)
        assert disk.operations == operations


async def test_data_that_is_set_aside_is_kept_and_not_opened_again() -> None:
    disk = SimulatedDisk()
    async with simulated(disk) as logs:
        await filled(logs, config())
        used = disk.used()
        path = logs.set_aside("t", 0)
        assert path is not None and path.endswith("-stray") and disk.used() == used
        assert logs.get("t", 0) is None
    async with simulated(disk) as logs:
        assert len(logs) == 0 and disk.is_directory(path)


async def test_the_longest_topic_name_can_be_deleted() -> None:
    disk = SimulatedDisk()
    async with simulated(disk) as logs:
        append(logs.create("n" * 249, 12345, TOPIC_ID), b"a")
        logs.delete("n" * 249, 12345)
        (name,) = [name for name in disk.names("/data") if name.endswith("-delete")]
        assert len(name) <= 255


async def test_a_folder_that_could_not_be_put_away_is_not_written_into(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()

    def broken(source: str, target: str) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    async with simulated(disk) as logs:
        await filled(logs, config())
        old = {name: disk.contents(f"/data/t-0/{name}") for name in disk.names("/data/t-0") if name.endswith(".log")}
        monkeypatch.setattr(disk, "rename", broken)
        logs.delete("t", 0)
        again = logs.create("t", 0, bytes(16), config())
        with pytest.raises(KafkaError) as refused:
            append(again, b"new")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert again.failure is not None and "of an earlier topic" in again.failure
        assert old == {name: disk.contents(f"/data/t-0/{name}") for name in old}
        monkeypatch.undo()
