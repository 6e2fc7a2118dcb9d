"""Opening logs after a crash: torn tails are cut, damage is found and never served, little is scanned."""

from __future__ import annotations

import asyncio
import copy

import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.storage import LogConfig, LogManager, PartitionLog, RecoveryProgress
from chronik.storage.batch_walk import WALK_CHUNK_BYTES
from chronik.storage.checkpoints import parse_offsets
from chronik.storage.manager import CLEAN_SHUTDOWN, RecoveryStopped, Threads
from harness.simulated_disk import InlineExecutor, PowerCut, SimulatedDisk, SteppedExecutor
from harness.storage_logs import BASE_TIME, TOPIC_ID, append, batch, read_all, simulated, synced, until

SMALL = LogConfig(index_interval_bytes=100)
FIRST = "/data/t-0/00000000000000000000.log"


async def written(
    disk: SimulatedDisk, count: int, config: LogConfig = SMALL, *, checkpoint: bool = False
) -> list[bytes]:
    """A log of `count` batches, synced, then a crash."""
    values = [b"%04d" % number + b"v" * (number * 7 % 60) for number in range(count)]
    async with simulated(disk, config, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for value in values:
            append(log, value)
        await synced(log)
        if checkpoint:
            log.set_high_watermark(log.end_offset)
            await logs._checkpointer.run()
    disk.sync_everything()
    return values


async def reopened(disk: SimulatedDisk, config: LogConfig = SMALL) -> tuple[list[tuple[int, bytes]], PartitionLog]:
    async with simulated(disk, config, close=False) as logs:
        log = logs.get("t", 0)
        assert log is not None
        return await read_all(log), log


async def test_a_write_torn_at_any_byte_is_cut_to_the_last_valid_batch() -> None:
    disk = SimulatedDisk()
    values = await written(disk, 5)
    whole = disk.contents(FIRST)
    tail = len(whole) - len(batch([values[-1]]))
    for size in range(tail, len(whole)):
        torn = SimulatedDisk()
        await written(torn, 5)
        torn.replace(FIRST, whole[:size])
        found, log = await reopened(torn)
        assert found == list(enumerate(values[:-1])), f"torn at byte {size}"
        assert (log.end_offset, log.damage) == (4, [])
        assert torn.contents(FIRST) == whole[:tail], "nothing before the tail is touched"


async def test_a_tail_overwritten_with_noise_or_zeros_is_cut() -> None:
    for noise in (bytes(200), bytes(range(200)), b"\xff" * 61):
        disk = SimulatedDisk()
        values = await written(disk, 3)
        whole = disk.contents(FIRST)
        disk.replace(FIRST, whole + noise)
        found, _ = await reopened(disk)
        assert found == list(enumerate(values))
        assert disk.contents(FIRST) == whole


@pytest.mark.parametrize("checkpoint", [True, False], ids=["before the recovery point", "after the recovery point"])
async def test_a_flipped_bit_anywhere_is_never_served_as_valid(checkpoint: bool) -> None:
    source = SimulatedDisk()
    values = await written(source, 6, checkpoint=checkpoint)
    size = len(source.contents(FIRST))
    last = size - len(batch([values[-1]]))
    truth = list(enumerate(values))
    for byte in range(size):
        if not checkpoint and last <= byte < last + 16:
            continue  # the two fields no checksum covers, in a batch without a neighbour or anything else to compare
        disk = copy.deepcopy(source)
        disk.flip_bit(FIRST, byte, byte % 8)
        async with simulated(disk, SMALL, close=False) as logs:
            log = logs.get("t", 0)
            assert log is not None
            served, refused = await read_around_damage(log)
            assert set(served) < set(truth), f"byte {byte}: the damage was not noticed, or something else was served"
            assert refused or log.damage or not checkpoint, "what was synced does not vanish silently"


async def read_around_damage(log: PartitionLog) -> tuple[list[tuple[int, bytes]], int]:
    """What a stubborn reader gets, who asks for the next offset after a refusal; how often it was refused."""
    served: dict[int, bytes] = {}
    refused = 0
    for offset in range(log.end_offset):
        if offset in served:
            continue
        try:
            served.update(dict(await read_all(log, offset, offset + 1, step=1)))
        except KafkaError as error:
            assert error.code is ErrorCode.CORRUPT_MESSAGE
            assert "damaged" in error.message
            refused += 1
    return sorted(served.items()), refused


async def test_damage_before_the_recovery_point_is_reported_and_the_rest_can_be_read() -> None:
    disk = SimulatedDisk()
    values = await written(disk, 30, checkpoint=True)
    positions = [0]
    for value in values:
        positions.append(positions[-1] + len(batch([value])))
    disk.flip_bit(FIRST, positions[10] + 65)
    async with simulated(disk, SMALL) as logs:
        log = logs.get("t", 0)
        assert log is not None and log.end_offset == 30
        assert await read_all(log, 0, 10) == list(enumerate(values))[:10]
        with pytest.raises(KafkaError) as refused:
            await log.read(10, 1000)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        assert await read_all(log, 11) == list(enumerate(values))[11:]
        assert append(log, b"goes on") == 30


async def test_a_record_whose_offset_was_damaged_is_not_skipped_silently() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, LogConfig(), close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(5):
            append(log, b"%d" % number)
        await synced(log)
        await logs._checkpointer.run()
    size = len(batch([b"0"]))
    disk.flip_bit(FIRST, 2 * size + 7, 1)  # offset 2 becomes 0
    async with simulated(disk, LogConfig()) as logs:
        log = logs.get("t", 0)
        assert log is not None and log.damage
        with pytest.raises(KafkaError) as refused:
            await log.read(2, 1000)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        assert await read_all(log, 3) == [(3, b"3"), (4, b"4")]


async def test_what_was_checked_once_is_served_from_memory() -> None:
    disk = SimulatedDisk()
    values = await written(disk, 6, checkpoint=True)
    async with simulated(disk, SMALL) as logs:
        log = logs.get("t", 0)
        assert log is not None
        assert log.read_nowait(0, 1 << 20) is None, "nobody has looked at it yet"
        assert await read_all(log, 0, 3) == list(enumerate(values))[:3]
        assert log.read_nowait(0, 1 << 20, end_offset=3) is not None
        assert log.read_nowait(0, 1 << 20) is None
        append(log, b"new")
        assert log.read_nowait(6, 1 << 20) is not None, "this process wrote it"


async def test_only_what_lies_after_the_recovery_point_is_scanned() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, SMALL, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(200):
            append(log, b"%d" % number)
        await synced(log)
        await logs._checkpointer.run()
        append(log, b"after")
        await synced(log)
    seen: list[RecoveryProgress] = []
    async with simulated(disk, SMALL, on_progress=seen.append) as logs:
        log = logs.get("t", 0)
        assert log is not None and log.end_offset == 201
    assert seen[-1] == RecoveryProgress(1, 1, len(batch([b"after"])))


async def test_after_a_clean_stop_nothing_is_scanned() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, SMALL) as logs:
        append(logs.create("t", 0, TOPIC_ID), b"a")
    disk.power_cut(keep=0.0)
    seen: list[RecoveryProgress] = []
    async with simulated(disk, SMALL, on_progress=seen.append, close=False) as logs:
        log = logs.get("t", 0)
        assert log is not None and await read_all(log) == [(0, b"a")]
    assert seen == [RecoveryProgress(1, 1, 0)]
    async with simulated(disk, SMALL, on_progress=seen.append) as logs:
        assert logs.get("t", 0) is not None
    assert seen[-1].logs_done == 1, "the marker of the clean stop is gone once the logs were open"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "short", "zeros", "noise"])
async def test_indexes_are_hints_and_can_be_lost(suffix: str, damage: str) -> None:
    config = LogConfig(index_interval_bytes=10, segment_bytes=9000)
    disk = SimulatedDisk()
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(400):
            append(log, b"%d" % number, timestamp=BASE_TIME + 10 * number)
    truth = [(number, b"%d" % number) for number in range(400)]
    for name in [name for name in disk.names("/data/t-0") if name.endswith(suffix)]:
        path = f"/data/t-0/{name}"
        raw = disk.contents(path)
        if damage == "missing":
            disk.remove(path)
        else:
            noise = bytes(byte ^ 0x5A for byte in raw)
            disk.replace(path, {"short": raw[: len(raw) // 3], "zeros": bytes(len(raw)), "noise": noise}[damage])
    disk.remove("/data/.kafka_cleanshutdown")
    async with simulated(disk, config) as logs:
        log = logs.get("t", 0)
        assert log is not None and await read_all(log) == truth
        for offset in range(0, 400, 23):
            assert (await read_all(log, offset, step=100))[:2] == truth[offset : offset + 2]


async def test_epochs_and_high_watermarks_are_back_after_a_crash() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, SMALL, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a", epoch=1)
        append(log, b"b", epoch=3)
        await synced(log)
        log.set_high_watermark(1)
        await logs._checkpointer.run()
        append(log, b"c", epoch=4)
        log.set_high_watermark(2)
        await synced(log)
        disk.power_cut(keep=0.0)
    async with simulated(disk, SMALL) as logs:
        log = logs.get("t", 0)
        assert log is not None
        assert (log.high_watermark, log.end_offset, log.latest_epoch) == (1, 3, 4)
        assert [log.end_offset_for_epoch(epoch) for epoch in range(1, 6)] == [(1, 1), (1, 1), (3, 2), (4, 3), (-1, -1)]


async def test_epochs_of_records_that_are_gone_go_too() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, SMALL) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a", epoch=1)
        append(log, b"b", epoch=2)
    disk.replace(FIRST, disk.contents(FIRST)[:-1])
    _, log = await reopened(disk)
    assert (log.end_offset, log.latest_epoch, log.end_offset_for_epoch(2)) == (1, 1, (-1, -1))


async def test_a_checkpoint_that_a_truncation_overtakes_promises_nothing() -> None:
    disk = SimulatedDisk()
    inline, stepped = InlineExecutor(), SteppedExecutor()
    async with simulated(disk, SMALL, threads=Threads(inline, inline, inline), close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for sequence in range(6):
            append(log, b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)
        await synced(log)
        logs._checkpointer._executor = stepped
        writing = asyncio.ensure_future(logs._checkpointer.run())
        await until(lambda: len(stepped.jobs) == 1)
        log.truncate_to(2)
        stepped.step()
        await writing
        assert log.checkpointed_offset <= 2
        points = parse_offsets(disk.contents("/data/recovery-point-offset-checkpoint"))
        assert points[("t", 0)] <= 2
        assert "00000000000000000006.snapshot" not in disk.names("/data/t-0")
        assert log.snapshot_offsets == []


async def test_a_checkpoint_whose_log_is_truncated_while_its_syncs_are_waited_for_leaves_it_to_the_next() -> None:
    """What is written after the cut has other epochs; a recovery point behind it would hide them from a restart."""
    disk = SimulatedDisk()
    inline, stepped = InlineExecutor(), SteppedExecutor()
    async with simulated(disk, SMALL, threads=Threads(stepped, inline, inline), close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for value in (b"a", b"b", b"c"):
            append(log, value, epoch=1)
        writing = asyncio.ensure_future(logs._checkpointer.run())
        await until(lambda: log not in logs._services.changed)
        log.truncate_to(2)
        append(log, b"x", epoch=2)
        append(log, b"y", epoch=2)
        await synced(log, stepped)
        await writing
        assert log in logs._services.changed
    found, log = await reopened(disk)
    assert found == [(0, b"a"), (1, b"b"), (2, b"x"), (3, b"y")]
    assert log.epochs is not None and log.epochs.entries() == [(1, 0), (2, 2)]


async def test_a_batch_larger_than_a_chunk_is_checked_piece_by_piece() -> None:
    disk = SimulatedDisk()
    config = LogConfig(max_message_bytes=8 * WALK_CHUNK_BYTES)
    large = bytes(range(256)) * (WALK_CHUNK_BYTES // 256 * 2) + b"end"
    async with simulated(disk, config, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"small")
        append(log, large)
        append(log, b"after")
        await synced(log)
    found, _ = await reopened(disk, config)
    assert found == [(0, b"small"), (1, large), (2, b"after")]
    disk.flip_bit(FIRST, 2 * WALK_CHUNK_BYTES)
    disk.remove("/data/recovery-point-offset-checkpoint")
    found, log = await reopened(disk, config)
    assert found == [(0, b"small")] and log.damage


async def test_a_log_that_cannot_be_opened_has_stopped_and_the_others_work() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, SMALL) as logs:
        append(logs.create("t", 0, TOPIC_ID), b"a")
        append(logs.create("u", 0, TOPIC_ID), b"b")
    disk.fail_read = lambda path: path.endswith(".log") and "/t-0/" in path
    failed: list[PartitionLog] = []
    async with simulated(disk, SMALL, on_failure=failed.append, close=False) as logs:
        broken, sound = logs.get("t", 0), logs.get("u", 0)
        assert broken is not None and sound is not None
        assert failed == [broken]
        with pytest.raises(KafkaError) as refused:
            append(broken, b"c")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert append(sound, b"c") == 1


async def test_recovery_is_itself_safe_from_power_cuts() -> None:
    for step in range(1, 40):
        disk = SimulatedDisk(step)
        values = await written(disk, 6)
        disk.replace(FIRST, disk.contents(FIRST)[:-3])
        disk.cut_at = disk.operations + step
        try:
            async with simulated(disk, SMALL, close=False):
                pass
        except PowerCut:
            pass
        disk.power_cut()
        found, _ = await reopened(disk)
        assert found == list(enumerate(values[:-1]))


async def test_folders_that_are_no_partitions_are_left_alone() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, SMALL) as logs:
        append(logs.create("a-b-c", 7, TOPIC_ID), b"a")
    for name in ("no-number-x", "plain", "t-3.0123-stray"):
        disk.make_directory(f"/data/{name}")
    disk.make_directory("/data/old-1.0123456789abcdef-delete")
    async with simulated(disk, SMALL) as logs:
        assert list(logs.known()) == [("a-b-c", 7, TOPIC_ID)]
        await logs._trash.run(everything=True)
        assert set(disk.names("/data")) >= {"no-number-x", "plain", "t-3.0123-stray"}
        assert "old-1.0123456789abcdef-delete" not in disk.names("/data")


async def test_many_logs_are_opened_at_once_and_progress_is_told() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, SMALL, close=False) as logs:
        for number in range(25):
            append(logs.create("t", number, TOPIC_ID), b"%d" % number)
        await asyncio.gather(*(synced(log) for log in logs.logs()))
    seen: list[RecoveryProgress] = []
    async with simulated(disk, SMALL, on_progress=seen.append) as logs:
        assert len(logs) == 25
    assert [(progress.logs_done, progress.logs_total) for progress in seen] == [(n, 25) for n in range(1, 26)]
    assert seen[-1].bytes_scanned > 25 * 61


async def test_a_foreign_log_with_gaps_is_read_as_it_is() -> None:
    """Compacted by Kafka: offsets ascend with gaps."""
    disk = SimulatedDisk()
    async with simulated(disk, SMALL, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for offset in (3, 10, 11, 40):
            data = build_batch([Record(offset, BASE_TIME, b"k", b"%d" % offset)], base_offset=offset, leader_epoch=1)
            log.append_replica(data)
        await synced(log)
    found, log = await reopened(disk)
    assert [offset for offset, _ in found] == [3, 10, 11, 40] and log.end_offset == 41


async def test_a_stop_in_the_middle_of_recovery_promises_nothing() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(5):
            append(log, b"%d" % number)
        await synced(log)
    readers = SteppedExecutor()
    manager = LogManager("/data", disk, threads=Threads(InlineExecutor(), readers, InlineExecutor()))
    starting = asyncio.get_running_loop().create_task(manager.start())
    await until(lambda: manager._scanned is not None)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await manager.close()
    assert manager._scanned is not None
    with pytest.raises(RecoveryStopped):
        manager._scanned.add_bytes(1)
    assert disk.size(f"/data/{CLEAN_SHUTDOWN}") is None, "the next start must look for itself"
    async with simulated(disk) as logs:
        reopened = logs.get("t", 0)
        assert reopened is not None
        assert [value for _, value in await read_all(reopened)] == [b"0", b"1", b"2", b"3", b"4"]
