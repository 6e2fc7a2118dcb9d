"""The small pieces under a log: indexes, epochs, checkpoints, ranges, the descriptor cache, real files."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.storage import LogConfig, OsFileSystem
from chronik.storage.batch_walk import DamagedBatch, find_next_batch, walk
from chronik.storage.checkpoints import (
    BadCheckpoint,
    format_epochs,
    format_offsets,
    format_partition_metadata,
    parse_epochs,
    parse_offsets,
    parse_partition_metadata,
    read_offsets,
)
from chronik.storage.epochs import EpochCache
from chronik.storage.files import read_whole, write_atomically
from chronik.storage.indexes import TAIL_ENTRIES_MAX, OffsetIndex, TimeIndex, time_entries, valid_offset_entries
from chronik.storage.open_files import FileSlot, OpenFiles
from chronik.storage.ranges import RANGES_MAX, RangeSet
from harness.simulated_disk import SimulatedDisk
from harness.storage_logs import BASE_TIME, TOPIC_ID, append, batch, simulated, synced

# --- indexes -----------------------------------------------------------------------------------------------------


@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(62, 5000)), min_size=1, max_size=1200),
    written_every=st.integers(1, 300),
    target=st.integers(0, 60_000),
)
def test_an_offset_index_finds_the_last_entry_not_above(
    steps: list[tuple[int, int]], written_every: int, target: int
) -> None:
    index = OffsetIndex()
    file = bytearray()
    entries = [(0, 0)]
    offset = position = 0
    for number, (more_offsets, more_bytes) in enumerate(steps):
        offset += more_offsets
        position += more_bytes
        index.add(offset, position)
        entries.append((offset, position))
        if number % written_every == 0:
            file += index.pending_bytes()
            index.written(index.pending)
    assert len(index) == len(steps) and len(index._offsets) <= TAIL_ENTRIES_MAX + written_every

    def read(start: int, size: int) -> bytes:
        return bytes(file[start : start + size])

    found = index.floor_in_memory(target)
    if found < 0:
        found = index.floor_in_file(target, read)
    assert found == max(entry[1] for entry in entries if entry[0] <= target)
    found = index.floor_position_in_memory(target)
    if found < 0:
        found = index.floor_position_in_file(target, read)
    assert found == max(entry[1] for entry in entries if entry[1] <= target)
    file += index.pending_bytes()
    assert list(struct.iter_unpack(">II", bytes(file))) == entries[1:]
    index.truncate(target, 1 << 30, read)
    assert len(index) == len([entry for entry in entries[1:] if entry[0] < target])


def test_index_entries_that_cannot_be_true_are_not_believed() -> None:
    def raw(*entries: tuple[int, int]) -> bytes:
        return b"".join(struct.pack(">II", *entry) for entry in entries)

    assert valid_offset_entries(raw((1, 100), (5, 200), (9, 300)), 1000) == 3
    assert valid_offset_entries(raw((1, 100), (5, 200), (5, 300)), 1000) == 2
    assert valid_offset_entries(raw((1, 100), (5, 90)), 1000) == 1
    assert valid_offset_entries(raw((1, 100), (5, 1000)), 1000) == 1
    assert valid_offset_entries(raw((1, 100)) + bytes(13), 1000) == 1
    times = struct.pack(">qi", 5, 1) + struct.pack(">qi", 9, 4) + bytes(12) + b"torn"
    assert time_entries(times) == [(5, 1), (9, 4)]


def test_a_time_index_ignores_times_that_do_not_move_on() -> None:
    index = TimeIndex()
    for timestamp, offset in ((10, 1), (10, 2), (5, 3), (20, 4)):
        index.add(timestamp, offset)
    raw = index.pending_bytes()
    assert time_entries(raw) == [(10, 1), (20, 4)]
    index.written(1)
    assert [index.floor(time, lambda start, size: raw[start : start + size]) for time in (5, 10, 11, 20, 21)] == [
        0, 0, 1, 1, 4,
    ]  # fmt: skip
    index.truncate(4, lambda start, size: raw[start : start + size])
    assert (len(index), index.last_timestamp, index.last_offset) == (1, 10, 1)


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_the_indexes_on_disk_are_what_kafkas_tools_expect(durability: str) -> None:
    """Every entry points to a batch whose last offset it names, as `kafka-dump-log` verifies."""
    disk = SimulatedDisk()
    config = LogConfig(index_interval_bytes=100, segment_bytes=3000, durability=durability)  # type: ignore[arg-type]
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(100):
            append(log, *([b"v" * (number % 40)] * (1 + number % 3)), timestamp=BASE_TIME + number)
        bases = list(log.bases)
    for base in bases:
        stem = f"/data/t-0/{base:020d}"
        file = disk.open(f"{stem}.log")
        batches = {info.position: info for info in walk(file, 0, file.size(), check_crc=True)}
        raw = disk.contents(f"{stem}.index")
        if len(batches) > 2:
            assert raw
        for relative, position in struct.iter_unpack(">II", raw):
            assert batches[position].last_offset == base + relative
        times = time_entries(disk.contents(f"{stem}.timeindex"))
        if base != bases[-1]:
            assert times[-1][0] == max(info.max_timestamp for info in batches.values())
        for timestamp, relative in times:
            covered = [info.max_timestamp for info in batches.values() if info.last_offset <= base + relative]
            assert max(covered) == timestamp


async def test_records_are_found_by_their_time() -> None:
    config = LogConfig(index_interval_bytes=50, segment_bytes=900)
    disk = SimulatedDisk()
    for again in range(2):
        async with simulated(disk, config) as logs:
            log = logs.create("t", 0, TOPIC_ID)
            if not again:
                for number in range(40):
                    append(log, b"a", b"b", timestamp=BASE_TIME + 10 * number, epoch=number // 20)
            for number in range(40):
                offset = 2 * number
                for wanted, found in ((0, (offset, 0)), (1, (offset + 1, 1)), (-5, (offset, 0))):
                    at = await log.offset_for_timestamp(BASE_TIME + 10 * number + wanted)
                    assert at == (found[0], BASE_TIME + 10 * number + found[1], number // 20)
            assert await log.offset_for_timestamp(BASE_TIME + 10_000) is None
            assert await log.max_timestamp_offset() == (79, BASE_TIME + 391, 1)


# --- epochs ------------------------------------------------------------------------------------------------------


def test_the_end_of_an_epoch_is_where_the_next_one_began() -> None:
    cache = EpochCache([(2, 10), (4, 20), (7, 20), (9, 35)])
    assert cache.entries() == [(2, 10), (7, 20), (9, 35)], "an epoch without records gives way"
    ends = {epoch: cache.end_offset_for(epoch, 50) for epoch in range(11)}
    assert ends == {
        0: (0, 10), 1: (1, 10), 2: (2, 20), 3: (2, 20), 4: (2, 20), 5: (2, 20), 6: (2, 20),
        7: (7, 35), 8: (7, 35), 9: (9, 50), 10: (-1, -1),
    }  # fmt: skip
    assert [cache.at(offset) for offset in (9, 10, 19, 20, 34, 35, 99)] == [-1, 2, 2, 7, 7, 9, 9]
    assert EpochCache().end_offset_for(0, 5) == (-1, -1)


def test_epochs_are_cut_at_both_ends() -> None:
    cache = EpochCache([(2, 10), (7, 20), (9, 35)])
    assert cache.truncate_from_end(35) and cache.entries() == [(2, 10), (7, 20)]
    assert not cache.truncate_from_end(21)
    assert cache.truncate_from_start(15) and cache.entries() == [(2, 15), (7, 20)]
    assert cache.truncate_from_start(30) and cache.entries() == [(7, 30)]
    assert not cache.truncate_from_start(30)
    assert not cache.assign(7, 40) and not cache.assign(-1, 40)


# --- checkpoints -------------------------------------------------------------------------------------------------


def test_checkpoints_have_kafkas_format() -> None:
    offsets = {("orders", 1): 7, ("orders", 0): 5, ("a-b.c_d", 12): 1 << 40}
    raw = format_offsets(offsets)
    assert raw == b"0\n3\na-b.c_d 12 1099511627776\norders 0 5\norders 1 7\n"
    assert parse_offsets(raw) == offsets
    assert format_epochs([(0, 0), (3, 17)]) == b"0\n2\n0 0\n3 17\n"
    assert parse_epochs(b"0\n2\n0 0\n3 17\n") == [(0, 0), (3, 17)]
    assert parse_partition_metadata(format_partition_metadata(TOPIC_ID)) == TOPIC_ID


@pytest.mark.parametrize(
    "raw", [b"", b"1\n0\n", b"0\n", b"0\n2\nt 0 1\n", b"0\n1\nt 0\n", b"0\n1\nt x 1\n", b"0\nmany\n", b"\x00\xff"]
)
def test_a_damaged_checkpoint_is_not_believed(raw: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        parse_offsets(raw)
    disk = SimulatedDisk()
    disk.open("/checkpoint", create=True).write_at(0, raw)
    assert read_offsets(disk, "/checkpoint") == {}
    assert read_offsets(disk, "/absent") == {}


@pytest.mark.parametrize("raw", [b"", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", b"version: 0\ntopic_id: A?"])
def test_a_damaged_partition_metadata_is_not_believed(raw: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        parse_partition_metadata(raw)


def test_a_file_is_replaced_atomically() -> None:
    for seed in range(40):
        disk = SimulatedDisk(seed)
        write_atomically(disk, "/file", b"old" * 300)
        disk.cut_at = disk.operations + 1 + seed % 6
        try:
            write_atomically(disk, "/file", b"new" * 400)
        except BaseException as cut:
            assert type(cut).__name__ == "PowerCut"
        disk.power_cut()
        assert read_whole(disk, "/file", 10_000) in (b"old" * 300, b"new" * 400)


# --- walking -----------------------------------------------------------------------------------------------------


def test_walking_finds_every_batch_and_stops_at_damage() -> None:
    disk = SimulatedDisk()
    file = disk.open("/log", create=True)
    pieces = []
    for number in range(5):
        data = batch([b"%d" % number * 20])
        data[0:8] = number.to_bytes(8, "big")
        pieces.append(bytes(data))
    file.write_at(0, b"".join(pieces))
    size = len(pieces[0])
    assert [info.base_offset for info in walk(file, 0, 5 * size, check_crc=True)] == [0, 1, 2, 3, 4]
    disk.flip_bit("/log", 2 * size + 70)
    seen = []
    with pytest.raises(DamagedBatch) as damage:
        for info in walk(file, 0, 5 * size, check_crc=True):
            seen.append(info.base_offset)
    assert seen == [0, 1] and damage.value.position == 2 * size
    assert find_next_batch(file, 2 * size + 1, 5 * size, range(2, 100)) == 3 * size
    assert find_next_batch(file, 4 * size + 1, 5 * size, range(2, 100)) is None


# --- ranges ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=60), st.integers(0, 220))
def test_a_range_set_covers_what_was_added(ranges: list[tuple[int, int]], cut: int) -> None:
    known = RangeSet()
    covered: set[int] = set()
    for start, length in ranges:
        known.add(start, start + length)
        covered |= set(range(start, start + length))
    for point in range(0, 235, 3):
        assert known.covers(point, point + 1) == (point in covered)
    known.cut(cut)
    assert not known.covers(cut, cut + 1)


def test_a_range_set_is_bounded_and_forgets_the_smallest() -> None:
    known = RangeSet()
    known.add(0, 100)
    for start in range(1000, 1000 + 10 * 2 * RANGES_MAX, 10):
        known.add(start, start + 5)
    assert len(known._starts) == RANGES_MAX and known.covers(0, 100)


# --- real files --------------------------------------------------------------------------------------------------


def test_real_files_do_what_the_interface_says(tmp_path: Path) -> None:
    fs = OsFileSystem(str(tmp_path))
    fs.make_directory(f"{tmp_path}/d")
    fs.make_directory(f"{tmp_path}/d")
    path = f"{tmp_path}/d/f"
    assert fs.size(path) is None and fs.names(f"{tmp_path}/none") == []
    with pytest.raises(FileNotFoundError):
        fs.open(path)
    file = fs.open(path, create=True)
    file.write_at(0, b"hello world")
    file.write_at(6, memoryview(b"there"))
    assert file.read_at(0, 100) == b"hello there" and file.read_at(50, 5) == b""
    cached = file.read_nowait(6, 5)
    assert cached is None or cached == b"there"
    assert file.read_nowait(6, 50) is None, "never a part"
    file.truncate(5)
    file.sync()
    assert file.size() == fs.size(path) == 5 and fs.modified_ms(path) > BASE_TIME
    fs.rename(path, f"{path}2")
    fs.sync_directory(f"{tmp_path}/d")
    assert fs.names(f"{tmp_path}/d") == ["f2"] and fs.is_directory(f"{tmp_path}/d")
    assert fs.sync_everything() in (True, False)
    fs.remove(f"{path}2")
    fs.remove(f"{path}2")
    fs.remove_directory(f"{tmp_path}/d")
    fs.remove_directory(f"{tmp_path}/d")
    assert fs.names(str(tmp_path)) == []
    file.close()
    file.close()
    fs.close()
    assert fs.sync_everything() is False


def test_the_descriptor_cache_closes_the_idle_and_survives_a_shortage() -> None:
    disk = SimulatedDisk()
    for number in range(10):
        disk.open(f"/{number}", create=True)
    files = OpenFiles(disk, 4)
    slots = [FileSlot(f"/{number}") for number in range(10)]
    for slot in slots:
        files.get(slot)
    assert len(files) == 4
    busy = slots[-1]
    for slot in slots[:6]:
        files.get(busy)
        files.get(slot)
        assert busy.file is not None
    files.forget(busy)
    assert busy.file is None
    failures = iter([OSError(errno.EMFILE, "too many")])
    original = disk.open

    def short_of_descriptors(path: str, *, create: bool = False) -> object:
        for failure in failures:
            raise failure
        return original(path, create=create)

    disk.open = short_of_descriptors  # type: ignore[method-assign, assignment]
    assert files.get(slots[7]) is not None
    files.close()
    assert len(files) == 0


# --- the double itself -------------------------------------------------------------------------------------------


def test_the_simulated_disk_loses_what_was_not_synced() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    kept = disk.open("/d/kept", create=True)
    kept.write_at(0, b"a" * 2000)
    kept.sync()
    disk.open("/d/unnamed", create=True).write_at(0, b"x")
    disk.power_cut(keep=0.0)
    assert disk.names("/") == [], "the folder itself was not synced"
    disk.make_directory("/d")
    disk.sync_directory("/")
    file = disk.open("/d/f", create=True)
    disk.sync_directory("/d")
    file.write_at(0, b"a" * 2000)
    file.sync()
    file.write_at(1000, b"b" * 2000)
    disk.dice.seed(1)
    disk.power_cut(keep=0.5)
    left = disk.contents("/d/f")
    assert left[:512] == b"a" * 512 and set(left) <= set(b"ab\0")
    with pytest.raises(OSError, match="power went off"):
        file.read_at(0, 1)
    file = disk.open("/d/f")
    file.truncate(0)
    file.write_at(0, b"c" * 100)
    disk.fail_sync = lambda path: True
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    disk.fail_sync = None
    file.sync()  # succeeds, and the bytes are gone all the same
    disk.power_cut(keep=0.0)
    assert b"c" not in disk.contents("/d/f")


async def test_a_synced_log_is_on_the_medium_and_an_unsynced_one_is_not() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a")
        await synced(log)
        on_medium = disk._inode("/data/t-0/00000000000000000000.log").durable
        append(log, b"b")
        assert len(disk.contents("/data/t-0/00000000000000000000.log")) > len(on_medium) > 0
