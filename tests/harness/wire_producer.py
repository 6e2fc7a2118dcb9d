"""A transactional producer that speaks the wire itself, version by version: what no client library lets a test do.

With `version` 2 it is a producer of KIP-890: writing joins, and the end of a transaction raises the epoch. With
version 0 it is an older one. Every call returns the error code; nothing is retried, nothing is hidden.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

from chronik.client.cluster import TRANSACTION, Cluster
from chronik.client.errors import ClientError
from chronik.client.metadata import TopicPartition
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from chronik.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from chronik.protocol.records import Record, build_batch
from chronik.protocol.wire import Message
from harness.waiting import eventually

M = TypeVar("M", bound=Message)

PRODUCE_JOINS, PRODUCE_VERIFIES = 12, 10
END_RAISES, END_KEEPS = 5, 4
OFFSETS_JOIN = 5


class WireProducer:
    """One instance: its producer id, its epoch, and the sequence of each partition."""

    def __init__(self, cluster: Cluster, transactional_id: str, *, version: int = 2, timeout_ms: int = 60_000) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[TopicPartition, int] = {}

    def copy(self) -> WireProducer:
        """The same instance at this moment, for requests that come late."""
        made = WireProducer(self.cluster, self.transactional_id, version=self.version, timeout_ms=self.timeout_ms)
        made.producer_id, made.epoch, made.sequences = self.producer_id, self.epoch, dict(self.sequences)
        return made

    def init(self, *, expected: bool = False) -> ErrorCode:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id if expected else -1,
            producer_epoch=self.epoch if expected else -1,
        )
        answer = self._coordinator(request, InitProducerIdResponse)
        if answer.error_code == ErrorCode.NONE:
            self._became(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def send(self, place: TopicPartition, *values: bytes) -> ErrorCode:
        """Writes one batch; its sequence counts only when it was taken."""
        now = int(time.time() * 1000)
        first = self.sequences.get(place, 0)
        batch = build_batch(
            [Record(number, now, b"k", value) for number, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=first,
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=place.topic, partition_data=[PartitionProduceData(index=place.partition, records=batch)]
                )
            ],
        )
        newest = PRODUCE_JOINS if self.version >= 2 else PRODUCE_VERIFIES
        answer = self.cluster.call(self.cluster.leader(place), request, ProduceResponse, newest=newest)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            self.sequences[place] = first + len(values)
        return code

    def add(self, *places: TopicPartition) -> ErrorCode:
        """AddPartitionsToTxn, as clients before KIP-890 do."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=p.topic, partitions=[p.partition]) for p in places],
        )
        answer = self._coordinator(request, AddPartitionsToTxnResponse, newest=3)
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def end(self, *, commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        newest = END_RAISES if self.version >= 2 else END_KEEPS
        answer = self._coordinator(request, EndTxnResponse, newest=newest)
        if answer.error_code == ErrorCode.NONE and self.version >= 2:
            self._became(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def commit_offset(self, group: str, place: TopicPartition, offset: int) -> ErrorCode:
        """TxnOffsetCommit of version 5, which joins."""
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=place.topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(partition_index=place.partition, committed_offset=offset)
                    ],
                )
            ],
        )
        answer = self.cluster.call(
            self.cluster.coordinator(0, group), request, TxnOffsetCommitResponse, newest=OFFSETS_JOIN
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def _became(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.sequences.clear()

    def _coordinator(self, request: Message, response: type[M], newest: int | None = None) -> M:
        broker = self.cluster.coordinator(TRANSACTION, self.transactional_id)
        return self.cluster.call(broker, request, response, newest=newest)


def until_done(call: Callable[[], ErrorCode], what: str) -> None:
    """Repeats a call while it is told to come again, or the connection is lost; any other refusal fails."""

    def done() -> bool:
        with contextlib.suppress(ClientError):
            code = call()
            if code is not ErrorCode.NONE and not code.retriable:
                raise RuntimeError(f"{what}: {code.name}")
            return code is ErrorCode.NONE
        return False

    eventually(done, what)
