"""One partition on this node in its role: it leads, follows, or stands by, as metadata says.

A partition follows the metadata image through `update`. Leading, it takes appends, keeps the high watermark and answers
reads; the rules it keeps are in `replica_state`, its knowledge of followers in `leadership`. There are thousands of
these on a node: no tasks and no timers live here, and a log is opened only when there is something to write or read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from chronik.metadata.model import NO_LEADER, PartitionInfo
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.commits import CommitQueue
from chronik.replication.leadership import Follower, Leadership
from chronik.replication.replica import CONSUMER, UNASSIGNED, Isolation, Replica, ReplicaHost
from chronik.replication.replica_state import (
    NO_EPOCH,
    UNKNOWN_OFFSET,
    EpochEnd,
    divergence,
    next_high_watermark,
    sees_the_past,
)
from chronik.replication.settings import ReplicaSettings

if TYPE_CHECKING:
    from chronik.protocol.records import BatchInfo
    from chronik.storage import AppendInfo, PartitionLog

__all__ = ["CONSUMER", "Isolation", "Partition"]

ALL_IN_SYNC = -1  # acks=all

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class Partition(Replica):
    """The replica of one partition, and what clients and followers may do with it."""

    __slots__ = ("_commits", "_deletions", "_lead", "_resignations")

    def __init__(
        self,
        host: ReplicaHost,
        topic: str,
        topic_id: bytes,
        index: int,
        settings: ReplicaSettings,
        log: PartitionLog | None = None,
    ) -> None:
        self._lead: Leadership | None = None
        self._commits: CommitQueue | None = None
        self._deletions: CommitQueue | None = None
        self._resignations = 0
        super().__init__(host, topic, topic_id, index, settings, log)

    def __repr__(self) -> str:
        role = "leader" if self._lead is not None else "replica"
        return f"<{role} {self.topic}-{self.index} epoch {self.info.leader_epoch}>"

    @property
    def leadership(self) -> Leadership | None:
        return self._lead

    @property
    def is_leader(self) -> bool:
        """Whether metadata makes this node the leader; to acknowledge anything it needs the lease as well."""
        return self._lead is not None

    @property
    def follows(self) -> bool:
        """Whether this replica has to fetch from a leader elsewhere, and can."""
        return self.info.leader not in (NO_LEADER, self._host.node_id) and self._fit(self.info)

    @property
    def holds_lease(self) -> bool:
        """Whether this node may speak for what it leads: without the lease somebody else may lead by now."""
        return self._host.lease.held()

    # following the metadata

    def update(self, info: PartitionInfo) -> None:
        """Takes the role that metadata gives this replica. A leader that stays one in the next epoch goes on."""
        previous, self.info = self.info, info
        lead = self._lead
        if info.leader != self._host.node_id or not self._fit(info):
            if lead is not None:
                self._resign()
            elif previous.leader != info.leader:
                self._wake()
            return
        if lead is not None and info.leader_epoch == previous.leader_epoch:
            lead.update(info, self._host.clock())
            self.reconsider_isr()
        else:
            if lead is not None and info.leader_epoch > previous.leader_epoch + 1:
                self._resign()  # in the epochs between, somebody else may have led
            self._lead = Leadership(self._host.node_id, info, self.end_offset, self._host.clock())
            self._host.metrics.leader_elections += 1
            self._wake()
        self._deleted()
        self.advance_high_watermark()

    def _fit(self, info: PartitionInfo) -> bool:
        """Whether this replica may take a role: its log works, and metadata is not older than what is in it."""
        return not self.failed and not sees_the_past(self.latest_epoch, info.leader_epoch)

    def log_failed(self) -> None:
        """The disk stopped the log: this replica neither leads nor follows any more."""
        if self._lead is not None:
            self._resign()

    def stand_by(self) -> None:
        """This node has no role any more: it is fenced, shutting down, or the partition is gone."""
        self.info = UNASSIGNED
        if self._lead is not None:
            self._resign()
        else:
            self._wake()

    def _resign(self) -> None:
        self._lead = None
        self._resignations += 1
        for waiting in (self._commits, self._deletions):
            if waiting is not None:
                waiting.fail(self._not_leader)
        self._wake()

    def _not_leader(self) -> KafkaError:
        if self._lead is not None:
            self._host.metrics.lapsed_lease_refusals += 1
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"This node has not heard from the controller for too long to speak for {self.topic}-{self.index}.",
            )
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"This node does not lead {self.topic}-{self.index}; refresh the metadata to find the leader.",
        )

    # writing

    def append(
        self,
        data: memoryview,
        *,
        required_acks: int,
        now_ms: int,
        batches: list[BatchInfo] | None = None,
        internal: bool = False,
        verification: int | None = None,
    ) -> AppendInfo:
        """Appends as the leader. With `acks=all` the caller then waits for `committed(last offset + 1)`. `internal` and
        `verification` are the log's, for coordinators and transactions."""
        lead = self._lead
        if lead is None or not self._host.lease.held():
            raise self._not_leader()
        if required_acks == ALL_IN_SYNC and len(self.info.isr) < self.min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic}-{self.index} has {len(self.info.isr)} in-sync replicas and needs {self.min_isr}.",
            )
        try:
            log = self._log or self.log
            old_end = log.end_offset
            appended = log.append(
                data,
                leader_epoch=self.info.leader_epoch,
                now_ms=now_ms,
                batches=batches,
                internal=internal,
                verification=verification,
            )
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self.cannot_append()
            raise
        if log.end_offset > old_end:
            if lead.followers:
                lead.appended(old_end, log.end_offset, self._host.clock())
            if log.synced_offset > log.high_watermark:
                self.advance_high_watermark()
        if required_acks == 1 and not self._host.lease.held():
            raise self._not_leader()
        return appended

    def committed(self, offset: int) -> asyncio.Future[None] | None:
        """None when everything below `offset` is committed and may be acknowledged now; else a future for that moment.

        The future fails with NOT_LEADER_OR_FOLLOWER when this node stops being the leader, or its lease has lapsed
        when the moment comes, and with NOT_ENOUGH_REPLICAS_AFTER_APPEND when too few replicas were in sync by then.
        """
        refusal: KafkaError | None = None
        if self._lead is None:
            refusal = self._not_leader()
        elif self.high_watermark >= offset:
            reason = self._refusal()
            if reason is None:
                return None
            refusal = reason()
        if refusal is not None:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(refusal)
            return failed
        if self._commits is None:
            self._commits = CommitQueue()
        return self._commits.add(offset)

    def _refusal(self) -> Callable[[], KafkaError] | None:
        """Why what is committed must not be acknowledged at this moment, or None."""
        if not self._host.lease.held():
            return self._not_leader
        if len(self.info.isr) < self.min_isr:
            return self._not_enough_after_append
        return None

    def _not_enough_after_append(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"{self.topic}-{self.index} had only {len(self.info.isr)} in-sync replicas when the write was committed.",
        )

    def advance_high_watermark(self) -> None:
        """Moves the high watermark as far as the in-sync replicas allow, and tells everyone who waits for it."""
        lead, log = self._lead, self._log
        if lead is None or log is None:
            return
        current = log.high_watermark
        mark = log.synced_offset
        if lead.followers:
            mark, waits = next_high_watermark(
                current,
                mark,
                log.end_offset,
                lead.followers,
                lead.maximal_isr,
                self._may_join,
                self._host.clock(),
            )
            if waits:
                self._host.isr_may_change(self)
        if mark <= current:
            return
        log.set_high_watermark(mark)
        if lead.followers:
            lead.watermark_moved()
        if self._commits:
            self._commits.reached(mark, self._refusal())
        self._wake()

    def _may_join(self, node_id: int) -> bool:
        follower = self._lead.followers.get(node_id) if self._lead is not None else None
        link = follower.link if follower is not None else None
        return link is not None and self._host.may_join_isr(node_id, link.registration)

    def _synced(self, log: PartitionLog) -> None:
        if self._lead is not None:
            self.advance_high_watermark()
        else:
            self._host.follower_synced(self)

    # followers of this leader

    def compare(self, fetch_offset: int, last_epoch: int) -> EpochEnd | None:
        """Where a follower's log parts from this leader's, or None when it is a prefix of it."""
        if last_epoch == NO_EPOCH:
            return None
        return divergence(
            fetch_offset,
            last_epoch,
            self.latest_epoch,
            self.end_offset,
            EpochEnd(*self._log.end_offset_for_epoch(last_epoch)) if self._log is not None else EpochEnd(NO_EPOCH, 0),
        )

    def follower_progress(
        self, follower: Follower, end_offset: int, synced_offset: int, log_start: int = UNKNOWN_OFFSET
    ) -> None:
        """A follower whose log was compared says how far it is."""
        lead = self._lead
        if lead is None:
            return
        if log_start not in (UNKNOWN_OFFSET, follower.log_start_offset):
            follower.log_start_offset = log_start
            self._deleted()
        follower.report(end_offset, synced_offset, self.end_offset, self._host.clock())
        if follower.node_id not in lead.maximal_isr and self._may_join(follower.node_id):
            self._host.isr_may_change(self)
        self.advance_high_watermark()

    def reconsider_isr(self) -> None:
        """Something other than a follower's report changed: one that is in step may be allowed to join now."""
        lead = self._lead
        if lead is not None and any(
            follower.validated() and node_id not in lead.maximal_isr and self._may_join(node_id)
            for node_id, follower in lead.followers.items()
        ):
            self._host.isr_may_change(self)

    def wanted_isr(self, lag_limit_s: float) -> tuple[int, ...] | None:
        """The ISR this leader would like to have now, or None when it is no leader."""
        lead = self._lead
        if lead is None:
            return None
        eligible = {node_id for node_id in lead.followers if node_id not in lead.info.isr and self._may_join(node_id)}
        return lead.wanted_isr(self.high_watermark, self.end_offset, eligible, self._host.clock(), lag_limit_s)

    # reading

    def require_leader(self) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER unless this node leads."""
        if self._lead is None:
            raise self._not_leader()

    def latest_offset(self, isolation: int = Isolation.READ_UNCOMMITTED) -> int:
        """The end offset as a client asks for it: right after a change of leader it is not known until the ISR has
        confirmed what the new leader holds, and answering early would let it go backwards. Without the lease it is not
        known either: somebody else may have acknowledged more."""
        lead = self._lead
        if lead is None or not self._host.lease.held():
            raise self._not_leader()
        if self.high_watermark < lead.epoch_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"The new leader of {self.topic}-{self.index} does not know yet what is committed; ask again.",
            )
        return self.readable_end(isolation)

    def read_nowait(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: int = Isolation.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
        at_least_one: bool = True,
    ) -> Buffer | None:
        """Batches from `offset`, empty at the end, None when that would wait for the disk (then use `read`)."""
        end = self._reading_from(offset, isolation, replica_id)
        if offset >= end:
            return self._nothing_yet(replica_id)
        return self.log.read_nowait(offset, max_bytes, end_offset=end, at_least_one=at_least_one)

    async def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: int = Isolation.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
        at_least_one: bool = True,
    ) -> Buffer:
        """The same, waiting for the disk where it must."""
        end = self._reading_from(offset, isolation, replica_id)
        if offset >= end:
            return self._nothing_yet(replica_id)
        return await self.as_leader(self.log.read(offset, max_bytes, end_offset=end, at_least_one=at_least_one))

    async def as_leader(self, reading: Awaitable[T]) -> T:
        """What a read of the log finds or raises, while this node leads. NOT_LEADER_OR_FOLLOWER when it stopped leading
        while the disk was waited for, even if it leads again: for another leader the log may have been cut, and what
        was found, or the bounds that were told, may be nobody's."""
        resignations = self._resignations
        refused: KafkaError | None = None
        try:
            found = await reading
        except KafkaError as error:
            refused = error
        if self._resignations != resignations:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"This node stopped leading {self.topic}-{self.index} under a read; refresh the metadata.",
            ) from refused
        if refused is not None:
            raise refused
        return found

    def _nothing_yet(self, replica_id: int) -> bytes:
        """The answer at the end of the log. What is committed stays so whoever leads, and is served; but a leader that
        may have been replaced does not know whether there is more, and sends consumers away rather than let them wait
        for it here."""
        if replica_id == CONSUMER and not self._host.lease.held():
            raise self._not_leader()
        return b""

    def _reading_from(self, offset: int, isolation: int, replica_id: int) -> int:
        if self._lead is None:
            raise self._not_leader()
        if not self.log_start_offset <= offset <= self.end_offset:
            if replica_id == CONSUMER and not self._host.lease.held():
                raise self._not_leader()  # for who leads by now it may be in range, and consumers would start over
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic}-{self.index} has offsets {self.log_start_offset} to {self.end_offset}, not {offset}.",
            )
        return self.readable_end(isolation, replica_id)

    # keeping house

    def apply_settings(self, settings: ReplicaSettings) -> None:
        """The topic's configuration may have changed."""
        if settings == self.settings:
            return
        self.settings = settings
        if self._log is not None:
            self._log.config = settings.log
        self.advance_high_watermark()

    def delete_records(self, offset: int) -> int:
        """Forgets everything below `offset` (-1: below the high watermark); returns where the log starts now. Others
        may lead and show it until `deleted` says that they have forgotten it, too."""
        lead = self._lead
        if lead is None or not self._host.lease.held():
            raise self._not_leader()
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic}-{self.index} can be cut up to its high watermark {self.high_watermark}, not {target}.",
            )
        if target > self.log_start_offset:
            self.log.delete_records_to(target)
            lead.watermark_moved(at_once=True)
        return self.log_start_offset

    def deleted(self, offset: int) -> asyncio.Future[None] | None:
        """None when no replica in sync has anything below `offset`; else a future for that moment, which fails with
        NOT_LEADER_OR_FOLLOWER when this node stops being the leader before."""
        if self._lead is None:
            raise self._not_leader()
        if self._lead.low_watermark(self.log_start_offset) >= offset:
            return None
        if self._deletions is None:
            self._deletions = CommitQueue()
        return self._deletions.add(offset)

    def _deleted(self) -> None:
        if self._deletions and self._lead is not None:
            self._deletions.reached(self._lead.low_watermark(self.log_start_offset), None)
