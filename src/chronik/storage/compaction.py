"""Compaction of closed segments: of each key, only the last record stays. Blocking, runs on a thread.

Rules, as Kafka's log cleaner has them:
1. A first pass over the dirty part maps each key to its last offset; a second rewrites the segments from the start of
   the log, dropping records whose key comes again later. Offsets never change, a batch keeps its offset range.
2. A record without a value deletes its key. It stays for `delete.retention.ms` after the first pass that met it, so
   that slow readers learn of it; that moment is written into its batch (the delete horizon).
3. Records of aborted transactions go. A marker goes, after the same delay, once no batch of its transaction is left.
4. The last batch of an active producer stays, without records if need be: it holds the producer's sequence. So does the
   last batch of a segment: it holds the offset where the next one goes on.
5. Input is checked (CRC-32C) before it is rewritten: damage is never given a new checksum.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from chronik.protocol.records import BatchInfo, Record, build_batch, parse_header, read_records
from chronik.protocol.records.control import read_end_transaction_marker
from chronik.storage.aborted_index import AbortedTransaction, encode_aborted
from chronik.storage.batch_walk import walk
from chronik.storage.files import File, FileSystem
from chronik.storage.indexes import OffsetIndex, TimeIndex
from chronik.storage.segment import (
    ABORTED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)
from chronik.storage.segment_swap import CLEANED_SUFFIX

KEYS_MAX = 200_000
"""Keys held in memory in one pass, about 200 bytes each; the rest of the log waits for the next pass."""


WRITE_BUFFER_BYTES = 1024 * 1024
SHORT_KEY_BYTES = 32
WORK_SLICE_S = 0.002

_DIGEST_BYTES = SHORT_KEY_BYTES + 1  # longer than any key kept as it is, so that the two never meet


class CompactionStopped(Exception):
    """The node stops; what was written so far is removed at the next start."""


class Pacer:
    """Keeps a thread to a share of the time, so that the loop is not kept waiting for the interpreter."""

    def __init__(self, share: float) -> None:
        self._rest = 1.0 / share - 1.0
        self._since = time.monotonic()
        self.stopped = False

    def begin(self) -> None:
        """Called when work begins: what was before was no work, and needs no rest."""
        self._since = time.monotonic()

    def pause(self) -> None:
        """Called between small pieces of work. Raises CompactionStopped when it is to end."""
        if self.stopped:
            raise CompactionStopped
        worked = time.monotonic() - self._since
        if worked >= WORK_SLICE_S:
            time.sleep(worked * self._rest)
            self._since = time.monotonic()


@dataclass(frozen=True, slots=True)
class Source:
    """One segment to be cleaned, as it was when the pass began."""

    path: str
    base_offset: int
    next_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """What a pass must know besides the segments."""

    directory: str
    now_ms: int
    delete_retention_ms: int
    index_interval_bytes: int
    producers: dict[int, tuple[int, int | None]]
    """Producer id → (epoch, last offset of its data or None) of the active producers."""
    aborted: tuple[AbortedTransaction, ...]
    """Of the whole log: the marker of a transaction may lie beyond the segments that are cleaned."""


@dataclass(slots=True)
class KeyMap:
    """Key → offset of its last record, for the offsets below `end_offset`."""

    offsets: dict[bytes, int] = field(default_factory=dict)
    end_offset: int = 0


class TransactionTracker:
    """Which batches belong to aborted transactions, as a walk from the start of the log meets them."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._ongoing: dict[int, AbortedTransaction] = {}
        self._seen_aborted: set[int] = set()
        self._seen_committed: set[int] = set()

    def is_aborted(self, batch: BatchInfo) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._advance(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._ongoing:
            self._seen_aborted.add(batch.producer_id)
            return True
        self._seen_committed.add(batch.producer_id)
        return False

    def end(self, batch: BatchInfo, committed: bool) -> tuple[bool, AbortedTransaction | None]:
        """A marker: (whether no batch of its transaction is left, its index entry while there are some)."""
        self._advance(batch.last_offset)
        producer = batch.producer_id
        if committed:
            seen = producer in self._seen_committed
            self._seen_committed.discard(producer)
            return not seen, None
        entry = self._ongoing.pop(producer, None)
        seen = producer in self._seen_aborted
        self._seen_aborted.discard(producer)
        return not seen, entry if seen else None

    def _advance(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            entry = self._aborted.pop()
            self._ongoing[entry.producer_id] = entry


def map_keys(
    fs: FileSystem, sources: Iterable[Source], aborted: Iterable[AbortedTransaction], start: int, pacer: Pacer
) -> KeyMap:
    """The first pass, from `start`: DamagedBatch, KafkaError or OSError when a segment cannot be read."""
    found = KeyMap(end_offset=start)
    # The walk meets no marker before `start` that would end an earlier transaction.
    tracker = TransactionTracker(entry for entry in aborted if entry.last_offset >= start)
    for source in sources:
        if source.next_offset <= start:
            continue
        log = fs.open(f"{source.path}{LOG_SUFFIX}")
        for batch in _checked_batches(log, source):
            if batch.is_control:
                if batch.record_count and batch.producer_id >= 0:
                    _end_transaction(log, batch, tracker)
            elif not tracker.is_aborted(batch) and batch.last_offset >= start and batch.record_count:
                records = read_records(log.read_at(batch.position, batch.size))
                if len(found.offsets) + len(records) > KEYS_MAX and found.end_offset > start:
                    return found
                for record in records:
                    if record.key is not None:
                        found.offsets[key_of(record.key)] = record.offset
            found.end_offset = max(found.end_offset, batch.last_offset + 1)
            pacer.pause()
        found.end_offset = max(found.end_offset, source.next_offset)
    return found


def _checked_batches(log: File, source: Source) -> Iterator[BatchInfo]:
    return walk(log, 0, source.size, check_crc=True, floor=source.base_offset, limit=source.next_offset)


def key_of(key: bytes) -> bytes:
    """The key itself, or a digest of it that is longer than every key kept as it is."""
    return key if len(key) <= SHORT_KEY_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class SegmentCleaner:
    """The second pass. One for all groups of a pass, because transactions reach over segments."""

    def __init__(self, fs: FileSystem, rules: CleaningRules, keys: KeyMap, pacer: Pacer) -> None:
        self._fs = fs
        self._rules = rules
        self._keys = keys
        self._pacer = pacer
        self._tracker = TransactionTracker(rules.aborted)

    def clean(self, group: list[Source]) -> Segment:
        """Rewrite a run of segments into one, its files synced under names that a start after a crash removes."""
        writer = SegmentWriter(self._fs, self._rules.directory, group[0].base_offset, self._rules.index_interval_bytes)
        aborted: list[AbortedTransaction] = []
        for source in group:
            log = self._fs.open(f"{source.path}{LOG_SUFFIX}")
            for batch in _checked_batches(log, source):
                last_of_all = source is group[-1] and batch.position + batch.size == source.size
                kept = self._filter(log, batch, aborted, last_of_all)
                if kept is not None:
                    writer.add(kept)
                self._pacer.pause()
        return writer.finish(group[-1].next_offset, aborted)

    def _filter(
        self, log: File, batch: BatchInfo, aborted: list[AbortedTransaction], last_of_all: bool
    ) -> bytes | bytearray | None:
        """What stays of a batch: its bytes, a smaller batch, an empty one, or nothing."""
        raw = log.read_at(batch.position, batch.size)
        now_ms = self._rules.now_ms
        horizon = batch.delete_horizon_ms
        expired = horizon is not None and horizon <= now_ms
        needs_horizon = False
        if batch.is_control:
            discardable = False
            if batch.record_count and batch.producer_id >= 0:
                discardable, entry = _end_transaction(log, batch, self._tracker)
                if entry is not None:
                    aborted.append(entry)
            records = read_records(raw) if batch.record_count else []
            kept = [] if discardable and expired else records
            needs_horizon = discardable and horizon is None
        elif self._tracker.is_aborted(batch):
            records, kept = [], []
        else:
            records = read_records(raw) if batch.record_count else []
            kept = [record for record in records if self._stays(record, expired)]
            needs_horizon = horizon is None and any(record.value is None for record in kept)
        if not kept and not last_of_all and not self._is_last_of_producer(batch):
            return None
        if needs_horizon:
            horizon = now_ms + self._rules.delete_retention_ms
        elif not batch.record_count or (kept and len(kept) == len(records)):
            return raw
        return build_batch(
            kept,
            base_offset=batch.base_offset,
            compression=batch.compression,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            leader_epoch=batch.leader_epoch,
            transactional=batch.is_transactional,
            control=batch.is_control,
            log_append_time=batch.max_timestamp if batch.log_append_time else None,
            last_offset_delta=batch.last_offset_delta,
            delete_horizon_ms=horizon if kept else None,
        )

    def _stays(self, record: Record, expired: bool) -> bool:
        if record.offset >= self._keys.end_offset:
            return True
        if record.key is None:
            return False
        latest = self._keys.offsets.get(key_of(record.key), -1)
        return record.offset >= latest and (record.value is not None or not expired)

    def _is_last_of_producer(self, batch: BatchInfo) -> bool:
        known = self._rules.producers.get(batch.producer_id)
        if known is None:
            return False
        epoch, last_offset = known
        if last_offset is not None:
            return batch.last_offset == last_offset
        return batch.is_control and batch.producer_epoch == epoch


def _end_transaction(
    log: File, batch: BatchInfo, tracker: TransactionTracker
) -> tuple[bool, AbortedTransaction | None]:
    marker = read_end_transaction_marker(log.read_at(batch.position, batch.size))
    return (False, None) if marker is None else tracker.end(batch, marker.committed)


class SegmentWriter:
    """Writes a new segment beside the old ones, under a name that a start after a crash removes."""

    def __init__(self, fs: FileSystem, directory: str, base_offset: int, index_interval_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._segment = Segment(directory, base_offset)
        self._interval = index_interval_bytes
        self._log = self._new_file(LOG_SUFFIX)
        self._buffer = bytearray()
        self._written = 0

    def _new_file(self, suffix: str) -> File:
        file = self._fs.open(f"{self._segment.path}{suffix}{CLEANED_SUFFIX}", create=True)
        file.truncate(0)
        return file

    def add(self, batch: bytes | bytearray) -> None:
        self._segment.record_appended([parse_header(batch)], len(batch), self._interval)
        self._buffer += batch
        if len(self._buffer) >= WRITE_BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._log.write_at(self._written, self._buffer)
        self._written += len(self._buffer)
        self._buffer = bytearray()

    def finish(self, next_offset: int, aborted: list[AbortedTransaction]) -> Segment:
        """Sync the files; the new segment."""
        segment = self._segment
        self._flush()
        segment.close_time_index()
        segment.next_offset = next_offset
        index, time_index = segment.index, segment.time_index
        files = {
            LOG_SUFFIX: self._log,
            INDEX_SUFFIX: self._new_file(INDEX_SUFFIX),
            TIME_INDEX_SUFFIX: self._new_file(TIME_INDEX_SUFFIX),
            # Always there, also when empty: so a half-done swap can tell whether it was renamed already.
            ABORTED_SUFFIX: self._new_file(ABORTED_SUFFIX),
        }
        files[INDEX_SUFFIX].write_at(0, index.pending_bytes())
        files[TIME_INDEX_SUFFIX].write_at(0, time_index.pending_bytes())
        files[ABORTED_SUFFIX].write_at(0, encode_aborted(aborted))
        for file in files.values():
            file.sync()
            file.close()
        self._fs.sync_directory(self._directory)
        segment.index = OffsetIndex(len(index))
        segment.time_index = TimeIndex(len(time_index), time_index.last_timestamp, time_index.last_offset)
        segment.set_aborted(aborted)
        segment.created_ms = self._fs.modified_ms(f"{segment.path}{LOG_SUFFIX}{CLEANED_SUFFIX}")
        return segment


def group_sources(sources: list[Source], segment_bytes: int, index_bytes: int, interval: int) -> list[list[Source]]:
    """Runs of neighbouring segments that fit into one."""
    groups: list[list[Source]] = []
    size = 0
    for source in sources:
        fits = (
            groups
            and size + source.size <= segment_bytes
            and (size + source.size) // max(interval, 1) * 8 <= index_bytes
            and source.next_offset - 1 - groups[-1][0].base_offset <= 0x7FFFFFFF
        )
        if fits:
            groups[-1].append(source)
            size += source.size
        else:
            groups.append([source])
            size = source.size
    return groups
