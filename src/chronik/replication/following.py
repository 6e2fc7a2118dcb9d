"""One partition that this node follows in one leader epoch: what it does with what the leader sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.replica_state import UNKNOWN_OFFSET, EpochEnd, truncation_offset
from chronik.replication.wire import PartitionResult

if TYPE_CHECKING:
    from chronik.replication.metrics import ReplicationMetrics
    from chronik.replication.partition import Partition

log = structlog.get_logger()


class Followed:
    """A replica in the role of a follower. `slot` is its number in the session with the leader."""

    NOTHING = 0  # no change that the leader has to hear of
    GROWN = 1  # records were appended
    START_OVER = 2  # the log was cut or restarted: name it to the leader again
    REST = 3  # not now: try again after a pause
    SHORTENED = 4  # the log starts later

    __slots__ = ("_metrics", "_trouble", "leader", "leader_epoch", "partition", "slot")

    def __init__(self, partition: Partition, leader: int, leader_epoch: int, metrics: ReplicationMetrics) -> None:
        self.partition = partition
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.slot = 0
        self._metrics = metrics
        self._trouble: str | None = None

    def take_in(self, result: PartitionResult, records: memoryview) -> int:
        """Appends, cuts or moves the watermarks as the leader says; returns what is to be done next."""
        try:
            if result.error:
                return self._refused(result)
            if result.diverging_end != UNKNOWN_OFFSET:
                return self._cut(EpochEnd(result.diverging_epoch, result.diverging_end))
            verdict = self._append(records) if len(records) else self.NOTHING
            if verdict != self.START_OVER and self._watermarks(result) and verdict == self.NOTHING:
                verdict = self.SHORTENED
            if self._trouble is not None and verdict == self.GROWN:
                self._trouble = None
                self._say("this replica follows again")
            return verdict
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self.partition.cannot_append()
            if error.message != self._trouble:  # said once, not with every attempt: a full disk may last for hours
                self._trouble = error.message
                self._say("this replica cannot follow", error=error.code.name, reason=error.message)
            return self.REST

    def _append(self, records: memoryview) -> int:
        partition = self.partition
        first = int.from_bytes(records[:8], "big")
        if first < partition.end_offset:
            self._say("the leader sent records that are here already; starting over", offset=first)
            return self.START_OVER
        partition.log.append_replica(records)
        return self.GROWN

    def _watermarks(self, result: PartitionResult) -> bool:
        """Takes the leader's over; tells whether the log starts later now."""
        own = self.partition.opened_log
        if own is None:
            return False
        high_watermark = min(result.high_watermark, own.end_offset)
        if high_watermark > own.high_watermark:
            own.set_high_watermark(high_watermark)
        log_start = min(result.log_start_offset, own.high_watermark)
        if log_start <= own.log_start_offset:
            return False
        own.delete_records_to(log_start)
        return True

    def _refused(self, result: PartitionResult) -> int:
        partition = self.partition
        if result.error != ErrorCode.OFFSET_OUT_OF_RANGE:
            return self.REST
        end = partition.end_offset
        if result.log_start_offset <= end <= result.end_offset:
            return self.START_OVER  # the leader moved on in the meantime: it is in range now
        self._say(
            "the leader does not have what comes next here; starting over at its log start",
            end_offset=end,
            leader_start=result.log_start_offset,
            leader_end=result.end_offset,
        )
        partition.log.reset_to(result.log_start_offset)
        return self.START_OVER

    def _cut(self, diverging: EpochEnd) -> int:
        """Rule 6: our log and the leader's part somewhere; cut ours and compare again."""
        own = self.partition.log
        end = own.end_offset
        target = truncation_offset(end, diverging, EpochEnd(*own.end_offset_for_epoch(diverging.epoch)))
        if target >= end:
            self._say("the leader sees another log than this one, but not where they part", leader_epoch_end=diverging)
            return self.REST
        if target < own.high_watermark:
            self._say("cutting below the high watermark: records were lost in an unclean election", target=target)
        else:
            log.info(
                "cutting what the leader does not have",
                topic=self.partition.topic,
                partition=self.partition.index,
                end_offset=end,
                target=target,
                leader_epoch=self.leader_epoch,
            )
        self._metrics.truncations += 1
        if target < own.log_start_offset:
            own.reset_to(target)
        else:
            own.truncate_to(target)
        return self.START_OVER

    def _say(self, event: str, **values: object) -> None:
        log.warning(
            event,
            topic=self.partition.topic,
            partition=self.partition.index,
            leader=self.leader,
            epoch=self.leader_epoch,
            **values,
        )
