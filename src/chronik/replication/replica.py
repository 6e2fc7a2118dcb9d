"""What a replica of a partition is on this node: its log, opened when it is needed, its offsets, and who waits for it.

Roles and what follows from them are in `partition`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from chronik.metadata.model import NO_LEADER, PartitionInfo
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.commits import Waiter, WaitingRoom
from chronik.replication.replica_state import NO_EPOCH
from chronik.replication.settings import ReplicaSettings

if TYPE_CHECKING:
    from chronik.replication.lease import Lease
    from chronik.replication.metrics import ReplicationMetrics
    from chronik.storage import PartitionLog

CONSUMER = -1  # the replica id of a client that is no replica


class Isolation(IntEnum):
    """How far a consumer reads: to the high watermark, or to the last stable offset."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ReplicaHost(Protocol):
    """What a replica needs of the node it is on."""

    node_id: int
    lease: Lease
    clock: Callable[[], float]
    metrics: ReplicationMetrics

    def open_log(self, replica: Replica) -> PartitionLog:
        """The replica's log, created when it does not exist."""
        ...

    def may_join_isr(self, node_id: int, registration: int) -> bool:
        """Whether metadata would let this follower, fetching under that registration, into an ISR."""
        ...

    def isr_may_change(self, replica: Replica) -> None:
        """A follower may have to join; or the high watermark waits for one that will, or will not."""
        ...

    def cannot_append(self, replica: Replica) -> None:
        """The log took no more records, but others may have a disk that does: writes should not wait for this one."""
        ...

    def follower_synced(self, replica: Replica) -> None:
        """A log that follows has more on disk: its leader wants to know."""
        ...


class Replica:
    """A partition on this node, whatever its role."""

    __slots__ = ("_host", "_log", "_room", "index", "info", "settings", "topic", "topic_id")

    def __init__(
        self,
        host: ReplicaHost,
        topic: str,
        topic_id: bytes,
        index: int,
        settings: ReplicaSettings,
        log: PartitionLog | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.settings = settings
        self.info = UNASSIGNED
        self._host = host
        self._room: WaitingRoom | None = None
        self._log: PartitionLog | None = None
        if log is not None:
            self._attach(log)

    def _attach(self, log: PartitionLog) -> None:
        self._log = log
        log.on_synced = self._synced

    def _synced(self, log: PartitionLog) -> None:
        self._host.follower_synced(self)

    @property
    def log(self) -> PartitionLog:
        """The log; opened on first use."""
        if self._log is None:
            self._attach(self._host.open_log(self))
        assert self._log is not None
        return self._log

    @property
    def opened_log(self) -> PartitionLog | None:
        """The log if this node has one already."""
        return self._log

    @property
    def leader_id(self) -> int:
        return self.info.leader

    @property
    def leader_epoch(self) -> int:
        return self.info.leader_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        return self.info.isr

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark if self._log is not None else 0

    @property
    def last_stable_offset(self) -> int:
        return self._log.last_stable_offset if self._log is not None else 0

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset if self._log is not None else 0

    @property
    def end_offset(self) -> int:
        return self._log.end_offset if self._log is not None else 0

    @property
    def synced_offset(self) -> int:
        return self._log.synced_offset if self._log is not None else 0

    @property
    def latest_epoch(self) -> int:
        """The epoch of the last record in the log."""
        return self._log.latest_epoch if self._log is not None else NO_EPOCH

    @property
    def failed(self) -> bool:
        """Whether the disk has stopped the log."""
        return self._log is not None and self._log.failure is not None

    @property
    def comparable_epoch(self) -> int:
        """The epoch of the last record, to compare with a leader; none when there is no record left to compare."""
        return self.latest_epoch if self.end_offset > self.log_start_offset else NO_EPOCH

    @property
    def min_isr(self) -> int:
        """The setting, or all there are where it asks for more replicas than the partition has."""
        return min(self.settings.min_insync_replicas, max(1, len(self.info.replicas)))

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuses a client that knows an older or a newer leader epoch than this node; -1 knows none."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.info.leader_epoch:
            return
        if current_leader_epoch < self.info.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self.topic}-{self.index} is at leader epoch {self.info.leader_epoch}, not {current_leader_epoch}.",
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"This node knows {self.topic}-{self.index} up to leader epoch {self.info.leader_epoch} only.",
        )

    def readable_end(self, isolation: int = Isolation.READ_UNCOMMITTED, replica_id: int = CONSUMER) -> int:
        """Where reading ends: consumers see what is committed, replicas everything."""
        if replica_id != CONSUMER:
            return self.end_offset
        return self.last_stable_offset if isolation == Isolation.READ_COMMITTED else self.high_watermark

    def cannot_append(self) -> None:
        """The log was asked to take records and could not."""
        self._host.cannot_append(self)

    def add_waiter(self, callback: Callable[[], None]) -> Waiter:
        """Calls back once, when there is more to read or the role changes; `cancel()` the handle to stop waiting."""
        if self._room is None:
            self._room = WaitingRoom()
        return self._room.enter(callback)

    def _wake(self) -> None:
        if self._room:
            self._room.wake()


UNASSIGNED = PartitionInfo(NO_LEADER, NO_EPOCH, NO_EPOCH, (), ())
