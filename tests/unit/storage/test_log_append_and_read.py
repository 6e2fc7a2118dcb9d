"""Appending to a partition log and reading it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import build_batch, parse_batches
from chronik.storage import LogConfig
from harness.simulated_disk import SimulatedDisk
from harness.storage_logs import BASE_TIME, EPOCH, TOPIC_ID, append, batch, opened, read_all, simulated


def small(**changes: object) -> LogConfig:
    return LogConfig(**{"durability": "os", "index_interval_bytes": 100, **changes})  # type: ignore[arg-type]


async def test_a_partition_without_data_has_no_files(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        assert (log.log_start_offset, log.end_offset, log.size_bytes) == (0, 0, 0)
        assert log.read_nowait(0, 100) == b""
        assert list(tmp_path.iterdir()) == []


async def test_offsets_are_assigned_from_zero_whatever_the_client_wrote(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        lying = batch([b"a", b"b"])
        lying[0:8] = (777).to_bytes(8, "big")
        assert log.append(lying, leader_epoch=EPOCH, now_ms=1).base_offset == 0
        for number in range(20):
            assert append(log, b"%d" % number) == 2 + number
        assert await read_all(log) == [(0, b"a"), (1, b"b"), *((2 + n, b"%d" % n) for n in range(20))]


async def test_only_offset_and_epoch_of_a_batch_are_rewritten(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        append(log, b"first", b"second")
        original = batch([b"x" * 50])
        log.append(bytearray(original), leader_epoch=EPOCH, now_ms=1)
        stored = bytes(await log.read(2, 1 << 20))
        assert stored[8:12] == original[8:12] and stored[16:] == original[16:]
        (info,) = parse_batches(stored)
        assert (info.base_offset, info.leader_epoch) == (2, EPOCH)


async def test_a_fetch_from_the_middle_of_a_batch_returns_the_whole_batch(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        append(log, b"a", b"b", b"c")
        append(log, b"d")
        data = log.read_nowait(1, 1 << 20)
        assert [info.base_offset for info in parse_batches(data)] == [0, 3]


async def test_reads_stop_at_the_given_end(tmp_path: Path) -> None:
    async with opened(tmp_path, small()) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        for number in range(30):
            append(log, b"%d" % number)
        for end in range(31):
            assert [offset for offset, _ in await read_all(log, 0, end)] == list(range(end))


async def test_offsets_outside_the_log_are_out_of_range(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        append(log, b"a")
        assert log.read_nowait(1, 100) == b""
        for offset in (-1, 2):
            with pytest.raises(KafkaError) as refused:
                log.read_nowait(offset, 100)
            assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_one_batch_is_returned_whatever_its_size_only_if_asked(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        append(log, b"x" * 5000)
        append(log, b"y")
        for limit in (0, 1, 60, 61, 62, 1000):
            data = log.read_nowait(0, limit)
            assert data is not None and len(parse_batches(data)) == 1
            assert log.read_nowait(0, limit, at_least_one=False) == b""


async def test_a_read_returns_whole_batches_only(tmp_path: Path) -> None:
    async with opened(tmp_path, small()) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        for number in range(300):
            append(log, b"v" * (number % 90))
        for limit in range(61, 3000, 37):
            data = log.read_nowait(7, limit)
            assert data is not None and parse_batches(data)[0].base_offset == 7
            assert len(data) <= max(limit, 200)


async def test_segments_roll_by_size_and_are_read_across(tmp_path: Path) -> None:
    async with opened(tmp_path, small(segment_bytes=600)) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        for number in range(50):
            append(log, b"%050d" % number)
        assert len(log.segments) > 5
        assert all(segment.size <= 600 for segment in log.segments)
        assert [offset for offset, _ in await read_all(log)] == list(range(50))
        names = sorted(path.name for path in (tmp_path / "orders-0").glob("*.log"))
        assert names[:2] == ["00000000000000000000.log", f"{log.segments[1].base_offset:020d}.log"]


async def test_segments_roll_by_the_time_of_records_and_by_index_size(tmp_path: Path) -> None:
    async with opened(tmp_path, small(segment_ms=1000)) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        append(log, b"a", timestamp=BASE_TIME)
        append(log, b"b", timestamp=BASE_TIME + 1000)
        assert len(log.segments) == 1
        append(log, b"c", timestamp=BASE_TIME + 1001)
        assert len(log.segments) == 2
        log.config = small(segment_index_bytes=16)
        for _ in range(12):
            append(log, b"x" * 100, timestamp=BASE_TIME + 1001)
        assert len(log.segments) > 3


async def test_a_refused_append_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path, small(max_message_bytes=500, segment_bytes=700)) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        append(log, b"a")
        broken = batch([b"b"])
        broken[-1] ^= 1
        cases: list[tuple[bytearray, ErrorCode]] = [
            (broken, ErrorCode.CORRUPT_MESSAGE),
            (batch([b"x" * 600]), ErrorCode.MESSAGE_TOO_LARGE),
            (batch([b"x" * 300]) + batch([b"x" * 400]), ErrorCode.RECORD_LIST_TOO_LARGE),
            (batch([b"c"], control=True), ErrorCode.INVALID_RECORD),
            (bytearray(), ErrorCode.INVALID_RECORD),
        ]
        for data, code in cases:
            with pytest.raises(KafkaError) as refused:
                log.append(data, leader_epoch=EPOCH, now_ms=1)
            assert refused.value.code is code
        assert await read_all(log) == [(0, b"a")]
        assert append(log, b"next") == 1


async def test_the_first_data_writes_kafkas_partition_metadata(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        append(logs.create("orders", 3, TOPIC_ID), b"a")
    text = (tmp_path / "orders-3" / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"


async def test_a_follower_takes_the_bytes_of_the_leader_as_they_are(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        leader = logs.create("orders", 0, TOPIC_ID)
        follower = logs.create("orders", 1, TOPIC_ID)
        append(leader, b"a", b"b", epoch=3)
        append(leader, b"c", epoch=4)
        data = leader.read_nowait(0, 1 << 20)
        assert data is not None
        follower.append_replica(data)
        assert bytes(follower.read_nowait(0, 1 << 20) or b"") == bytes(data)
        assert (follower.end_offset, follower.latest_epoch) == (3, 4)
        assert (follower.epoch_at(1), follower.epoch_at(2)) == (3, 4)
        with pytest.raises(KafkaError):
            follower.append_replica(data)
        follower.append_replica(build_batch_at(10, b"after a gap"))
        assert follower.end_offset == 11
        assert [offset for offset, _ in await read_all(follower)] == [0, 1, 2, 10]


def build_batch_at(offset: int, value: bytes) -> bytearray:
    from chronik.protocol.records import Record

    return build_batch([Record(offset, BASE_TIME, None, value)], base_offset=offset, leader_epoch=4)


async def test_after_a_clean_stop_the_log_is_as_it_was(tmp_path: Path) -> None:
    config = small(segment_bytes=2000)
    async with opened(tmp_path, config) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        for number in range(60):
            append(log, b"%040d" % number, epoch=1 + number // 20, timestamp=BASE_TIME + number)
        log.set_high_watermark(57)
        before = await read_all(log)
        bases = list(log.bases)
    async with opened(tmp_path, config) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        assert (log.end_offset, log.synced_offset, log.high_watermark, log.latest_epoch) == (60, 60, 57, 3)
        assert log.bases == bases and log.topic_id == TOPIC_ID
        assert await read_all(log) == before
        assert log.end_offset_for_epoch(1) == (1, 20)
        assert append(log, b"more", epoch=4) == 60
        assert await log.offset_for_timestamp(BASE_TIME + 33) == (33, BASE_TIME + 33, 2)


async def test_data_of_another_topic_with_the_same_name_is_not_taken_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        append(logs.create("orders", 0, TOPIC_ID), b"a")
        with pytest.raises(KafkaError) as refused:
            logs.create("orders", 0, bytes(16))
        assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


async def test_few_descriptors_are_enough_for_many_logs(tmp_path: Path) -> None:
    async with opened(tmp_path, open_files_max=8) as logs:
        before = len(list(Path("/proc/self/fd").iterdir()))
        many = [logs.create("t", number, TOPIC_ID) for number in range(60)]
        for turn in range(3):
            for number, log in enumerate(many):
                assert append(log, b"%d" % number) == turn
        for number, log in enumerate(many):
            assert [value for _, value in await read_all(log)] == [b"%d" % number] * 3
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= 12


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    segment_bytes=st.integers(600, 5000),
    interval=st.integers(50, 1000),
    starts=st.lists(st.integers(0, 60), max_size=8),
    limit=st.integers(1, 3000),
    cold=st.booleans(),
)
async def test_whatever_is_appended_is_read_back_from_any_offset(
    sizes: list[int], segment_bytes: int, interval: int, starts: list[int], limit: int, cold: bool
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
    disk = SimulatedDisk()
    disk.cold = cold
    values = [b"%d:" % number + b"v" * size for number, size in enumerate(sizes)]
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for value in values:
            append(log, value)
        for start in starts:
            if start <= len(values):
                assert await read_all(log, start, step=limit) == list(enumerate(values))[start:]
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        assert await read_all(log, step=limit) == list(enumerate(values))
