"""Many logs cost little, and large ones are opened in little memory."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

from chronik.storage import LogConfig, OsFileSystem
from chronik.storage.batch_walk import WALK_CHUNK_BYTES
from chronik.storage.recovery import LoadRequest, load_log
from harness.simulated_disk import SimulatedDisk
from harness.storage_logs import BASE_TIME, TOPIC_ID, append, opened, simulated

PARTITIONS = 9000
BYTES_PER_IDLE_LOG = 1500
LARGE_LOG_BYTES = 32 * 1024 * 1024


async def test_thousands_of_partitions_without_data_take_little_memory_and_no_disk() -> None:
    disk = SimulatedDisk()
    async with simulated(disk) as logs:
        operations = disk.operations
        config = LogConfig()
        topics = [f"topic-{number}" for number in range(PARTITIONS // 3)]
        gc.collect()
        tracemalloc.start()
        for topic in topics:
            for partition in range(3):
                logs.create(topic, partition, TOPIC_ID, config)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(logs) == PARTITIONS
        assert used / PARTITIONS < BYTES_PER_IDLE_LOG
        assert disk.operations == operations


async def test_a_large_log_is_recovered_in_bounded_memory(tmp_path: Path) -> None:
    config = LogConfig(durability="os", index_interval_bytes=4096, segment_bytes=LARGE_LOG_BYTES)
    value = bytes(range(256)) * 400
    async with opened(tmp_path, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        while log.size_bytes < LARGE_LOG_BYTES - 2 * len(value):
            append(log, value)
        size, end_offset = log.size_bytes, log.end_offset
    request = LoadRequest(f"{tmp_path}/t-0", 0, 0, config.index_interval_bytes, BASE_TIME)
    tracemalloc.start()
    loaded = load_log(OsFileSystem(str(tmp_path)), request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (loaded.end_offset, loaded.scanned_bytes, loaded.cut_bytes) == (end_offset, size, 0)
    assert peak < 4 * WALK_CHUNK_BYTES
