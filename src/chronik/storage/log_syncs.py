"""What comes after a write of a partition log: the sync that makes it count, or the trouble that stops the log."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, cast

import structlog

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.storage.group_commit import SyncWork
from chronik.storage.log_state import LogState, SyncState
from chronik.storage.segment import Segment

if TYPE_CHECKING:
    from chronik.storage.partition_log import PartitionLog

PASSING_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that refuse one append and say nothing about the bytes already written."""

logger = structlog.get_logger()


class LogSyncs(LogState):
    """Syncing and failing."""

    __slots__ = ()

    def _write_failed(self, segment: Segment, error: OSError) -> KafkaError:
        """Cut off what was written of a refused append, or stop the log when not even that is possible."""
        try:
            file = segment.log_slot.file
            if file is not None:
                file.truncate(segment.size)
        except OSError as second:
            self.fail(f"an append failed ({error}) and its bytes could not be cut off ({second})")
            return self.refusal()
        return self._refuse_or_fail(error)

    def _refuse_or_fail(self, error: OSError) -> KafkaError:
        if error.errno not in PASSING_TROUBLE:
            self.fail(f"writing failed: {error}")
            return self.refusal()
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.topic}-{self.partition} cannot take records now: {error.strerror or error}; "
            "make room, writes go on by themselves",
        )

    def fail(self, reason: str) -> None:
        """Stop the log: what is not synced now will never be acknowledged."""
        if self._failure is not None:
            return
        self._failure = reason
        logger.error(
            "a partition log has stopped, nothing more is written to it until the node is restarted",
            topic=self.topic,
            partition=self.partition,
            reason=reason,
            synced_offset=self.synced_offset,
            end_offset=self.end_offset,
        )
        self.services.failed(self)

    # --- syncing -------------------------------------------------------------------------------------------------

    def request_sync(self) -> None:
        """Sync what is dirty, soon."""
        self._dirty = True
        if self._sync_state is SyncState.IDLE and self._failure is None:
            self._sync_state = SyncState.QUEUED
            self.services.commits.request(self)

    def begin_sync(self) -> SyncWork | None:
        """For group commit: what to sync now."""
        if self._failure is not None:
            self._sync_state = SyncState.IDLE
            return None
        self._sync_state = SyncState.RUNNING
        self._dirty = self._noted = False
        files, self._dirty_files = self._dirty_files, []
        directories, self._dirty_directories = self._dirty_directories, []
        if self._config.durability == "fsync" or not self.segments:
            end_offset = self.end_offset
        else:
            end_offset = max(self.flushed_offset, self.segments[-1].base_offset)
        return SyncWork(self, files, list(dict.fromkeys(directories)), end_offset, self._generation)

    def finish_sync(self, work: SyncWork, error: OSError | None) -> None:
        """For group commit: the outcome. After an error the kernel may have dropped the bytes: the log stops."""
        self._sync_state = SyncState.IDLE
        if self._failure is not None:
            return
        if error is not None:
            self.fail(f"a sync failed: {error}")
            return
        moved = False
        if work.generation == self._generation and work.end_offset > self.flushed_offset:
            self.flushed_offset = work.end_offset
            moved = self._config.durability == "fsync"
            self.services.changed.add(self)
        if self._dirty:
            self._sync_state = SyncState.QUEUED
            self.services.commits.request(self)
        if moved and self.on_synced is not None:
            self.on_synced(cast("PartitionLog", self))
