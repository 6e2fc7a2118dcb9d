"""Consensus storage as a whole: log and snapshots fit together after any crash, and who the node is never changes."""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.raft.snapshots import SnapshotCorrupt
from chronik.raft.storage import (
    RaftStorage,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageTooNew,
)
from chronik.raft.types import Configuration, Entry, EntryKind, HardState, Member, SnapshotMeta
from harness.raft_disk import PowerCut, SimulatedRaftDisk

FOLDER = Path("/raft")
CONFIGURATION = Configuration({1: Member(1, b"a" * 16, "localhost", 9192)})


def entries(first: int, count: int, term: int = 1) -> list[Entry]:
    return [Entry(term, index, EntryKind.DATA, b"%d" % index * 10) for index in range(first, first + count)]


def opened(disk: SimulatedRaftDisk, **options: int) -> RaftStorage:
    storage = RaftStorage(FOLDER, disk, **options)
    storage.open()
    return storage


def receive(storage: RaftStorage, meta: SnapshotMeta, data: bytes, step: int = 7) -> None:
    offset = storage.snapshots.receive(meta)
    while offset < meta.size:
        offset = storage.snapshots.receive_chunk(offset, data[offset : offset + step])
    storage.snapshots.finish_receiving(meta)


def snapshot_file(disk: SimulatedRaftDisk, position: int) -> Path:
    return FOLDER / [name for name in disk.names(FOLDER) if name.endswith(".snap")][position]


def test_the_directory_id_is_made_once_and_stays(tmp_path: Path) -> None:
    first = RaftStorage(tmp_path / "raft")
    recovered = first.open()
    assert recovered.entries == [] and recovered.snapshot_data is None
    assert len(first.directory_id) == 16
    first.save(entries(1, 1), HardState(1), sync=True)
    first.set_cluster_id("a-cluster")
    first.close()
    again = RaftStorage(tmp_path / "raft")
    assert again.open().entries == entries(1, 1)
    assert (again.directory_id, again.cluster_id) == (first.directory_id, "a-cluster")
    other = RaftStorage(tmp_path / "other")
    other.open()
    assert other.directory_id != first.directory_id


def test_a_log_without_its_directory_id_is_refused() -> None:
    disk = SimulatedRaftDisk()
    opened(disk).save(entries(1, 1), None, sync=True)
    disk.remove(FOLDER / "directory.id")
    with pytest.raises(StorageCorrupt, match=r"directory\.id is missing"):
        opened(disk)


def test_a_folder_of_a_newer_format_is_refused_with_advice() -> None:
    disk = SimulatedRaftDisk()
    opened(disk)
    disk.overwrite(FOLDER / "directory.id", b'{"format": 9, "directory_id": "00"}')
    with pytest.raises(StorageTooNew, match="newer Chronik"):
        opened(disk)


@pytest.mark.parametrize("change", ["version", "header"])
def test_a_snapshot_of_a_later_version_is_a_stop_and_is_not_set_aside(change: str) -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk)
    storage.save(entries(1, 5), HardState(1, 0, 5), sync=True)
    storage.snapshots.write(SnapshotMeta(5, 1, CONFIGURATION), [b"some state"])
    path = snapshot_file(disk, 0)
    whole = disk.read(path)
    header = b"a header of another shape"
    later = {
        "version": b"CHRSNAP2" + whole[8:],
        "header": b"CHRSNAP1" + struct.pack("<II", len(header), zlib.crc32(header)) + header,
    }
    disk.overwrite(path, later[change])
    with pytest.raises(StorageTooNew, match=r"newer Chronik\. Nothing was changed"):
        opened(disk)
    assert disk.read(path) == later[change]


def test_a_folder_that_cannot_be_read_is_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "raft").write_bytes(b"a file where the folder should be")
    with pytest.raises(StorageFailed, match="raft cannot be opened"):
        RaftStorage(tmp_path / "raft").open()


def test_a_folder_never_changes_its_cluster() -> None:
    disk = SimulatedRaftDisk()
    opened(disk).set_cluster_id("one")
    with pytest.raises(StorageError, match="belongs to cluster one"):
        opened(disk).set_cluster_id("two")


def test_the_last_two_snapshots_are_kept_and_the_log_reaches_back_to_the_older() -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk, segment_bytes=300)
    storage.save(entries(1, 10), HardState(1), sync=True)
    for index in (10, 20, 30):
        storage.snapshots.write(SnapshotMeta(index, 1, CONFIGURATION), [b"state ", b"at %d" % index])
        storage.save(entries(index + 1, 10), HardState(1, 0, index), sync=True)
        oldest = storage.snapshots.prune(set())
        storage.trim(oldest.index if oldest and len(storage.snapshots.kept) == 2 else 0)
    assert [meta.index for meta in storage.snapshots.kept] == [20, 30]
    disk.overwrite(snapshot_file(disk, -1), b"damaged")
    recovered = RaftStorage(FOLDER, disk).open()
    assert (recovered.snapshot.index, recovered.snapshot_data) == (20, b"state at 20")
    assert recovered.entries == entries(21, 20)
    assert any(name.endswith(".corrupt") for name in disk.names(FOLDER))


def test_a_damaged_snapshot_that_the_log_does_not_reach_back_over_is_a_clear_error() -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk)
    data = b"from the leader"
    meta = RaftStorage(Path("/leader"), disk).snapshots.write(SnapshotMeta(50, 2, CONFIGURATION), [data])
    receive(storage, meta, data)
    storage.snapshots.install(meta)
    storage.reset(meta, entries(51, 1, term=2), HardState(2, 0, 50))
    disk.overwrite(snapshot_file(disk, 0), b"damaged")
    with pytest.raises(StorageCorrupt, match="begins after entry 50"):
        opened(disk)


def test_every_flipped_byte_of_a_snapshot_is_noticed() -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk)
    meta = storage.snapshots.write(SnapshotMeta(5, 1, CONFIGURATION), [b"some state"])
    whole = disk.read(snapshot_file(disk, 0))
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        disk.overwrite(snapshot_file(disk, 0), bytes(damaged))
        with pytest.raises(SnapshotCorrupt):
            storage.snapshots.read(meta.index, meta.term)


def test_a_log_that_lost_its_committed_end_is_refused() -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk)
    storage.save(entries(1, 2), HardState(1), sync=True)
    storage.save([], HardState(1, 0, 9), sync=True)
    with pytest.raises(StorageCorrupt, match="ends at entry 2, but this node had seen entry 9"):
        opened(disk)


def test_nothing_is_written_after_a_failed_sync() -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk)
    disk.fail.add("sync")
    with pytest.raises(StorageFailed, match="takes no further part"):
        storage.save(entries(1, 1), None, sync=True)
    disk.fail.clear()
    operations = disk.operations
    with pytest.raises(StorageFailed):
        storage.save(entries(1, 1), None, sync=True)
    assert disk.operations == operations


def test_a_full_disk_can_be_tried_again() -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk)
    storage.save(entries(1, 1), None, sync=True)
    disk.free_bytes = 5
    with pytest.raises(StorageFull, match="free some"):
        storage.save(entries(2, 1), None, sync=True)
    disk.free_bytes = None
    storage.save(entries(2, 1), None, sync=True)
    assert RaftStorage(FOLDER, disk).open().entries == entries(1, 2)


def test_a_snapshot_that_did_not_fit_leaves_nothing_behind() -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk)
    before = disk.names(FOLDER)
    disk.free_bytes = 20
    with pytest.raises(OSError, match="No space"):
        storage.snapshots.write(SnapshotMeta(4, 1, CONFIGURATION), [bytes(1000)])
    assert disk.names(FOLDER) == before
    disk.free_bytes = None
    storage.snapshots.write(SnapshotMeta(4, 1, CONFIGURATION), [bytes(1000)])


def test_a_received_snapshot_resumes_where_it_stopped_and_is_verified() -> None:
    disk = SimulatedRaftDisk()
    storage = opened(disk)
    data = b"0123456789" * 10
    meta = RaftStorage(Path("/leader"), disk).snapshots.write(SnapshotMeta(50, 2, CONFIGURATION), [data])
    storage.snapshots.receive(meta)
    storage.snapshots.receive_chunk(0, data[:30])
    assert storage.snapshots.receive(meta) == 30
    receive(storage, meta, data)
    assert storage.snapshots.install(meta) == data
    other = SnapshotMeta(60, 2, CONFIGURATION, size=len(data), checksum=meta.checksum)
    with pytest.raises(SnapshotCorrupt, match="does not match"):
        receive(storage, other, data[::-1])
    assert storage.snapshots.receive(other) == 0


def test_chunks_are_read_back_exactly_and_a_missing_snapshot_is_said_to_be_gone() -> None:
    storage = opened(SimulatedRaftDisk())
    data = bytes(range(256)) * 5
    storage.snapshots.write(SnapshotMeta(7, 1, CONFIGURATION), [data])
    pieces = [storage.snapshots.read_chunk(7, 1, offset, 100) for offset in range(0, len(data), 100)]
    assert b"".join(piece.data for piece in pieces) == data
    assert {piece.total for piece in pieces} == {len(data)}
    assert not storage.snapshots.read_chunk(8, 1, 0, 100).available


def test_a_pinned_snapshot_outlives_newer_ones() -> None:
    storage = opened(SimulatedRaftDisk())
    for index in range(1, 6):
        storage.snapshots.write(SnapshotMeta(index, 1, CONFIGURATION), [b"x"])
        storage.snapshots.prune({2})
    assert [meta.index for meta in storage.snapshots.kept] == [2, 4, 5]
    storage.snapshots.prune(set())
    assert [meta.index for meta in storage.snapshots.kept] == [4, 5]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_power_cut_while_a_snapshot_is_written_or_installed_leaves_the_old_state_or_the_new(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedRaftDisk()
    storage = opened(disk, segment_bytes=200)
    storage.save(entries(1, 6), HardState(1, 1, 4), sync=True)
    storage.snapshots.write(SnapshotMeta(3, 1, CONFIGURATION), [b"through 3"])
    at = rng.choice((5, 9))  # inside the log, contradicting it, or past its end
    data = b"through %d, from the leader" % at
    meta = RaftStorage(Path("/leader"), disk).snapshots.write(SnapshotMeta(at, 2, CONFIGURATION), [data])
    disk.crash_at = disk.operations + rng.randint(1, 25)
    installed = False
    try:
        storage.snapshots.write(SnapshotMeta(4, 1, CONFIGURATION), [b"through 4"])
        receive(storage, meta, data)
        storage.snapshots.install(meta)
        storage.reset(meta, entries(at + 1, 2, term=2), HardState(2, 0, at))
        installed = True
        storage.snapshots.prune(set())
        storage.trim(4)
    except PowerCut:
        pass
    disk.power_cut(rng)
    storage = RaftStorage(FOLDER, disk)
    recovered = storage.open()
    assert recovered.snapshot.index in ((at,) if installed else (3, 4, at))
    if recovered.snapshot.index == at:
        assert recovered.snapshot_data == data
        assert recovered.entries in ([], entries(at + 1, 2, term=2))
        assert not installed or recovered.entries
        assert recovered.hard_state.term == 2 and recovered.hard_state.commit >= at
    else:
        assert recovered.snapshot_data == b"through %d" % recovered.snapshot.index
        assert recovered.entries == entries(recovered.snapshot.index + 1, 6 - recovered.snapshot.index)
        assert recovered.hard_state == HardState(1, 1, 4)
    last = recovered.entries[-1].index if recovered.entries else recovered.snapshot.index
    storage.save(entries(last + 1, 1, term=3), HardState(3), sync=True)
    assert RaftStorage(FOLDER, disk).open().entries == recovered.entries + entries(last + 1, 1, term=3)


def test_a_folder_of_every_released_format_still_opens(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "folders" / "format-1", tmp_path / "raft")
    storage = RaftStorage(tmp_path / "raft")
    recovered = storage.open()
    members = [
        Member(1, bytes(range(16)), "node-1.example", 9192),
        Member(2, b"2" * 16, "node-2.example", 9192),
        Member(3, b"3" * 16, "node-3.example", 9192),
    ]
    assert (storage.directory_id, storage.cluster_id) == (bytes(range(16)), "format-one")
    assert (recovered.snapshot.index, recovered.snapshot.term) == (3, 1)
    assert recovered.snapshot.configuration == Configuration({1: members[0], 2: members[1]}, {3: members[2]})
    assert recovered.snapshot_data == b"state through 3"
    assert recovered.entries == [
        Entry(2, 4, EntryKind.NOOP),
        Entry(2, 5, EntryKind.DATA, b"five"),
        Entry(3, 6, EntryKind.DATA, b"six"),
    ]
    assert recovered.hard_state == HardState(3, 0, 5)
