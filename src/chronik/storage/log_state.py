"""What one partition log is: its segments, offsets and the state beside them. Behaviour is in the `log_*` modules.

Thousands of logs live in one process, most of them idle: slots, no tasks, no timers, nothing allocated before data.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.storage.epochs import EpochCache
from chronik.storage.files import File, FileSystem
from chronik.storage.group_commit import GroupCommit
from chronik.storage.log_config import LogConfig
from chronik.storage.open_files import OpenFiles
from chronik.storage.producers import ProducerStates
from chronik.storage.segment import Segment

if TYPE_CHECKING:
    from chronik.storage.partition_log import PartitionLog


class AppendInfo(msgspec.Struct, frozen=True, gc=False):
    """Where an append went. A duplicate went there earlier, and was not written again."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class SyncState(IntEnum):
    IDLE = 0
    QUEUED = 1
    RUNNING = 2


@dataclass(slots=True)
class LogServices:
    """What all logs of a node share."""

    root: str
    fs: FileSystem
    files: OpenFiles
    commits: GroupCommit
    readers: Executor
    """Threads for reads that wait for the disk."""
    clock_ms: Callable[[], int]
    changed: set[LogState] = field(default_factory=set)
    """Logs with something new for the next checkpoint."""
    lower_recovery_point: Callable[[LogState, int], None] = lambda log, offset: None
    """Make a lower recovery point durable before bytes below the old one are rewritten."""
    begin_log: Callable[[LogState], None] = lambda log: None
    """Make sure that no checkpoint speaks of an earlier log of the same name."""
    checkpoint_soon: Callable[[], None] = lambda: None
    """Something that clients rely on should be written down before the next regular checkpoint."""
    failed: Callable[[LogState], None] = lambda log: None
    """A log has stopped; called once for each."""


class LogState:
    """The fields of a partition log."""

    __slots__ = (
        "_config",
        "_dirty",
        "_dirty_directories",
        "_dirty_files",
        "_failure",
        "_generation",
        "_noted",
        "_sync_state",
        "bases",
        "checkpointed_offset",
        "cleaned_to",
        "damage",
        "directory",
        "end_offset",
        "epochs",
        "epochs_changed",
        "flushed_offset",
        "high_watermark",
        "latest_epoch",
        "log_start_offset",
        "on_synced",
        "partition",
        "producer_states",
        "segments",
        "services",
        "snapshot_offsets",
        "topic",
        "topic_id",
    )

    def __init__(
        self, services: LogServices, topic: str, partition: int, topic_id: bytes | None, config: LogConfig
    ) -> None:
        self.services = services
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = f"{services.root}/{topic}-{partition}"
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        """Base offsets of the segments, to search in."""
        self.log_start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.flushed_offset = 0
        """Everything below is on the disk; in `os` durability this moves with whole segments only."""
        self.checkpointed_offset = 0
        """The recovery point that the checkpoint file holds."""
        self.cleaned_to = 0
        """Compaction has been through everything below."""
        self.latest_epoch = -1
        self.epochs: EpochCache | None = None
        self.epochs_changed = False
        self.producer_states: ProducerStates | None = None
        self.snapshot_offsets: list[int] = []
        """Offsets of the producer snapshots on disk, ascending."""
        self.damage: list[str] | None = None
        """What recovery found damaged, one sentence each."""
        self.on_synced: Callable[[PartitionLog], None] | None = None
        self._config = config
        self._failure: str | None = None
        self._dirty = False
        """A sync is due."""
        self._noted = False
        """The file that appends go to is among the dirty ones."""
        self._dirty_files: list[File | str] = []
        self._dirty_directories: list[str] = []
        self._sync_state = SyncState.IDLE
        self._generation = 0
        """Counts truncations: what a thread found out about an earlier generation is void."""

    def __repr__(self) -> str:
        return f"<log {self.topic}-{self.partition} {self.log_start_offset}..{self.end_offset}>"

    @property
    def settings(self) -> LogConfig:
        return self._config

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def synced_offset(self) -> int:
        """The end of what counts as stored: on the disk in `fsync` durability, in the page cache in `os`."""
        return self.flushed_offset if self._config.durability == "fsync" else self.end_offset

    @property
    def generation(self) -> int:
        """Changes with every truncation."""
        return self._generation

    @property
    def failure(self) -> str | None:
        """Why the log has stopped, or None."""
        return self._failure

    @property
    def last_stable_offset(self) -> int:
        """Where a reader of committed data must stop: every transaction below is decided."""
        if self.producer_states is None:
            return self.high_watermark
        first = self.producer_states.first_unstable()
        if first is None:
            return self.high_watermark
        # A transaction may be open for longer than its first records are kept.
        return min(max(first, self.log_start_offset), self.high_watermark)

    def set_high_watermark(self, offset: int) -> None:
        """Move the high watermark forward; it never goes back, and never beyond the end of the log."""
        offset = min(offset, self.end_offset)
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self.producer_states is not None:
            self.producer_states.high_watermark_moved(offset)
        self.services.changed.add(self)

    def segment_index(self, offset: int) -> int:
        """Index of the segment that holds `offset`, or would; −1 when it lies before the first."""
        return bisect_right(self.bases, offset) - 1

    def out_of_range(self, offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is not in {self.topic}-{self.partition}, which holds "
            f"{self.log_start_offset} to {self.end_offset}",
        )

    def refusal(self) -> KafkaError:
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the log of {self.topic}-{self.partition} has stopped: {self._failure}; "
            "repair the disk and restart the node",
        )
