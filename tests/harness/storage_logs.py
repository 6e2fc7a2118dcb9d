"""Batches and log managers for the storage tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from chronik.protocol.records import Record, build_batch, parse_batches, read_records
from chronik.storage import LogConfig, LogManager, PartitionLog
from chronik.storage.housekeeping import HousekeepingConfig

TOPIC_ID = bytes(range(16))
EPOCH = 5
BASE_TIME = 1_700_000_000_000

QUIET = HousekeepingConfig(
    checkpoint_interval_s=3600, retention_interval_s=3600, removal_interval_s=3600, producer_check_interval_s=3600
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
