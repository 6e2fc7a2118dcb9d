"""Producer state of a log rebuilt from its newest snapshot and the batch headers after it. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from chronik.protocol.errors import KafkaError
from chronik.protocol.records import BatchInfo
from chronik.protocol.records.control import EndTransactionMarker, read_end_transaction_marker
from chronik.storage.aborted_index import AbortedTransaction
from chronik.storage.batch_walk import DamagedBatch, walk
from chronik.storage.files import File, FileSystem, read_whole
from chronik.storage.producer_snapshot import SNAPSHOT_BYTES_MAX, decode_snapshot
from chronik.storage.producers import CompletedTransaction, ProducerStates
from chronik.storage.segment import INDEX_SUFFIX, SNAPSHOT_SUFFIX, Segment, segment_name

logger = structlog.get_logger()


def load_snapshot(
    fs: FileSystem, directory: str, snapshot_offsets: list[int], not_above: int, now_ms: int
) -> tuple[ProducerStates, int]:
    """(state, its offset) of the newest sound snapshot; an empty state and −1 when there is none.

    Snapshots that turn out to be damaged are taken off the list.
    """
    for offset in reversed([offset for offset in snapshot_offsets if offset <= not_above]):
        path = f"{directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}"
        try:
            raw = read_whole(fs, path, SNAPSHOT_BYTES_MAX)
            if raw is not None:
                return decode_snapshot(raw, now_ms), offset
        except (ValueError, OSError) as error:
            logger.warning("a producer snapshot is ignored, an older one is used", path=path, error=str(error))
        snapshot_offsets.remove(offset)
    return ProducerStates(), -1


def load_producers(
    fs: FileSystem,
    directory: str,
    segments: Sequence[Segment],
    snapshot_offsets: list[int],
    end_offset: int,
    now_ms: int,
) -> ProducerStates:
    """The state at `end_offset`, where the log ends. Only headers are read, and the markers of transactions."""
    states, offset = load_snapshot(fs, directory, snapshot_offsets, end_offset, now_ms)
    replay(fs, segments, states, offset, now_ms)
    return states


def replay(
    fs: FileSystem,
    segments: Sequence[Segment],
    states: ProducerStates,
    offset: int,
    now_ms: int,
    on_completed: Callable[[Segment, CompletedTransaction], None] | None = None,
) -> None:
    """Bring a state forward from `offset` to the end of the log. What follows damage in a segment is left out."""
    for segment in segments:
        if segment.next_offset <= offset or not segment.size:
            continue
        log = fs.open(segment.log_slot.path)
        try:
            start = _position_of(fs, segment, log, offset)
            for batch in walk(log, start, segment.size, check_crc=False, floor=segment.base_offset):
                completed = replay_batch(states, log, batch, now_ms)
                if completed is not None and on_completed is not None:
                    on_completed(segment, completed)
        except (DamagedBatch, KafkaError) as error:
            logger.error(
                "producer state after damage in a segment is not restored", path=segment.log_slot.path, error=str(error)
            )


def _position_of(fs: FileSystem, segment: Segment, log: File, offset: int) -> int:
    if offset <= segment.base_offset:
        return 0
    hint = segment.index.floor_in_memory(offset - segment.base_offset)
    index = fs.open(f"{segment.path}{INDEX_SUFFIX}") if hint < 0 else None
    return segment.locate_waiting(offset, hint, log, index, segment.size)


def replay_batch(states: ProducerStates, log: File, batch: BatchInfo, now_ms: int) -> CompletedTransaction | None:
    """Apply one batch of a file to the state; the transaction that it ended, if it is a marker that did."""
    if batch.producer_id < 0:
        return None
    if not batch.is_control:
        states.apply(batch, now_ms)
        return None
    if not batch.record_count:
        return None  # compaction has emptied it
    marker = read_marker(log, batch)
    return None if marker is None else states.apply_marker(batch, marker, now_ms)


def read_marker(log: File, batch: BatchInfo) -> EndTransactionMarker | None:
    return read_end_transaction_marker(log.read_at(batch.position, batch.size))


def aborted_entry(completed: CompletedTransaction, states: ProducerStates) -> AbortedTransaction:
    """The index entry of a transaction that was just aborted."""
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.marker_offset, states.stable_end_after(completed)
    )
