"""Taking away from a partition log: at its end (a follower truncates), at its start (retention, DeleteRecords)."""

from __future__ import annotations

import structlog

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.storage.log_appends import LogAppends
from chronik.storage.producers import ProducerStates
from chronik.storage.replay import load_producers
from chronik.storage.segment import (
    ABORTED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_name,
)

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX)

logger = structlog.get_logger()


class LogCuts(LogAppends):
    """The part of a partition log that removes."""

    __slots__ = ()

    def truncate_to(self, offset: int) -> None:
        """Drop everything at and after `offset`, which becomes the end of the log: records, epochs, producer state.

        A batch that holds `offset` in its middle goes as a whole. Raises KafkaError when the disk refuses; the log has
        then stopped.
        """
        if self._failure is not None:
            raise self.refusal()
        if offset >= self.end_offset:
            return
        if offset < self.log_start_offset or not self.segments:
            self.reset_to(offset)
            return
        try:
            self._truncate(offset)
        except OSError as error:
            self.fail(f"truncating to {offset} failed: {error}")
            raise self.refusal() from error

    def _truncate(self, offset: int) -> None:
        services = self.services
        services.lower_recovery_point(self, offset)
        self._generation += 1
        keep = self.segment_index(offset)
        segment = self.segments[keep]
        for gone in self.segments[keep + 1 :]:
            self._remove_segment(gone)
        del self.segments[keep + 1 :]
        del self.bases[keep + 1 :]
        log = services.files.get(segment.log_slot)
        position = segment.locate_waiting(
            offset, segment.index.floor_in_memory(offset - segment.base_offset), log, None, segment.size
        )
        if position < segment.size:
            header = log.read_at(position, 8)
            offset = min(offset, int.from_bytes(header, "big"))
        self._dirty_directories.append(self.directory)
        self.end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        self.cleaned_to = min(self.cleaned_to, offset)
        if self.epochs is not None and self.epochs.truncate_from_end(offset):
            self.latest_epoch = self.epochs.latest
            self.epochs_changed = True
        self._begin_anew(segment, offset, position)
        self._restore_producers()
        services.changed.add(self)
        self.request_sync()

    def _begin_anew(self, segment: Segment, offset: int, position: int) -> None:
        """Cut the last segment and go on in a file of its own.

        The cut is not on the disk yet. Were new batches written over the old ones, a power cut could leave some of
        each, a history that never was; with a new file it leaves the old or the new.
        """
        fs = self.services.fs
        if position:
            self._dirty_files.extend(segment.cut(offset, position, fs))
            segment.close_time_index()
            self._write_indexes(segment)
        else:
            self._remove_segment(segment)
            self.segments.pop()
            self.bases.pop()
        self._new_segment(offset)

    def _remove_segment(self, segment: Segment) -> None:
        self._forget(segment)
        for suffix in SEGMENT_SUFFIXES:
            self.services.fs.remove(f"{segment.path}{suffix}")

    def reset_to(self, offset: int) -> None:
        """Drop the whole log and go on at `offset`: for a follower whose leader no longer has what came before."""
        if self._failure is not None:
            raise self.refusal()
        services = self.services
        try:
            services.lower_recovery_point(self, offset)
            self._generation += 1
            for gone in self.segments:
                self._remove_segment(gone)
            self._remove_snapshots(-1)
            self.segments.clear()
            self.bases.clear()
            self.producer_states = None
            if self.epochs is not None:
                self.epochs.clear()
                self.latest_epoch = -1
                self.epochs_changed = True
            self.log_start_offset = self.end_offset = self.flushed_offset = offset
            self.high_watermark = self.cleaned_to = offset
            self._first_segment(offset)
        except OSError as error:
            self.fail(f"starting anew at {offset} failed: {error}")
            raise self.refusal() from error
        services.changed.add(self)
        self.request_sync()

    def delete_records_to(self, offset: int) -> int:
        """Move the start of the log to `offset`; the segments before it are deleted later. The new start.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) beyond the high watermark.
        """
        if offset > self.high_watermark or offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records of {self.topic}-{self.partition} can be deleted up to the high watermark "
                f"{self.high_watermark}, not to {offset}",
            )
        self.advance_start(offset)
        self.services.checkpoint_soon()
        return self.log_start_offset

    def advance_start(self, offset: int) -> None:
        """Move the start of the log forward; also what a follower does when its leader's start has moved."""
        if offset <= self.log_start_offset:
            return
        if offset > self.end_offset:
            self.reset_to(offset)
            return
        self.log_start_offset = offset
        if self.epochs is not None and self.epochs.truncate_from_start(offset):
            self.epochs_changed = True
        self.services.changed.add(self)

    def drop_oldest(self, count: int) -> list[Segment]:
        """Take the oldest segments out of the log, never the last one; the caller removes their files."""
        count = min(count, len(self.segments) - 1)
        if count <= 0:
            return []
        gone = self.segments[:count]
        del self.segments[:count]
        del self.bases[:count]
        for segment in gone:
            self._forget(segment)
            self._drop_snapshot(segment.base_offset)
        self.advance_start(self.bases[0])
        self.services.changed.add(self)
        return gone

    def replace_segments(self, first: int, count: int, segment: Segment) -> list[Segment]:
        """Put one segment in the place of several, never of the last; those that it replaces."""
        old = self.segments[first : first + count]
        for gone in old:
            self._forget(gone)
            if gone.base_offset != segment.base_offset:
                self._drop_snapshot(gone.base_offset)
        self.segments[first : first + count] = [segment]
        self.bases[first : first + count] = [segment.base_offset]
        self._dirty_directories.append(self.directory)
        self.request_sync()
        return old

    def _forget(self, segment: Segment) -> None:
        self.services.files.forget(segment.log_slot)
        self.services.files.forget(segment.index_slot)

    def _remove_snapshots(self, beyond: int) -> None:
        while self.snapshot_offsets and self.snapshot_offsets[-1] > beyond:
            offset = self.snapshot_offsets.pop()
            self.services.fs.remove(f"{self.directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}")

    def _drop_snapshot(self, offset: int) -> None:
        """The snapshot of a segment goes with it, unless it is the only one."""
        if offset in self.snapshot_offsets[:-1]:
            self.snapshot_offsets.remove(offset)
            self.services.fs.remove(f"{self.directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}")

    def _restore_producers(self) -> None:
        """After a truncation: producer state as it was at the new end, from the newest snapshot and the log."""
        self._remove_snapshots(self.end_offset)
        states = self.producer_states
        if states is None or states.changed_at < self.end_offset:
            return
        states = load_producers(
            self.services.fs,
            self.directory,
            self.segments,
            self.snapshot_offsets,
            self.end_offset,
            self.services.clock_ms(),
        )
        states.high_watermark_moved(self.high_watermark)
        self.producer_states = states if states.entries else ProducerStates()

    def retire(self) -> None:
        """The log is deleted or set aside: whoever still has it finds it empty and stopped."""
        self._generation += 1
        self._failure = "it was deleted"
        self.segments = []
        self.bases = []
        self.log_start_offset = self.end_offset
        self._dirty_files = []
        self._dirty_directories = []
