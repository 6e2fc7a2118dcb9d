"""The worker that runs transactions: add a partition, write, commit, one transaction after the other.

The latency is that of the whole transaction. Requests are those of producers that add partitions themselves (before
the protocol's second version of transactions), which every Kafka since 0.11 understands.
"""

from __future__ import annotations

import time

from chronik.bench.batches import BatchMaker
from chronik.bench.specs import TransactSpec
from chronik.bench.tally import Tally
from chronik.bench.window import Window
from chronik.client.cluster import TRANSACTION, Cluster
from chronik.client.errors import ClientError, raise_for_code
from chronik.client.metadata import TopicPartition
from chronik.client.retry import retry
from chronik.protocol.errors import ErrorCode, KafkaError
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
)

NEWEST_INIT = 5
NEWEST_ADD = 3
NEWEST_PRODUCE = 11
NEWEST_END = 4
BUSY_PAUSE_S = 0.001
"""How long to wait while the coordinator still completes the transaction before."""

BUSY_DEADLINE_S = 30.0
TRANSACTION_TIMEOUT_MS = 60_000
PRODUCE_TIMEOUT_MS = 30_000


class Transactor:
    def __init__(self, spec: TransactSpec, cluster: Cluster) -> None:
        self._spec = spec
        self._cluster = cluster
        room = spec.messages * (spec.message_bytes + 64) + 1024
        self._maker = BatchMaker(spec.message_bytes, room, transactional=True, seed=spec.number + 1)
        partitions = len(cluster.topic(spec.topic).partitions)
        self._place = TopicPartition(spec.topic, spec.number % partitions)
        self._sequence = 0
        self._producer_id, self._epoch = -1, -1
        self._init()

    def run(self, window: Window) -> Tally:
        tally = window.tally
        while window.running(began := time.monotonic_ns()):
            try:
                self._transaction()
            except (KafkaError, ClientError) as error:
                tally.failed(error.code.name if isinstance(error, KafkaError) else type(error).__name__)
                self._start_over()
                continue
            now = time.monotonic_ns()
            window.progress.messages += 1
            if window.measuring(now):
                tally.messages += self._spec.messages
                tally.message_bytes += self._spec.messages * self._spec.message_bytes
                tally.operations += 1
                tally.latency.record(now - began)
        return window.close()

    def close(self) -> None:
        """Nothing of its own to close: the connections are the cluster's."""

    def _transaction(self) -> None:
        self._add_partition()
        self._write()
        self._commit()

    def _init(self) -> None:
        def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(
                transactional_id=self._spec.transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            )
            broker = self._cluster.coordinator(TRANSACTION, self._spec.transactional_id)
            answer = self._cluster.call(broker, request, InitProducerIdResponse, newest=NEWEST_INIT)
            raise_for_code(answer.error_code, "getting a producer id")
            return answer

        answer = retry("getting a producer id", self._cluster.settings.retry, attempt)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequence = 0

    def _start_over(self) -> None:
        time.sleep(BUSY_PAUSE_S)
        self._cluster.doubt(self._spec.topic)
        self._init()

    def _add_partition(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._spec.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self._place.topic, partitions=[self._place.partition])],
        )
        broker = self._cluster.coordinator(TRANSACTION, self._spec.transactional_id)
        deadline = time.monotonic() + BUSY_DEADLINE_S
        while True:
            answer = self._cluster.call(broker, request, AddPartitionsToTxnResponse, newest=NEWEST_ADD)
            code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() > deadline:
                raise_for_code(code, f"adding {self._place} to a transaction")
                return
            time.sleep(BUSY_PAUSE_S)

    def _write(self) -> None:
        batch = self._maker.make(
            self._spec.messages,
            time.time_ns() // 1_000_000,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )
        data = PartitionProduceData(index=self._place.partition, records=batch)
        request = ProduceRequest(
            transactional_id=self._spec.transactional_id,
            acks=-1,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._place.topic, partition_data=[data])],
        )
        leader = self._cluster.leader(self._place)
        answer = self._cluster.call(leader, request, ProduceResponse, newest=NEWEST_PRODUCE)
        raise_for_code(answer.responses[0].partition_responses[0].error_code, f"writing to {self._place}")
        self._sequence += self._spec.messages

    def _commit(self) -> None:
        request = EndTxnRequest(
            transactional_id=self._spec.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=True,
        )
        broker = self._cluster.coordinator(TRANSACTION, self._spec.transactional_id)
        answer = self._cluster.call(broker, request, EndTxnResponse, newest=NEWEST_END)
        raise_for_code(answer.error_code, "committing a transaction")
