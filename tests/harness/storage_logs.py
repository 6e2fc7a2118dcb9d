"""Batches and log managers for the storage tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from chronik.protocol.records import Record, build_batch, parse_batches, read_records
from chronik.storage import LogConfig, LogManager, PartitionLog, RecoveryProgress
from chronik.storage.housekeeping import HousekeepingConfig
from chronik.storage.log_state import SyncState
from chronik.storage.manager import Threads
from harness.simulated_disk import InlineExecutor, SimulatedDisk, SteppedExecutor

TOPIC_ID = bytes(range(16))
EPOCH = 5
BASE_TIME = 1_700_000_000_000

QUIET = HousekeepingConfig(
    checkpoint_interval_s=3600,
    retention_interval_s=3600,
    removal_interval_s=3600,
    producer_check_interval_s=3600,
    compaction_interval_s=3600,
)


def batch(values: list[bytes], *, timestamp: int = BASE_TIME, key: bytes | None = None, **fields: object) -> bytearray:
    records = [Record(i, timestamp + i, key, value) for i, value in enumerate(values)]
    return build_batch(records, **fields)  # type: ignore[arg-type]


def append(log: PartitionLog, *values: bytes, epoch: int = EPOCH, timestamp: int = BASE_TIME, **fields: object) -> int:
    """Append one batch; the offset of its first record."""
    return log.append(
        batch(list(values), timestamp=timestamp, **fields), leader_epoch=epoch, now_ms=timestamp
    ).base_offset


async def read_all(
    log: PartitionLog, start: int | None = None, end: int | None = None, step: int = 1 << 20
) -> list[tuple[int, bytes]]:
    """(offset, value) of every record, read the way a consumer does."""
    offset = log.log_start_offset if start is None else start
    end = log.end_offset if end is None else end
    found: list[tuple[int, bytes]] = []
    while offset < end:
        data = await log.read(offset, step, end_offset=end)
        if not data:
            break
        for info in parse_batches(data):
            for record in read_records(memoryview(data)[info.position : info.end]):
                if record.offset >= offset:
                    found.append((record.offset, record.value or b""))
            following = info.next_offset
        assert following > offset, "a read that does not move on never ends"
        offset = following
    return found


@asynccontextmanager
async def opened(root: Path, config: LogConfig | None = None, **options: object) -> AsyncIterator[LogManager]:
    manager = LogManager(root, default_config=config or LogConfig(durability="os"), housekeeping=QUIET, **options)  # type: ignore[arg-type]
    await manager.start()
    try:
        yield manager
    finally:
        await manager.close()


@asynccontextmanager
async def simulated(
    disk: SimulatedDisk,
    config: LogConfig | None = None,
    *,
    clock: Callable[[], float] = lambda: BASE_TIME / 1000,
    close: bool = True,
    threads: Threads | None = None,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    on_failure: Callable[[PartitionLog], None] | None = None,
    **options: object,
) -> AsyncIterator[LogManager]:
    """A log manager on a simulated disk, its threads' work done at once. Without `close` it ends as in a crash."""
    if not disk.is_directory("/data"):
        disk.make_directory("/data")
        disk.sync_directory("/")
    inline = InlineExecutor()
    manager = LogManager(
        "/data",
        disk,
        clock=clock,
        default_config=config or LogConfig(),
        housekeeping=QUIET,
        threads=threads or Threads(inline, inline, inline),
        **options,  # type: ignore[arg-type]
    )
    manager.on_failure = on_failure
    try:
        await manager.start(on_progress)
        yield manager
        if close:
            await manager.close()
    finally:
        await abandon(manager)


async def abandon(manager: LogManager) -> None:
    """What a crash does to a process: nothing is closed."""
    housekeeping = getattr(manager, "_housekeeping", None)
    if housekeeping is None:
        return
    housekeeping._stopping = True  # a cancellation alone can get lost in a wait that ends at the same moment
    for task in housekeeping._tasks:
        task.cancel()
    await asyncio.gather(*housekeeping._tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    """Wait for a condition, giving the loop its turns."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0)


async def synced(log: PartitionLog, executor: SteppedExecutor | None = None) -> None:
    """Wait until everything appended is synced, by an executor that must be told to work if one is given."""
    await until(lambda: not (executor is not None and executor.step()) and log.synced_offset == log.end_offset)


async def settled(log: PartitionLog) -> None:
    """Wait until nothing of a log is dirty, names of files included."""
    await until(lambda: not log._dirty and log._sync_state is SyncState.IDLE)
