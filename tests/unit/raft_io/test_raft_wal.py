"""The write-ahead log of consensus: what was synced is found again, what was torn is cut, damage is never hidden."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.raft.files import OsFileSystem
from chronik.raft.types import Entry, EntryKind, HardState
from chronik.raft.wal import LogPoint, WalCorrupt, WalRecord, WalTooNew, WriteAheadLog, WriteLost
from harness.raft_disk import PowerCut, SimulatedRaftDisk

FOLDER = Path("/raft")


def entries(first: int, count: int, term: int = 1, size: int = 8) -> list[Entry]:
    return [Entry(term, index, EntryKind.DATA, b"%d" % index * size) for index in range(first, first + count)]


def log_with(disk: SimulatedRaftDisk, records: list[WalRecord], **options: int) -> WriteAheadLog:
    wal = WriteAheadLog(disk, FOLDER, **options)
    wal.open()
    for record in records:
        wal.append(record, sync=True)
    return wal


def only_segment(disk: SimulatedRaftDisk) -> Path:
    (name,) = disk.names(FOLDER)
    return FOLDER / name


def test_entries_and_hard_state_are_found_again_on_the_real_file_system(tmp_path: Path) -> None:
    wal = WriteAheadLog(OsFileSystem(), tmp_path)
    assert wal.open().entries == []
    wal.append(WalRecord(entries(1, 3), HardState(1, 2, 0)), sync=True)
    wal.append(WalRecord(entries(4, 2)), sync=True)
    wal.append(WalRecord(hard_state=HardState(1, 2, 5)), sync=False)
    wal.close()
    state = WriteAheadLog(OsFileSystem(), tmp_path).open()
    assert state.entries == entries(1, 5)
    assert state.hard_state == HardState(1, 2, 5)


def test_a_conflicting_entry_replaces_everything_from_its_index_on() -> None:
    disk = SimulatedRaftDisk()
    log_with(disk, [WalRecord(entries(1, 5)), WalRecord(entries(3, 1, term=2))])
    assert WriteAheadLog(disk, FOLDER).open().entries == entries(1, 2) + entries(3, 1, term=2)


def test_a_torn_tail_is_cut_at_every_byte_and_nothing_before_it_is_touched() -> None:
    disk = SimulatedRaftDisk()
    wal = log_with(disk, [WalRecord(entries(1, 2), HardState(3, 1, 1))])
    path = only_segment(disk)
    good = disk.size(path)
    wal.append(WalRecord(entries(3, 2), HardState(4, 2, 3)), sync=True)
    whole = disk.read(path)
    for size in range(good, len(whole)):
        disk.overwrite(path, whole[:size])
        reopened = WriteAheadLog(disk, FOLDER)
        state = reopened.open()
        assert (state.entries, state.hard_state) == (entries(1, 2), HardState(3, 1, 1)), size
        assert disk.size(path) == good
        reopened.append(WalRecord(entries(3, 1, term=9)), sync=True)
        assert WriteAheadLog(disk, FOLDER).open().entries == entries(1, 2) + entries(3, 1, term=9)


def test_a_flipped_bit_in_what_was_synced_is_an_error_at_every_byte() -> None:
    disk = SimulatedRaftDisk()
    records = [WalRecord(entries(i, 1), HardState(i, 1, 0)) for i in range(1, 4)]
    wal = log_with(disk, records[:2])
    path = only_segment(disk)
    synced = disk.size(path)
    wal.append(records[2], sync=True)  # says that the two before it were durable
    whole = disk.read(path)
    rng = random.Random(1)
    for position in range(synced):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        disk.overwrite(path, bytes(damaged))
        with pytest.raises(WalCorrupt, match="damaged at byte"):
            WriteAheadLog(disk, FOLDER).open()


def test_a_hole_in_a_write_that_was_never_synced_is_a_torn_tail_not_damage() -> None:
    disk = SimulatedRaftDisk()
    wal = log_with(disk, [WalRecord(entries(1, 1))])
    path = only_segment(disk)
    good = disk.size(path)
    wal.append(WalRecord(entries(2, 1)), sync=False)
    wal.append(WalRecord(entries(3, 1)), sync=False)  # whole on the disk, but the block before it was lost
    content = bytearray(disk.read(path))
    content[good : good + 30] = bytes(30)
    disk.overwrite(path, bytes(content))
    assert WriteAheadLog(disk, FOLDER).open().entries == entries(1, 1)


def frame(payload: bytes, sequence: int, synced: int, magic: bytes = b"1LRC") -> bytes:
    """A frame as it lies on the disk."""
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<IQQ", len(payload), sequence, synced)))
    return magic + struct.pack("<IIQQ", len(payload), crc, sequence, synced) + payload


UNKNOWN_CONTENT = {
    "a field": [[], None, None, None, "new"],
    "a kind of entry": [[[1, 2, 77, b""]], None, None, None],
    "a field of the hard state": [[], [1, 2, 0, b"d" * 16, "new"], None, None],
    "another shape": {"entries": []},
}


def refused_as_too_new(disk: SimulatedRaftDisk) -> None:
    """Opening the log stops, and the newer version that can read it finds it as it was."""
    before = {name: disk.read(FOLDER / name) for name in disk.names(FOLDER)}
    with pytest.raises(WalTooNew, match=r"a newer Chronik wrote it\. Nothing was changed"):
        WriteAheadLog(disk, FOLDER).open()
    assert {name: disk.read(FOLDER / name) for name in disk.names(FOLDER)} == before


@pytest.mark.parametrize("content", UNKNOWN_CONTENT.values(), ids=UNKNOWN_CONTENT.keys())
def test_an_intact_frame_with_unknown_content_is_a_stop_not_a_torn_tail(content: object) -> None:
    disk = SimulatedRaftDisk()
    log_with(disk, [WalRecord(entries(1, 1))])
    path = only_segment(disk)
    whole = disk.read(path)
    disk.overwrite(path, whole + frame(msgspec.msgpack.encode(content), 2, 1))
    refused_as_too_new(disk)
    torn = frame(msgspec.msgpack.encode(content), 2, 1)[:-1]
    disk.overwrite(path, whole + torn)
    assert WriteAheadLog(disk, FOLDER).open().entries == entries(1, 1), "a torn one promised nothing"


@pytest.mark.parametrize("size", [4, 28, 60], ids=["its magic alone", "its header", "whole"])
def test_a_frame_of_a_later_version_is_a_stop_not_a_torn_tail(size: int) -> None:
    disk = SimulatedRaftDisk()
    log_with(disk, [WalRecord(entries(1, 1))])
    path = only_segment(disk)
    later = frame(b"what only the newer version can read", 2, 1, b"2LRC")[:size]
    disk.overwrite(path, disk.read(path) + later)
    refused_as_too_new(disk)


def test_a_segment_of_a_later_version_is_a_stop_before_anything_is_cut_or_removed() -> None:
    disk = SimulatedRaftDisk()
    log_with(disk, [WalRecord(entries(1, 1))])
    path = only_segment(disk)
    disk.overwrite(path, disk.read(path) + b"torn")
    later = FOLDER / path.name.replace("1.log", "2.log")
    disk.open_append(later)
    disk.overwrite(later, frame(b"?", 2, 1, b"2LRC"))
    refused_as_too_new(disk)


@pytest.mark.parametrize("tail", [b"\x00LRC", b"2LR", bytes(40), b"1LRC" + bytes(40)])
def test_what_a_torn_write_can_leave_is_cut_and_never_taken_for_a_later_version(tail: bytes) -> None:
    disk = SimulatedRaftDisk()
    log_with(disk, [WalRecord(entries(1, 1))])
    path = only_segment(disk)
    good = disk.size(path)
    disk.overwrite(path, disk.read(path) + tail)
    assert WriteAheadLog(disk, FOLDER).open().entries == entries(1, 1)
    assert disk.size(path) == good


def test_each_segment_repeats_the_hard_state_so_that_older_ones_can_go() -> None:
    disk = SimulatedRaftDisk()
    wal = log_with(disk, [WalRecord(entries(1, 1), HardState(7, 3, 0))], segment_bytes=200)
    for index in range(2, 30):
        wal.append(WalRecord(entries(index, 1)), sync=True)
    assert wal.segment_count > 3
    wal.trim(20)
    state = WriteAheadLog(disk, FOLDER).open()
    assert state.hard_state == HardState(7, 3, 0)
    assert state.floor <= 20
    assert state.entries[-1] == entries(29, 1)[0]


def test_removed_segments_that_come_back_in_part_after_a_crash_do_not_matter() -> None:
    disk = SimulatedRaftDisk()
    wal = log_with(disk, [WalRecord(entries(index, 1), HardState(1)) for index in range(1, 40)], segment_bytes=200)
    names = disk.names(FOLDER)
    contents = {name: disk.read(FOLDER / name) for name in names}
    wal.trim(39)
    disk.open_append(FOLDER / names[0])
    disk.overwrite(FOLDER / names[0], contents[names[0]])
    state = WriteAheadLog(disk, FOLDER).open()
    assert state.entries == [] or state.entries[-1].index == 39
    assert state.floor >= 1


def test_a_reset_forgets_the_entries_before_it() -> None:
    disk = SimulatedRaftDisk()
    log_with(disk, [WalRecord(entries(1, 5)), WalRecord(entries(101, 2), reset=LogPoint(100, 4))])
    state = WriteAheadLog(disk, FOLDER).open()
    assert (state.floor, state.entries) == (100, entries(101, 2))


def test_a_segment_that_could_not_be_begun_on_a_full_disk_is_begun_right_later() -> None:
    disk = SimulatedRaftDisk()
    wal = log_with(disk, [WalRecord(entries(1, 20), HardState(3, 1, 9))], segment_bytes=64)
    disk.free_bytes = 10
    with pytest.raises(OSError, match="No space left"):
        wal.append(WalRecord(entries(21, 1)), sync=True)
    disk.free_bytes = None
    wal.append(WalRecord(entries(21, 1)), sync=True)
    assert wal.trim(20) == 1
    state = WriteAheadLog(disk, FOLDER).open()
    assert (state.floor, state.entries, state.hard_state) == (20, entries(21, 1), HardState(3, 1, 9))


def test_a_full_disk_takes_the_write_back_and_the_same_write_succeeds_later() -> None:
    disk = SimulatedRaftDisk()
    wal = log_with(disk, [WalRecord(entries(1, 1))])
    disk.free_bytes = 10
    with pytest.raises(OSError, match="No space"):
        wal.append(WalRecord(entries(2, 1)), sync=True)
    disk.free_bytes = None
    wal.append(WalRecord(entries(2, 1)), sync=True)
    assert WriteAheadLog(disk, FOLDER).open().entries == entries(1, 2)


def test_a_failed_sync_is_reported_as_lost_even_if_the_next_one_would_succeed() -> None:
    disk = SimulatedRaftDisk()
    wal = log_with(disk, [WalRecord(entries(1, 1))])
    disk.fail.add("sync")
    with pytest.raises(WriteLost, match="cannot sync"):
        wal.append(WalRecord(entries(2, 1)), sync=True)


def test_what_only_the_page_cache_held_is_synced_before_it_is_relied_upon() -> None:
    disk = SimulatedRaftDisk()
    wal = log_with(disk, [WalRecord(entries(1, 1))])
    wal.append(WalRecord(entries(2, 1)), sync=False)  # the process is killed here; the machine is not
    assert WriteAheadLog(disk, FOLDER).open().entries == entries(1, 2)
    for seed in range(20):
        disk.power_cut(random.Random(seed))
        assert WriteAheadLog(disk, FOLDER).open().entries == entries(1, 2)


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), segment_bytes=st.sampled_from((150, 400, 5000)))
def test_a_power_cut_at_any_step_loses_nothing_that_was_synced(seed: int, segment_bytes: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedRaftDisk()
    history = _History()
    for _ in range(rng.randint(1, 4)):
        wal = WriteAheadLog(disk, FOLDER, segment_bytes=segment_bytes)
        disk.crash_at = disk.operations + rng.randint(1, 60)
        try:
            state = wal.open()
            history.check(state.entries, state.hard_state)
            while True:
                record, sync = history.next_record(rng), rng.random() < 0.7
                wal.append(record, sync=sync)
                if sync:
                    history.synced()
                if rng.random() < 0.1:
                    wal.sync()  # what a snapshot covers was stable
                    history.synced()
                    history.trimmed = rng.randint(history.trimmed, history.last_index)
                    wal.trim(history.trimmed)
        except PowerCut:
            disk.power_cut(rng)


class _History:
    """Every state the log may be found in: the last one known durable, and those written after it."""

    def __init__(self) -> None:
        self.trimmed = 0
        self.states: list[tuple[list[Entry], HardState]] = [([], HardState())]

    @property
    def last_index(self) -> int:
        known = self.states[-1][0]
        return known[-1].index if known else self.trimmed

    def next_record(self, rng: random.Random) -> WalRecord:
        known, hard = self.states[-1]
        first = rng.randint(max(self.trimmed + 1, self.last_index - 2), self.last_index + 1)
        new = entries(first, rng.randint(0, 3), term=hard.term + 1, size=rng.choice((1, 20)))
        after = [e for e in known if e.index < first] + new if new else known
        self.states.append((after, HardState(hard.term + 1, rng.randint(0, 3), 0)))
        return WalRecord(new, self.states[-1][1])

    def synced(self) -> None:
        self.states = self.states[-1:]

    def check(self, found: list[Entry], hard: HardState) -> None:
        for known, known_hard in self.states:
            kept = [e for e in known if e.index > self.trimmed]
            if hard == known_hard and [e for e in found if e.index > self.trimmed] == kept:
                self.states = [(kept, hard)]
                return
        raise AssertionError("the log holds something never written, or lost something that was synced")
