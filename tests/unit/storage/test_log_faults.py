"""When the disk fails or fills up: nothing is acknowledged that is not stored, and everybody is told why."""

from __future__ import annotations

import errno

import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.storage import LogConfig, PartitionLog
from chronik.storage.group_commit import SYNC_EVERYTHING_FROM
from chronik.storage.manager import Threads
from harness.simulated_disk import InlineExecutor, SimulatedDisk, SteppedExecutor
from harness.storage_logs import TOPIC_ID, append, read_all, simulated, synced, until

FSYNC = LogConfig(index_interval_bytes=100)
OS = LogConfig(durability="os", index_interval_bytes=100)


def is_log(path: str) -> bool:
    return path.endswith(".log") or path == "/"


async def test_after_a_failed_sync_nothing_is_acknowledged_any_more() -> None:
    disk = SimulatedDisk()
    failed: list[PartitionLog] = []
    async with simulated(disk, FSYNC, on_failure=failed.append, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        moved: list[int] = []
        log.on_synced = lambda synced_log: moved.append(synced_log.synced_offset)
        append(log, b"good")
        await synced(log)
        disk.fail_sync = is_log
        append(log, b"lost")
        await until(lambda: log.failure is not None)
        disk.fail_sync = None  # as on Linux, the next sync would claim success
        with pytest.raises(KafkaError) as refused:
            append(log, b"more")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "sync failed" in refused.value.message and "restart" in refused.value.message
        assert (log.synced_offset, moved, failed) == (1, [1], [log])
        assert [value for _, value in await read_all(log)] == [b"good", b"lost"], "reads go on"
        other = logs.create("t", 1, TOPIC_ID)
        append(other, b"fine")
        await synced(other)
        disk.power_cut(keep=0.0)
    async with simulated(disk, FSYNC) as logs:
        log = logs.get("t", 0)
        assert log is not None and await read_all(log) == [(0, b"good")]
        assert append(log, b"again") == 1


async def test_a_failed_sync_of_everything_stops_only_the_logs_whose_files_fail() -> None:
    disk = SimulatedDisk()
    stepped, inline = SteppedExecutor(), InlineExecutor()
    async with simulated(disk, FSYNC, threads=Threads(stepped, inline, inline), close=False) as logs:
        many = [logs.create("t", number, TOPIC_ID) for number in range(SYNC_EVERYTHING_FROM + 5)]
        for log in many:
            append(log, b"a")
        disk.fail_sync = lambda path: path == "/" or "/t-3/" in path
        await until(lambda: not stepped.step() and all(log.failure or log.synced_offset == 1 for log in many))
        assert [log.partition for log in many if log.failure is not None] == [3]


async def test_many_dirty_logs_are_synced_together() -> None:
    disk = SimulatedDisk()
    together: list[int] = []
    original = disk.sync_everything
    disk.sync_everything = lambda: (together.append(1), original())[1]  # type: ignore[method-assign]
    async with simulated(disk, FSYNC) as logs:
        many = [logs.create("t", number, TOPIC_ID) for number in range(SYNC_EVERYTHING_FROM * 2)]
        for log in many:
            append(log, b"a")
        await until(lambda: all(log.synced_offset == 1 for log in many))
        assert together == [1]


async def test_one_sync_is_in_flight_per_log_and_the_next_takes_all_that_gathered() -> None:
    disk = SimulatedDisk()
    stepped, inline = SteppedExecutor(), InlineExecutor()
    async with simulated(disk, FSYNC, threads=Threads(stepped, inline, inline), close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"first")
        await until(lambda: len(stepped.jobs) == 1)
        for number in range(10):
            append(log, b"%d" % number)
        assert len(stepped.jobs) == 1
        stepped.step()
        await until(lambda: len(stepped.jobs) == 1)
        assert log.synced_offset == 1
        stepped.step()
        await until(lambda: log.synced_offset == 11)
        assert not stepped.jobs


async def test_in_os_durability_an_append_counts_at_once_and_is_not_synced() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, OS, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a")
        assert log.synced_offset == 1 and log.flushed_offset == 0
        log.roll()
        await until(lambda: log.flushed_offset == 1)
        append(log, b"b")
        assert (log.synced_offset, log.flushed_offset) == (2, 1)
        disk.power_cut(keep=0.0)
    async with simulated(disk, OS) as logs:
        log = logs.get("t", 0)
        assert log is not None and await read_all(log) == [(0, b"a")], "closed segments are on the disk"


async def test_a_log_that_becomes_synced_syncs_what_it_has() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, OS, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a")
        log.config = FSYNC
        assert log.synced_offset == 0
        await synced(log)
        disk.power_cut(keep=0.0)
    async with simulated(disk, FSYNC) as logs:
        log = logs.get("t", 0)
        assert log is not None and await read_all(log) == [(0, b"a")]


@pytest.mark.parametrize("room", [0, 1, 30, 60, 61, 100, 500, 900])
async def test_on_a_full_disk_appends_are_refused_reads_go_on_and_writes_resume(room: int) -> None:
    disk = SimulatedDisk()
    async with simulated(disk, FSYNC, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"before")
        await synced(log)
        before = disk.contents("/data/t-0/00000000000000000000.log")
        disk.capacity = disk.used() + room
        with pytest.raises(KafkaError) as refused:
            append(log, b"x" * 1000)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR and refused.value.retriable
        assert "No space left" in refused.value.message
        assert disk.contents("/data/t-0/00000000000000000000.log") == before, "what was written of it is cut off"
        assert await read_all(log) == [(0, b"before")]
        disk.capacity = None
        assert append(log, b"after") == 1
        await synced(log)
        disk.power_cut(keep=0.0)
    async with simulated(disk, FSYNC) as logs:
        log = logs.get("t", 0)
        assert log is not None and await read_all(log) == [(0, b"before"), (1, b"after")]


@pytest.mark.parametrize("room", [0, 20, 100, 150])
async def test_a_disk_too_full_for_a_new_segment_or_partition_refuses_and_resumes(room: int) -> None:
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=400, index_interval_bytes=10)
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a" * 250)
        await synced(log)
        disk.capacity = disk.used() + room
        for _ in range(3):
            with pytest.raises(KafkaError):
                append(log, b"b" * 250)
        with pytest.raises(KafkaError):
            append(logs.create("new", 0, TOPIC_ID), b"c" * 250)
        disk.capacity = None
        assert append(log, b"b" * 250) == 1
        assert append(logs.create("new", 0, TOPIC_ID), b"c") == 0
        assert [value[:1] for _, value in await read_all(log)] == [b"a", b"b"]
    async with simulated(disk, config) as logs:
        assert {(topic, topic_id) for topic, _, topic_id in logs.known()} == {("t", TOPIC_ID), ("new", TOPIC_ID)}
        log = logs.get("t", 0)
        assert log is not None and [value[:1] for _, value in await read_all(log)] == [b"a", b"b"]


async def test_an_io_error_while_writing_stops_the_log() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, FSYNC, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a")
        disk.fail_write = lambda path: errno.EIO if path.endswith(".log") else None
        with pytest.raises(KafkaError):
            append(log, b"b")
        disk.fail_write = None
        with pytest.raises(KafkaError) as refused:
            append(log, b"c")
        assert "Input/output error" in refused.value.message
        assert await read_all(log) == [(0, b"a")]


async def test_a_read_that_fails_says_so_and_the_next_may_succeed() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, FSYNC) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a")
        disk.cold = True
        disk.fail_read = is_log
        with pytest.raises(KafkaError) as refused:
            await log.read(0, 100)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        disk.fail_read = None
        assert await read_all(log) == [(0, b"a")]


async def test_the_high_watermark_never_goes_back_nor_beyond_the_end() -> None:
    async with simulated(SimulatedDisk(), FSYNC) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(5):
            append(log, b"%d" % number)
        for wanted, seen in ((3, 3), (2, 3), (9, 5), (0, 5)):
            log.set_high_watermark(wanted)
            assert log.high_watermark == seen


async def test_checkpoints_that_cannot_be_written_are_tried_again() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, FSYNC, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a")
        await synced(log)
        disk.fail_write = lambda path: errno.ENOSPC if "checkpoint" in path else None
        await logs._checkpointer.run()
        assert log.checkpointed_offset == 0
        disk.fail_write = None
        await logs._checkpointer.run()
        assert log.checkpointed_offset == 1
        assert disk.contents("/data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 1\n"
