"""Opening the folder of a partition: which segments it has, where it ends, what is sound. Blocking, runs on threads.

After a clean stop nothing is scanned. After a crash only what lies after the recovery point is: everything below it was
on the disk, with its epochs and producer state, before the recovery point was written.

1. Above the recovery point a torn or wrong batch ends the log: it is cut to the last valid batch; later segments go.
2. Below it, damage is reported and left where it is: reading it fails, reading around it works.
3. Offsets ascend and leader epochs do not go back; a batch that breaks this is as wrong as a bad checksum.
Memory is bounded by one chunk per thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import structlog

from chronik.protocol.records import BatchInfo
from chronik.storage.batch_walk import DamagedBatch, batch_after, find_next_batch, header_at, walk
from chronik.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, read_epochs, read_topic_id
from chronik.storage.epochs import NO_EPOCH, EpochCache
from chronik.storage.files import File, FileSystem, read_whole
from chronik.storage.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
    offset_entry,
    time_entries,
    valid_offset_entries,
)
from chronik.storage.producers import CompletedTransaction, ProducerStates
from chronik.storage.replay import aborted_entry, load_snapshot, replay
from chronik.storage.segment import (
    ABORTED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_name,
)
from chronik.storage.segment_swap import finish_after_crash

INDEX_BYTES_MAX = 64 * 1024 * 1024

NOTHING_TO_SCAN = (1 << 63) - 1
"""The recovery point after a clean stop."""

_SEGMENT_FILE = re.compile(r"^(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)$")

logger = structlog.get_logger()


@dataclass(slots=True)
class LoadRequest:
    """What is known of a partition folder before it is opened."""

    directory: str
    recovery_point: int
    """NOTHING_TO_SCAN after a clean stop."""
    log_start_offset: int
    index_interval_bytes: int
    now_ms: int
    on_scanned: Callable[[int], None] = lambda size: None
    """Called with a number of bytes as they are checked."""


@dataclass(slots=True)
class LoadedLog:
    """What the folder of a partition holds."""

    topic_id: bytes | None = None
    segments: list[Segment] = field(default_factory=list)
    log_start_offset: int = 0
    end_offset: int = 0
    epochs: EpochCache = field(default_factory=EpochCache)
    epochs_changed: bool = False
    """The epochs differ from what is on file."""
    producers: ProducerStates | None = None
    snapshot_offsets: list[int] = field(default_factory=list)
    scanned_bytes: int = 0
    cut_bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """Damage that could not be cut off, one sentence each."""
    to_sync: list[str] = field(default_factory=list)
    """What was found counts as stored, so these files must be: after a kill the page cache may be all that has them."""


def load_log(fs: FileSystem, request: LoadRequest) -> LoadedLog:
    """Open a partition folder and recover it where necessary. OSError when the disk fails."""
    loaded = LoadedLog()
    directory = request.directory
    names = fs.names(directory)
    if finish_after_crash(fs, directory, names):
        fs.sync_directory(directory)
        names = fs.names(directory)
    if PARTITION_METADATA in names:
        loaded.topic_id = read_topic_id(fs, f"{directory}/{PARTITION_METADATA}")
    bases, snapshots, aborted = _sort_names(fs, directory, names)
    loaded.snapshot_offsets = snapshots
    segments = [_open_segment(fs, directory, base, base in aborted) for base in bases]
    for segment, following in pairwise(segments):
        segment.next_offset = following.base_offset
    loaded.segments = segments
    on_file = read_epochs(fs, f"{directory}/{LEADER_EPOCHS}") if LEADER_EPOCHS in names else []
    if segments:
        loaded.epochs = EpochCache(on_file)
        _Recovery(fs, request, loaded).run()
    else:
        _remove_snapshots(fs, request, loaded, -1)
    loaded.epochs_changed = loaded.epochs.entries() != on_file
    return loaded


def _remove_snapshots(fs: FileSystem, request: LoadRequest, loaded: LoadedLog, beyond: int) -> None:
    """Snapshots of records that are not there (any more) would say the wrong thing about those that come."""
    while loaded.snapshot_offsets and loaded.snapshot_offsets[-1] > beyond:
        offset = loaded.snapshot_offsets.pop()
        fs.remove(f"{request.directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}")


def _sort_names(fs: FileSystem, directory: str, names: list[str]) -> tuple[list[int], list[int], set[int]]:
    """Base offsets of the segments, offsets of the snapshots, segments with aborted transactions; clears leftovers."""
    bases: list[int] = []
    snapshots: list[int] = []
    aborted: set[int] = set()
    others: list[tuple[int, str]] = []
    for name in names:
        match = _SEGMENT_FILE.match(name)
        if match is None:
            if name.endswith(".tmp"):
                fs.remove(f"{directory}/{name}")
            continue
        offset, suffix = int(match[1]), match[2]
        if suffix == LOG_SUFFIX:
            bases.append(offset)
        elif suffix == SNAPSHOT_SUFFIX:
            snapshots.append(offset)
        else:
            others.append((offset, name))
            if suffix == ABORTED_SUFFIX:
                aborted.add(offset)
    known = set(bases)
    for offset, name in others:
        if offset not in known:
            fs.remove(f"{directory}/{name}")
    return sorted(bases), sorted(snapshots), aborted


def _open_segment(fs: FileSystem, directory: str, base_offset: int, has_aborted: bool) -> Segment:
    """A segment as the disk has it, its indexes believed for now."""
    segment = Segment(directory, base_offset)
    segment.size = fs.size(segment.log_slot.path) or 0
    segment.trusted_from = segment.size
    segment.index = OffsetIndex((fs.size(f"{segment.path}{INDEX_SUFFIX}") or 0) // OFFSET_ENTRY_BYTES)
    entries = (fs.size(f"{segment.path}{TIME_INDEX_SUFFIX}") or 0) // TIME_ENTRY_BYTES
    segment.time_index = TimeIndex(entries)
    if entries:
        file = fs.open(f"{segment.path}{TIME_INDEX_SUFFIX}")
        found = time_entries(file.read_at((entries - 1) * TIME_ENTRY_BYTES, TIME_ENTRY_BYTES))
        timestamp, offset = found[-1] if found else (-1, -1)
        segment.time_index = TimeIndex(entries, timestamp, offset)
        segment.max_timestamp, segment.max_timestamp_offset = timestamp, base_offset + offset
    segment.created_ms = fs.modified_ms(segment.log_slot.path)
    if has_aborted:
        segment.aborted_is_in_file()
    return segment


class _Recovery:
    """The recovery of one log with segments."""

    def __init__(self, fs: FileSystem, request: LoadRequest, loaded: LoadedLog) -> None:
        self._fs = fs
        self._request = request
        self._loaded = loaded
        self._epoch = -1

    def run(self) -> None:
        loaded, request = self._loaded, self._request
        segments = loaded.segments
        clean = request.recovery_point >= NOTHING_TO_SCAN
        loaded.epochs.truncate_from_end(request.recovery_point)
        index = 0
        while index < len(segments):
            segment = segments[index]
            last = index == len(segments) - 1
            # At the recovery point itself the end of a truncated segment may still be there.
            needed = last or segment.next_offset >= request.recovery_point or not segment.time_index.in_file
            if needed and not self._recover(segment, last):
                self._drop_after(index)
            index += 1
        loaded.end_offset = segments[-1].next_offset
        loaded.log_start_offset = min(max(request.log_start_offset, segments[0].base_offset), loaded.end_offset)
        loaded.epochs.truncate_from_end(loaded.end_offset)
        self._load_producers(clean)
        if loaded.to_sync and loaded.topic_id is not None:
            loaded.to_sync.append(f"{request.directory}/{PARTITION_METADATA}")

    def _recover(self, segment: Segment, last: bool) -> bool:
        """Walk a segment from its last believable index entry to its end. False when it had to be cut."""
        end = size_on_disk = segment.size
        limit = None if last else segment.next_offset
        recovery_point = self._request.recovery_point
        log = self._fs.open(segment.log_slot.path)
        self._begin_walk(segment, log, end)
        checked = suspicious = False
        sound = True
        while sound and segment.size < end:
            try:
                check_crc = checked or suspicious
                for batch in walk(log, segment.size, end, check_crc=check_crc, floor=segment.next_offset):
                    if not checked and batch.base_offset >= recovery_point:
                        self._check_arrival(segment, batch, last)
                        checked = True
                        segment.trusted_from = segment.size
                        break
                    if limit is not None and batch.base_offset >= limit:
                        self._cut_leftovers(segment, log, end, limit)
                        end = segment.size
                        break
                    if not check_crc and batch.next_offset > recovery_point:
                        raise DamagedBatch(batch.position, "the batch reaches over the recovery point")
                    self._check_epoch(log, batch, end, checked)
                    self._accept(segment, batch, limit, checked)
            except DamagedBatch as damage:
                if checked or suspicious:
                    sound = self._step_over(segment, log, end, limit, damage, checked)
                else:
                    # Headers alone mislead: the wrong one may lie before the place where it was noticed.
                    suspicious = True
                    self._begin_walk(segment, log, end)
        if sound and limit is not None and segment.next_offset < limit and limit > recovery_point:
            # A segment ends where the next one begins, so its end is missing: unsynced bytes that never got here.
            logger.warning(
                "a segment lost its unsynced end",
                path=segment.log_slot.path,
                end_offset=segment.next_offset,
                next_segment=limit,
            )
            sound = False
        if sound and limit is not None:
            segment.next_offset = limit
            segment.close_time_index()
        if recovery_point < NOTHING_TO_SCAN or not sound or end != size_on_disk:
            self._loaded.to_sync.append(segment.log_slot.path)
        if not last or segment.indexes_due:
            self._loaded.to_sync.extend(segment.write_indexes(self._fs))
        self._load_first_time(segment, log)
        return sound

    def _begin_walk(self, segment: Segment, log: File, end: int) -> None:
        segment.size = end
        position = self._believe_indexes(segment, log)
        indexed = header_at(log, position) if position else None
        segment.skip_to_indexed(position, indexed.base_offset if indexed is not None else segment.base_offset)

    def _check_arrival(self, segment: Segment, batch: BatchInfo, last: bool) -> None:
        """The recovery point was the end of the log once: in the last segment, a batch ends there."""
        if last and segment.size and segment.next_offset < self._request.recovery_point:
            raise DamagedBatch(batch.position, f"offset {segment.next_offset} should be here")

    def _believe_indexes(self, segment: Segment, log: File) -> int:
        """Keep the index entries that can be true; the position of the last one's batch, where the walk begins.

        An index is written without a sync, so after a power cut any of it may be missing or empty.
        """
        raw = read_whole(self._fs, f"{segment.path}{INDEX_SUFFIX}", INDEX_BYTES_MAX) or b""
        times = time_entries(read_whole(self._fs, f"{segment.path}{TIME_INDEX_SUFFIX}", INDEX_BYTES_MAX) or b"")
        below = self._request.recovery_point - segment.base_offset
        count = valid_offset_entries(raw, segment.size)
        position = 0
        while count:
            relative, position = offset_entry(raw, count - 1)
            while times and times[-1][1] > relative:
                times.pop()
            newest = times[-1][0] if times else -1
            if relative < below and _is_indexed_batch(log, position, segment.base_offset + relative, newest):
                break
            count -= 1
        else:
            position = 0
            times.clear()
        segment.index = OffsetIndex(count)
        timestamp, offset = times[-1] if times else (-1, -1)
        segment.time_index = TimeIndex(len(times), timestamp, offset)
        segment.max_timestamp = timestamp
        segment.max_timestamp_offset = segment.base_offset + offset
        return position

    def _accept(self, segment: Segment, batch: BatchInfo, limit: int | None, checked: bool) -> None:
        if limit is not None and batch.last_offset >= limit:
            raise DamagedBatch(
                batch.position, f"offset {batch.last_offset} does not belong before {limit}, where the next one begins"
            )
        if checked:
            self._loaded.scanned_bytes += batch.size
            self._request.on_scanned(batch.size)
        epochs = self._loaded.epochs
        if checked or epochs.at(batch.base_offset) == NO_EPOCH:
            epochs.assign(batch.leader_epoch, batch.base_offset)
        self._epoch = max(self._epoch, batch.leader_epoch)
        batch.position = 0
        segment.record_appended([batch], batch.size, self._request.index_interval_bytes)

    def _check_epoch(self, log: File, batch: BatchInfo, end: int, checked: bool) -> None:
        """Epochs do not go back. The checksum does not cover them: one that leaps ahead of its neighbours is damage."""
        if not checked or batch.leader_epoch == self._epoch:
            return
        if batch.leader_epoch < self._epoch:
            raise DamagedBatch(batch.position, f"leader epoch {batch.leader_epoch} comes after epoch {self._epoch}")
        following = batch_after(log, batch, end)
        if following is not None and self._epoch <= following.leader_epoch < batch.leader_epoch:
            raise DamagedBatch(batch.position, f"leader epoch {batch.leader_epoch} comes before a lower one")

    def _step_over(
        self, segment: Segment, log: File, end: int, limit: int | None, damage: DamagedBatch, checked: bool
    ) -> bool:
        """Deal with a wrong batch. True when the walk can go on behind it, False when the segment was cut there."""
        first = segment.next_offset
        beyond = find_next_batch(log, damage.position + 1, end, range(first, limit or NOTHING_TO_SCAN))
        synced = not checked and first < self._request.recovery_point
        if synced and (beyond is not None or limit is not None):
            sentence = f"{segment.log_slot.path} is damaged {damage}"
            self._loaded.damaged.append(sentence)
            logger.error("a log is damaged, its records there cannot be read", path=segment.log_slot.path,
                         position=damage.position, reason=damage.reason)  # fmt: skip
            segment.skip_to(end if beyond is None else beyond)
            return True
        lost = end - segment.size
        log.truncate(segment.size)
        self._loaded.cut_bytes += lost
        if synced or beyond is not None:
            self._loaded.damaged.append(f"{segment.log_slot.path} was cut by {lost} bytes {damage}")
        logger.warning(
            "a log was cut to its last valid batch",
            path=segment.log_slot.path,
            end_offset=segment.next_offset,
            cut_bytes=lost,
            valid_batches_followed=beyond is not None,
            reason=damage.reason,
        )
        return False

    def _cut_leftovers(self, segment: Segment, log: File, end: int, limit: int) -> None:
        """A truncation that did not reach the disk: the log went on in a new segment, the old end is still here."""
        logger.info("the end of a segment was truncated again", path=segment.log_slot.path, offset=limit)
        log.truncate(segment.size)
        self._loaded.cut_bytes += end - segment.size

    def _drop_after(self, index: int) -> None:
        """Segments after a cut have no place any more: what they hold was never synced."""
        segments = self._loaded.segments
        for segment in segments[index + 1 :]:
            logger.warning("a segment after a cut was removed", path=segment.log_slot.path, size=segment.size)
            self._loaded.cut_bytes += segment.size
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX):
                self._fs.remove(f"{segment.path}{suffix}")
        del segments[index + 1 :]

    def _load_first_time(self, segment: Segment, log: File) -> None:
        first = header_at(log, 0) if segment.size else None
        segment.first_timestamp = first.max_timestamp if first is not None else None

    def _load_producers(self, clean: bool) -> None:
        """Producer state at the end of the log; the aborted transactions found on the way replace those on file."""
        loaded, request, fs = self._loaded, self._request, self._fs
        trusted = loaded.end_offset if clean else min(request.recovery_point, loaded.end_offset)
        _remove_snapshots(fs, request, loaded, trusted)
        states, offset = load_snapshot(fs, request.directory, loaded.snapshot_offsets, trusted, request.now_ms)
        if clean and offset != loaded.end_offset:
            return  # a clean stop leaves a snapshot at the end, unless there is nothing to remember
        if not clean:
            for segment in loaded.segments:
                if segment.next_offset > offset:
                    self._note(segment.cut_aborted(max(offset, 0), fs))

            def completed(segment: Segment, transaction: CompletedTransaction) -> None:
                if not transaction.committed:
                    segment.add_aborted(aborted_entry(transaction, states), fs)

            replay(fs, loaded.segments, states, offset, request.now_ms, completed)
            for segment in loaded.segments:
                self._note(segment.write_aborted(fs))
        loaded.producers = states if states.entries else None

    def _note(self, path: str | None) -> None:
        if path is not None:
            self._loaded.to_sync.append(path)


def _is_indexed_batch(log: File, position: int, last_offset: int, newest_time: int) -> bool:
    """Whether a batch that ends at `last_offset` lies there, and the time index knows of its time."""
    batch = header_at(log, position)
    return batch is not None and batch.last_offset == last_offset and batch.max_timestamp <= newest_time
