"""Writing a micro-batch once: its records and the marker that it was written, in one transaction of one producer.

Runs at the driver, after all tasks have ended. Why each micro-batch is in the topics exactly once:

1. A query has one transactional id. Beginning raises its epoch, which aborts what an earlier run of the query left open
   and fences that run: from then on it can neither write nor commit.
2. The marker is read after that. Whoever could still move it would have had to begin later, and so fences us.
3. Records and marker are committed by one EndTxn. Either both are there, or neither.

Every transaction begins with a new epoch, so that nothing late can reach a later one, also with the transaction
protocol that brokers had before KIP-890. That one is spoken here: every broker with transactions understands it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from chronik.client import Broker, ClientError, Cluster, TopicPartition
from chronik.client.admin.groups import CommittedOffset, committed_offsets
from chronik.client.cluster import GROUP, TRANSACTION
from chronik.client.errors import error_for_code, raise_for_code
from chronik.client.offsets import by_topic
from chronik.client.producer import ACKS_ALL
from chronik.client.retry import retry
from chronik.pipeline.record_packer import PackedBatch
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chronik.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
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
from chronik.protocol.records.building import set_producer

log = logging.getLogger(__name__)

MARKER_PLACE = TopicPartition("__consumer_offsets", 0)
"""What the marker is committed as an offset of. It must exist and must never be deleted; nothing reads it there."""

MAX_REQUEST_BYTES = 8 * 1024 * 1024
PRODUCE_TIMEOUT_MS = 30_000

# The newest versions of the protocol before KIP-890: partitions join by being added, not by being written to.
_ADD_PARTITIONS = 3
_PRODUCE = 11
_OFFSET_COMMIT = 4
_END = 4

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class SinkFenced(ClientError):
    """Another run of the same query has begun; this one must not write any more."""


class MarkerMismatch(ClientError):
    """The marker in the cluster and the checkpoint of the query do not belong together."""


class Marker(msgspec.Struct, frozen=True):
    """Which micro-batch comes next, and how many records the last one had (None: not known)."""

    next_batch: int
    rows: int | None


class _Metadata(msgspec.Struct):
    rows: int


class SinkTransaction:
    """One transaction of the sink of one query. `begin` first; then one of `commit` and `abort` ends it."""

    def __init__(self, cluster: Cluster, name: str, timeout_ms: int) -> None:
        self.cluster = cluster
        self.name = name
        self.timeout_ms = timeout_ms
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        """Take the transactional id: whatever an earlier run left open is aborted, and that run is fenced."""

        def check(answer: InitProducerIdResponse) -> None:
            too_long = f"kafka.transaction.timeout.ms={self.timeout_ms} is more than transaction.max.timeout.ms allows"
            said = too_long if answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT else None
            raise_for_code(answer.error_code, f"beginning a transaction of {self.name}", said)

        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=self.timeout_ms)
        answer = self.cluster.call_coordinator(TRANSACTION, self.name, request, InitProducerIdResponse, check=check)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def marker(self, *, stable: bool = True) -> Marker | None:
        """The marker of the last micro-batch that was committed.

        With `stable` it waits for a commit that is being carried out; without, that one may be missing.
        """

        def attempt() -> CommittedOffset | None:
            return committed_offsets(self.cluster, self.name, [MARKER_PLACE], stable=stable).get(MARKER_PLACE)

        found = retry(f"reading the marker of {self.name}", self.cluster.settings.retry, attempt)
        if found is None:
            return None
        try:
            rows = msgspec.json.decode(found.metadata, type=_Metadata).rows
        except msgspec.DecodeError:
            rows = None  # set by a person, with a tool that writes no metadata
        return Marker(found.offset, rows)

    def write(self, batches: Iterable[PackedBatch]) -> None:
        """Write batches, those of a partition in the order in which they come."""
        waves = list(_waves(batches))
        with self._fencing_told():
            if waves:
                self._add({batch.place for wave in waves for batch in wave})
            for wave in waves:
                self._write_wave(wave)

    def commit(self, batch_id: int, rows: int) -> None:
        """Commit what was written together with the marker of the micro-batch.

        A failure other than KafkaError leaves open whether it was committed; the marker tells, after the next `begin`.
        """
        with self._fencing_told():
            self._commit_marker(batch_id + 1, rows)
            self._end(committed=True)

    def abort(self) -> None:
        """Take back what was written."""
        self._end(committed=False)

    # -- inside -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _fencing_told(self) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            if error.code not in _FENCED:
                raise
            raise SinkFenced(
                f"another run of this query has taken over, or this transaction took longer than {self.timeout_ms} ms "
                f"({self.name}: {error.message}). Nothing of this micro-batch was written by this run. Stop the query "
                "that should not run, or raise kafka.transaction.timeout.ms; then start it again from its checkpoint"
            ) from error

    def _add(self, places: set[TopicPartition]) -> None:
        def check(answer: AddPartitionsToTxnResponse) -> None:
            codes = {
                p.partition_error_code: TopicPartition(topic.name, p.partition_index)
                for topic in answer.results_by_topic_v3_and_below
                for p in topic.results_by_partition
            }
            codes.pop(ErrorCode.NONE, None)
            if len(codes) > 1:  # the partitions that were not tried because of another say nothing
                codes.pop(ErrorCode.OPERATION_NOT_ATTEMPTED, None)
            for code, place in codes.items():
                raise_for_code(code, f"adding {place} to the transaction of {self.name}")

        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in by_topic(places).items()
            ],
        )
        self.cluster.call_coordinator(
            TRANSACTION, self.name, request, AddPartitionsToTxnResponse, check=check, newest=_ADD_PARTITIONS
        )

    def _write_wave(self, wave: list[PackedBatch]) -> None:
        """Write at most one batch of each partition. A retry sends the same bytes, which brokers recognise."""
        payloads: dict[TopicPartition, bytearray] = {}
        for batch in wave:
            sequence = self._sequences.get(batch.place, 0)
            payload = payloads[batch.place] = bytearray(batch.payload)
            set_producer(payload, self._producer_id, self._epoch, sequence)
            self._sequences[batch.place] = sequence + batch.records

        def ask(broker: Broker, places: list[TopicPartition]) -> dict[TopicPartition, bool | KafkaError]:
            topics: dict[str, TopicProduceData] = {}
            for place in places:
                topic = topics.setdefault(place.topic, TopicProduceData(name=place.topic))
                topic.partition_data.append(PartitionProduceData(index=place.partition, records=payloads[place]))
            request = ProduceRequest(
                transactional_id=self.name,
                acks=ACKS_ALL,
                timeout_ms=PRODUCE_TIMEOUT_MS,
                topic_data=list(topics.values()),
            )
            answer = self.cluster.call(broker, request, ProduceResponse, newest=_PRODUCE)
            found: dict[TopicPartition, bool | KafkaError] = {}
            for response in answer.responses:
                for p in response.partition_responses:
                    place = TopicPartition(response.name, p.index)
                    if p.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                        found[place] = True
                    else:
                        found[place] = error_for_code(p.error_code, f"writing to {place}", p.error_message)
            return found

        self.cluster.on_leaders(f"writing {len(wave)} batches of {self.name}", payloads, ask)

    def _commit_marker(self, next_batch: int, rows: int) -> None:
        def check_added(answer: AddOffsetsToTxnResponse) -> None:
            raise_for_code(answer.error_code, f"adding the marker to the transaction of {self.name}")

        added = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            group_id=self.name,
        )
        self.cluster.call_coordinator(TRANSACTION, self.name, added, AddOffsetsToTxnResponse, check=check_added)

        def check(answer: TxnOffsetCommitResponse) -> None:
            for topic in answer.topics:
                for p in topic.partitions:
                    raise_for_code(p.error_code, f"committing the marker of {self.name}")

        place = TxnOffsetCommitRequestPartition(
            partition_index=MARKER_PLACE.partition,
            committed_offset=next_batch,
            committed_metadata=msgspec.json.encode(_Metadata(rows)).decode(),
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[TxnOffsetCommitRequestTopic(name=MARKER_PLACE.topic, partitions=[place])],
        )
        self.cluster.call_coordinator(
            GROUP, self.name, request, TxnOffsetCommitResponse, check=check, newest=_OFFSET_COMMIT
        )

    def _end(self, *, committed: bool) -> None:
        def check(answer: EndTxnResponse) -> None:
            raise_for_code(answer.error_code, f"{'committing' if committed else 'aborting'} {self.name}")

        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=committed,
        )
        self.cluster.call_coordinator(TRANSACTION, self.name, request, EndTxnResponse, check=check, newest=_END)


def transactional_id(query_id: str) -> str:
    """The transactional id of a query, which is also the group that its marker is kept under."""
    return f"chronik-sink-{query_id}"


def already_written(name: str, batch_id: int, rows: int, marker: Marker | None) -> bool:
    """Whether a micro-batch is in the topics already. Raises MarkerMismatch where that cannot be told."""
    expected = marker.next_batch if marker is not None else 0
    if batch_id == expected:
        return False
    if marker is None:
        happened = (
            "there is no marker of the micro-batch before it: it expired, or the query wrote at least once so far"
        )
    elif batch_id == expected - 1:
        if marker.rows in (None, rows):
            return True
        happened = f"it was written before with {marker.rows} records and has {rows} now"
    elif batch_id < expected:
        happened = f"the cluster has micro-batches up to {expected - 1}: the checkpoint was set back"
    else:
        happened = f"the cluster has micro-batches up to {expected - 1} only: those between were written another way"
    raise MarkerMismatch(
        f"micro-batch {batch_id} cannot be written exactly once: {happened} (group {name}). Nothing was written. Start "
        "the query with a new checkpoint, from the offsets that it should go on with (startingOffsets)"
    )


def write_once(transaction: SinkTransaction, batch_id: int, batches: Iterable[PackedBatch], rows: int) -> bool:
    """Write a micro-batch unless it is in the topics already; whether it was written now."""
    # A run that was replaced long ago should not fence its successor, only to find that it is behind.
    seen = transaction.marker(stable=False)
    if seen is not None and seen.next_batch > batch_id and already_written(transaction.name, batch_id, rows, seen):
        return False
    transaction.begin()
    if already_written(transaction.name, batch_id, rows, transaction.marker()):
        return False
    try:
        transaction.write(batches)
        transaction.commit(batch_id, rows)
    except SinkFenced:
        raise
    except (KafkaError, ClientError):
        _try_to_abort(transaction)  # if the commit did reach the coordinator, that is refused
        raise
    return True


def _try_to_abort(transaction: SinkTransaction) -> None:
    """End a transaction that failed, so that readers need not wait for its timeout; the next run does it otherwise."""
    try:
        transaction.abort()
    except (KafkaError, ClientError) as error:
        if isinstance(error, KafkaError) and error.code == ErrorCode.INVALID_TXN_STATE:
            return  # none is open: it failed before anything was added to it, or it was committed
        log.warning("the transaction of %s stays open until it times out: %s", transaction.name, error)


def _waves(batches: Iterable[PackedBatch]) -> Iterator[list[PackedBatch]]:
    """Batches in rounds that can be sent at once: one of a partition at most, and not too many bytes."""
    queues: dict[TopicPartition, list[PackedBatch]] = {}
    for batch in batches:
        queues.setdefault(batch.place, []).append(batch)
    for queue in queues.values():
        queue.reverse()
    while queues:
        wave: list[PackedBatch] = []
        size = 0
        for place in list(queues):
            batch = queues[place].pop()
            if not queues[place]:
                del queues[place]
            if wave and size + len(batch.payload) > MAX_REQUEST_BYTES:
                yield wave
                wave, size = [], 0
            wave.append(batch)
            size += len(batch.payload)
        yield wave
