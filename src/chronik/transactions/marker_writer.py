"""Markers at the leader of a partition: the last word on a transaction, written into the log it is about.

Rules:
1. A marker of a transaction under KIP-890 (version 2) carries a raised epoch: it is written only above the epoch of the
   producer's records here. The same marker again is answered like the first time and not written twice; one that comes
   when the producer has gone on is refused (INVALID_PRODUCER_EPOCH), so it cannot end a later transaction.
2. Older markers carry the epoch of the records; the log refuses those of an older epoch, and those of a coordinator
   that has been replaced (TRANSACTION_COORDINATOR_FENCED).
3. A marker is answered when it is committed. On `__consumer_offsets` the group coordinator is told by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from chronik.cluster.internal_topics import OFFSETS_TOPIC
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.replication.partition import ALL_IN_SYNC, Partition
from chronik.transactions.state import KIP_890

if TYPE_CHECKING:
    from chronik.replication.manager import ReplicaManager

log = structlog.get_logger()

COMMIT_TIMEOUT_S = 5.0

OffsetsMarker = Callable[[int, int, bool], None]
"""(partition of `__consumer_offsets`, producer id, whether it commits)."""


class MarkerWriter:
    """Writes markers into the partitions that this node leads."""

    def __init__(self, replicas: ReplicaManager, clock_ms: Callable[[], int], offsets_marker: OffsetsMarker) -> None:
        self._replicas = replicas
        self._clock_ms = clock_ms
        self._offsets_marker = offsets_marker
        self.written = 0

    def write(self, markers: Sequence[WritableTxnMarker]) -> asyncio.Future[list[WritableTxnMarkerResult]]:
        """Appends at once, and resolves when each marker is committed or refused."""
        done: asyncio.Future[list[WritableTxnMarkerResult]] = asyncio.get_running_loop().create_future()
        results: list[WritableTxnMarkerResult] = []
        waits: dict[asyncio.Future[None], WritableTxnMarkerPartitionResult] = {}
        for marker in markers:
            topics: list[WritableTxnMarkerTopicResult] = []
            for topic in marker.topics:
                answers = [WritableTxnMarkerPartitionResult(partition_index=index) for index in topic.partition_indexes]
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=answers))
                for answer in answers:
                    try:
                        wait = self._append(marker, topic.name, answer.partition_index)
                    except KafkaError as error:
                        answer.error_code = error.code
                        continue
                    if wait is not None:
                        waits[wait] = answer
            results.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        if not waits:
            done.set_result(results)
        else:
            _Commits(waits, partial(_resolve, done, results))
        return done

    def _append(self, marker: WritableTxnMarker, topic: str, index: int) -> asyncio.Future[None] | None:
        """None when it is committed already. Raises KafkaError."""
        partition = self._replicas.partition(topic, index)
        partition.require_leader()
        again = marker.transaction_version >= KIP_890 and self._is_written(partition, marker)
        if again:
            end = partition.end_offset
        else:
            now_ms = self._clock_ms()
            data = build_end_transaction_marker(
                committed=marker.transaction_result,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp=now_ms,
            )
            appended = partition.append(memoryview(data), required_acks=ALL_IN_SYNC, now_ms=now_ms, internal=True)
            self.written += 1
            end = appended.last_offset + 1
        wait = partition.committed(end)
        if topic == OFFSETS_TOPIC:
            if wait is None:
                self._offsets_marker(index, marker.producer_id, marker.transaction_result)
            else:
                wait.add_done_callback(lambda future: self._offsets_ended(future, partition, marker, again))
        return wait

    @staticmethod
    def _is_written(partition: Partition, marker: WritableTxnMarker) -> bool:
        """Whether the marker is there (Rule 1). Raises KafkaError when the producer has gone on."""
        known = partition.log.producer(marker.producer_id)
        if known is None or known.producer_epoch < marker.producer_epoch:
            return False
        if known.producer_epoch == marker.producer_epoch and known.current_transaction_start_offset < 0:
            return True
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"{partition.topic}-{partition.index} has records of producer {marker.producer_id} in epoch "
            f"{known.producer_epoch}; a marker of epoch {marker.producer_epoch} comes too late",
        )

    def _offsets_ended(
        self, future: asyncio.Future[None], partition: Partition, marker: WritableTxnMarker, again: bool
    ) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if again:
            known = partition.log.producer(marker.producer_id)
            if known is not None and known.current_transaction_start_offset >= 0:
                return  # the producer has begun its next transaction while this waited, and the word is not about that
        self._offsets_marker(partition.index, marker.producer_id, marker.transaction_result)


def _resolve(done: asyncio.Future[list[WritableTxnMarkerResult]], results: list[WritableTxnMarkerResult]) -> None:
    if not done.done():
        done.set_result(results)


class _Commits:
    """Waits for the appended markers of one request."""

    def __init__(
        self, waits: dict[asyncio.Future[None], WritableTxnMarkerPartitionResult], finished: Callable[[], None]
    ) -> None:
        self._waits = waits
        self._finished = finished
        self._timer = asyncio.get_running_loop().call_later(COMMIT_TIMEOUT_S, self._timed_out)
        for wait in list(waits):
            wait.add_done_callback(self._landed)

    def _landed(self, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()  # looked at in any case, or asyncio complains
        answer = self._waits.pop(future, None)
        if answer is None:
            return
        if error is not None:
            answer.error_code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        if not self._waits:
            self._timer.cancel()
            self._finished()

    def _timed_out(self) -> None:
        waits, self._waits = self._waits, {}
        for answer in waits.values():
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._finished()
