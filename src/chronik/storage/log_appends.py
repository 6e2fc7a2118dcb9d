"""Appending to a partition log: offsets, idempotence, rolling. What comes after a write is in `log_syncs`."""

from __future__ import annotations

import errno

import structlog

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchInfo, parse_batches, stamp
from chronik.protocol.records.control import EndTransactionMarker, read_end_transaction_marker
from chronik.protocol.records.header import CONTROL_FLAG, LOG_APPEND_TIME_FLAG
from chronik.storage.checkpoints import PARTITION_METADATA, format_partition_metadata
from chronik.storage.epochs import EpochCache
from chronik.storage.indexes import MAX_RELATIVE_OFFSET, OFFSET_ENTRY_BYTES
from chronik.storage.log_state import AppendInfo
from chronik.storage.log_syncs import LogSyncs
from chronik.storage.producer_snapshot import encode_snapshot
from chronik.storage.producers import ProducerStates, RememberedBatch
from chronik.storage.replay import aborted_entry
from chronik.storage.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, segment_name

_NO_TIME = -1

logger = structlog.get_logger()


class LogAppends(LogSyncs):
    """The writing half of a partition log."""

    __slots__ = ()

    def append(
        self,
        data: bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        batches: list[BatchInfo] | None = None,
        internal: bool = False,
        verification: int | None = None,
    ) -> AppendInfo:
        """Append as the leader: check, assign offsets, stamp them into `data`, write.

        `batches` are the parsed headers of `data`, when the caller has them. `internal` is for coordinators: control
        batches and batches without sequences are then allowed. `verification` is a token of `begin_verification`.
        Raises KafkaError; the log is then unchanged.
        """
        if self._failure is not None:
            raise self.refusal()
        if batches is None:
            batches = parse_batches(data)
        size = len(data)
        limit = self._config.max_message_bytes
        from_producer = False
        for batch in batches:
            if batch.size > limit:
                raise _too_large(batch.size, limit)
            if batch.producer_id >= 0:
                from_producer = True
            if batch.attributes & CONTROL_FLAG and not internal:
                raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
        if not batches or size > self._config.segment_bytes:
            raise _bad_size(size, self._config.segment_bytes)
        markers: dict[int, EndTransactionMarker] | None = None
        if from_producer:
            duplicate = self._check_producers(batches, internal, verification)
            if duplicate is not None:
                return AppendInfo(
                    duplicate.base_offset, duplicate.last_offset, _NO_TIME, self.log_start_offset, duplicate=True
                )
            markers = self._check_markers(data, batches)

        base = offset = self.end_offset
        for batch in batches:
            stamp(data, batch.position, offset, leader_epoch)
            batch.base_offset = offset
            batch.leader_epoch = leader_epoch
            offset += batch.last_offset_delta + 1
        self._write(data, size, batches, offset, now_ms)
        if leader_epoch > self.latest_epoch:
            self.assign_epoch(leader_epoch, base)
        if markers is not None:
            self._apply_producers(batches, markers, now_ms)
        last = batches[-1]
        return AppendInfo(
            base,
            offset - 1,
            last.max_timestamp if last.attributes & LOG_APPEND_TIME_FLAG else _NO_TIME,
            self.log_start_offset,
        )

    def append_replica(self, data: bytes | bytearray | memoryview) -> AppendInfo:
        """Append as a follower: the leader's bytes as they are, its offsets and epochs included.

        Offsets go on where the log ends, or further on (compaction leaves gaps). Raises KafkaError.
        """
        if self._failure is not None:
            raise self.refusal()
        batches = parse_batches(data)
        if not batches:
            raise KafkaError(ErrorCode.INVALID_RECORD, "an append needs at least one batch")
        offset = self.end_offset
        from_producer = False
        for batch in batches:
            if batch.base_offset < offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"the leader sent offset {batch.base_offset} for {self.topic}-{self.partition}, "
                    f"which goes on at {offset}",
                )
            offset = batch.base_offset + batch.last_offset_delta + 1
            if batch.producer_id >= 0:
                from_producer = True
        now_ms = self.services.clock_ms()
        markers = self._read_markers(data, batches) if from_producer else None
        self._write(data, len(data), batches, offset, now_ms)
        for batch in batches:
            if batch.leader_epoch > self.latest_epoch:
                self.assign_epoch(batch.leader_epoch, batch.base_offset)
        if markers is not None:
            self._apply_producers(batches, markers, now_ms)
        return AppendInfo(batches[0].base_offset, offset - 1, _NO_TIME, self.log_start_offset)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """A leader epoch begins at an offset; also called by a new leader before it appends anything."""
        if epoch <= self.latest_epoch:
            return
        if self.epochs is None:
            self.epochs = EpochCache()
        self.epochs.assign(epoch, start_offset)
        self.latest_epoch = epoch
        self.epochs_changed = True
        self.services.changed.add(self)

    # --- writing -------------------------------------------------------------------------------------------------

    def _write(
        self, data: bytes | bytearray | memoryview, size: int, batches: list[BatchInfo], next_offset: int, now_ms: int
    ) -> None:
        """Write checked and stamped batches at the end of the log."""
        config = self._config
        segments = self.segments
        segment = segments[-1] if segments else self._first_segment(self.end_offset)
        if segment.size and self._roll_is_due(segment, size, next_offset, batches[0].max_timestamp, now_ms):
            segment = self.roll()
        slot = segment.log_slot
        try:
            file = slot.file
            if file is None:
                file = self.services.files.get(slot, create=True)
            else:
                slot.touched = True
            file.write_at(segment.size, data)
        except OSError as error:
            raise self._write_failed(segment, error) from error
        indexed = segment.record_appended(batches, size, config.index_interval_bytes)
        self.end_offset = next_offset
        if not self._noted and config.durability == "fsync":
            self._noted = True
            self._dirty_files.append(file)
            self.request_sync()
        if indexed and segment.indexes_due:
            self._write_indexes(segment)

    def _roll_is_due(self, segment: Segment, size: int, next_offset: int, timestamp: int, now_ms: int) -> bool:
        config = self._config
        if segment.size + size > config.segment_bytes or next_offset - segment.base_offset > MAX_RELATIVE_OFFSET + 1:
            return True  # too many bytes, or an offset that the indexes cannot write relative to the base
        first = segment.first_timestamp
        if first is not None:
            # As Kafka: the age of a segment is counted in the time of its records, where they have one.
            age = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - segment.created_ms
            if age > config.segment_ms - config.segment_jitter_ms:
                return True
        return len(segment.index) >= config.segment_index_bytes // OFFSET_ENTRY_BYTES

    def _first_segment(self, base_offset: int) -> Segment:
        """The first data of a partition: only now it gets a folder and files."""
        fs = self.services.fs
        try:
            self.services.begin_log(self)
            fs.make_directory(self.directory)
            self._refuse_leftovers()
            self._write_topic_id()
            segment = self._new_segment(base_offset)
        except OSError as error:
            raise self._refuse_or_fail(error) from error
        self._dirty_directories.append(self.services.root)
        self.services.changed.add(self)
        return segment

    def _refuse_leftovers(self) -> None:
        """Records of an earlier topic of this name, whose folder could not be put away, must not become ours."""
        for name in self.services.fs.names(self.directory):
            path = f"{self.directory}/{name}"
            if name.endswith(LOG_SUFFIX) and self.services.fs.size(path):
                raise OSError(errno.EEXIST, f"{path} is of an earlier topic of this name and could not be put away")

    def _write_topic_id(self) -> None:
        if self.topic_id is not None:
            path = f"{self.directory}/{PARTITION_METADATA}"
            self.services.fs.open(path, create=True).write_at(0, format_partition_metadata(self.topic_id))
            self._dirty_files.append(path)
            self._dirty_directories.append(self.directory)

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.directory, base_offset)
        segment.created_ms = self.services.clock_ms()
        file = self.services.files.get(segment.log_slot, create=True)
        if file.size():
            file.truncate(0)
        self.segments.append(segment)
        self.bases.append(base_offset)
        self._noted = False
        self._dirty_directories.append(self.directory)
        return segment

    def roll(self) -> Segment:
        """Close the last segment and begin a new one at the end of the log. Raises KafkaError when it cannot."""
        closed = self.segments[-1]
        closed.close_time_index()
        self._write_indexes(closed, then_sync=True)
        try:
            aborted = closed.write_aborted(self.services.fs)
            self.write_snapshot()
            segment = self._new_segment(self.end_offset)
        except OSError as error:
            raise self._refuse_or_fail(error) from error
        self._dirty_files.append(closed.log_slot.path)
        if aborted is not None:
            self._dirty_files.append(aborted)
        self.services.changed.add(self)
        self.request_sync()
        return segment

    def _write_indexes(self, segment: Segment, *, then_sync: bool = False) -> None:
        try:
            files = segment.write_indexes(self.services.fs)
        except OSError as error:
            # An index is a hint: the entries stay in memory and are written with the next ones.
            logger.warning("index entries could not be written yet", segment=segment.path, error=str(error))
            return
        if then_sync:
            self._dirty_files.extend(files)

    def write_snapshot(self) -> None:
        """Write the producer state as of the end of the log; OSError when it cannot be written."""
        offset = self.end_offset
        path = f"{self.directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}"
        file = self.services.fs.open(path, create=True)
        file.truncate(0)
        file.write_at(0, encode_snapshot(self.producer_states or ProducerStates()))
        self._dirty_files.append(path)
        if not self.snapshot_offsets or self.snapshot_offsets[-1] < offset:
            self.snapshot_offsets.append(offset)

    # --- producers -----------------------------------------------------------------------------------------------

    def _producers_here(self) -> ProducerStates:
        if self.producer_states is None:
            self.producer_states = ProducerStates()
        return self.producer_states

    def _check_producers(
        self, batches: list[BatchInfo], internal: bool, verification: int | None
    ) -> RememberedBatch | None:
        states = self._producers_here()
        before: dict[int, BatchInfo] = {}
        for batch in batches:
            if batch.producer_id < 0 or batch.is_control:
                continue
            if internal:
                states.check_internal(batch)
                continue
            duplicate = states.check(batch, before.get(batch.producer_id))
            if duplicate is not None:
                return duplicate
            if verification is not None and batch.is_transactional:
                states.check_verification(batch.producer_id, verification)
            before[batch.producer_id] = batch
        return None

    def _check_markers(self, data: bytearray | memoryview, batches: list[BatchInfo]) -> dict[int, EndTransactionMarker]:
        markers = self._read_markers(data, batches)
        for batch in batches:
            marker = markers.get(batch.position)
            if marker is not None and self.producer_states is not None:
                self.producer_states.check_marker(batch, marker)
        return markers

    @staticmethod
    def _read_markers(
        data: bytes | bytearray | memoryview, batches: list[BatchInfo]
    ) -> dict[int, EndTransactionMarker]:
        """The transaction markers among the batches, by their position."""
        markers: dict[int, EndTransactionMarker] = {}
        for batch in batches:
            if batch.attributes & CONTROL_FLAG and batch.producer_id >= 0 and batch.record_count:
                marker = read_end_transaction_marker(memoryview(data)[batch.position : batch.end])
                if marker is not None:
                    markers[batch.position] = marker
        return markers

    def _apply_producers(self, batches: list[BatchInfo], markers: dict[int, EndTransactionMarker], now_ms: int) -> None:
        states = self._producers_here()
        for batch in batches:
            if batch.producer_id < 0:
                continue
            if not batch.attributes & CONTROL_FLAG:
                states.apply(batch, now_ms)
                continue
            marker = markers.get(batch.position)
            if marker is None:
                continue
            completed = states.apply_marker(batch, marker, now_ms)
            if completed is not None and not completed.committed:
                self.segments[-1].add_aborted(aborted_entry(completed, states), self.services.fs)


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size} bytes is larger than the {limit} that max.message.bytes allows; send smaller batches",
    )


def _bad_size(size: int, segment_bytes: int) -> KafkaError:
    if size == 0:
        return KafkaError(ErrorCode.INVALID_RECORD, "an append needs at least one batch")
    return KafkaError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"{size} bytes in one append are more than a segment of {segment_bytes} holds; send less at once",
    )
