"""Writing records: batches per partition, sent when they are full or flushed, acknowledged before the call returns.

The producer is synchronous: `send` only gathers until a batch is full, `flush` sends what is gathered and waits. Order
within a partition is kept through retries, since a partition has one batch under way at a time. With `idempotent`, a
retry never writes twice. Transactions are not written by this client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec

from chronik.client.cluster import Cluster
from chronik.client.connection import Connection
from chronik.client.errors import ClientError, ConnectionFailed, error_for_code, raise_for_code
from chronik.client.metadata import Broker, TopicPartition
from chronik.client.partitioner import StickyPartitioner, partition_for_key
from chronik.client.retry import Attempts, retry
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from chronik.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.records import Compression, Record, build_batch
from chronik.protocol.records.header import next_sequence
from chronik.protocol.wire import ZERO_UUID

log = logging.getLogger(__name__)

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1

_NEWEST_WITH_TOPIC_NAMES = 12
_RECORD_OVERHEAD_BYTES = 24
"""More than the lengths and deltas of a record take; batches are measured before compression."""


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    acks: int = ACKS_ALL
    compression: Compression = Compression.NONE
    idempotent: bool = False
    batch_bytes: int = 256 * 1024
    """A batch of this size, before compression, is sent without waiting for `flush`."""

    max_request_bytes: int = 8 * 1024 * 1024
    """What is gathered for all partitions together is sent at this size."""

    timeout_ms: int = 30_000
    """How long a broker waits for its replicas."""

    auto_create: bool = True
    """Whether a topic that does not exist may be created by the broker, if it is set up to."""


class Delivery:
    """Where a record went. Known after `flush`, or after the batch was sent because it was full."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: _Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def done(self) -> bool:
        return self._batch.done

    @property
    def error(self) -> Exception | None:
        return self._batch.error

    @property
    def place(self) -> TopicPartition:
        return self._batch.place

    @property
    def offset(self) -> int:
        """The offset of the record; −1 when the broker did not tell (acks=0, or a retry of what was written before).

        Raises the error of the batch when it was not written.
        """
        if self._batch.error is not None:
            raise self._batch.error
        if not self._batch.done:
            raise ClientError(f"the record for {self._batch.place} is not sent yet; flush first")
        return self._batch.base_offset + self._index if self._batch.base_offset >= 0 else -1

    @property
    def timestamp(self) -> int:
        """The timestamp that the record has in the log."""
        appended = self._batch.log_append_time
        return appended if appended >= 0 else self._batch.records[self._index].timestamp


class _Batch:
    """Records of one partition on their way, and what came of them."""

    __slots__ = ("base_offset", "done", "error", "log_append_time", "payload", "place", "records", "sequence", "size")

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.records: list[Record] = []
        self.size = 0
        self.payload: bytearray | None = None
        self.sequence = -1
        self.done = False
        self.error: Exception | None = None
        self.base_offset = -1
        self.log_append_time = -1


class Producer:
    """Writes records to a cluster. Belongs to one thread; close it, or use it as a context, to send what is left."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings | None = None, *, seed: int | None = None) -> None:
        self.cluster = cluster
        self.settings = settings or ProducerSettings()
        if self.settings.idempotent and self.settings.acks != ACKS_ALL:
            raise ValueError("an idempotent producer needs acks=all (-1)")
        self._open: dict[TopicPartition, _Batch] = {}
        self._gathered_bytes = 0
        self._sticky = StickyPartitioner(seed)
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = {}

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Add a record to the batch of its partition; sends the gathered batches when one is full.

        Without `partition`, the key decides, as with Java's producer; without a key, batches go around.
        """
        place = TopicPartition(topic, self._choose(topic, key) if partition is None else partition)
        batch = self._open.get(place)
        if batch is None:
            batch = self._open[place] = _Batch(place)
        index = len(batch.records)
        timestamp = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        batch.records.append(Record(index, timestamp, key, value, headers))
        size = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        if headers:
            size += sum(len(name) * 2 + len(content or b"") + 10 for name, content in headers)
        batch.size += size
        self._gathered_bytes += size
        if batch.size >= self.settings.batch_bytes or self._gathered_bytes >= self.settings.max_request_bytes:
            self.flush()
        return Delivery(batch, index)

    def flush(self) -> None:
        """Send what is gathered and wait for it. Raises the first error; the deliveries tell of each record."""
        batches = list(self._open.values())
        self._open = {}
        self._gathered_bytes = 0
        if not batches:
            return
        for batch in batches:
            topic = self.cluster.metadata.topics.get(batch.place.topic)
            self._sticky.batch_sent(*batch.place, len(topic.partitions) if topic else 1)
        self._deliver(batches)
        for batch in batches:
            if batch.error is not None:
                raise batch.error

    def _choose(self, topic: str, key: bytes | None) -> int:
        if self.cluster.knows(topic):  # the way of nearly every record: no retry to set up
            count = len(self.cluster.metadata.topics[topic].partitions)
        else:
            count = len(self.cluster.topic(topic, auto_create=self.settings.auto_create).partitions)
        return self._sticky.partition(topic, count) if key is None else partition_for_key(key, count)

    def _deliver(self, batches: list[_Batch]) -> None:
        """Send batches until each is acknowledged or has failed for good."""
        attempts = Attempts(f"writing {len(batches)} batches", self.cluster.settings.retry)
        left = batches
        while left:
            failure = self._round(left)
            left = [batch for batch in left if not batch.done]
            if failure is None:
                continue
            try:
                attempts.failed(failure)
            except (KafkaError, ClientError) as error:
                for batch in left:
                    self._settle(batch, error)
                return

    def _round(self, batches: list[_Batch]) -> Exception | None:
        """One request to each leader, all under way at once; the last retriable failure, or None."""
        failure: Exception | None = None
        groups: dict[Broker, list[_Batch]] = {}
        ids: dict[str, bytes] = {}
        try:
            self.cluster.look_up(batch.place.topic for batch in batches)
        except (KafkaError, ClientError) as error:
            for batch in batches:
                self._settle(batch, error)
            return None
        for batch in batches:
            try:
                self._prepare(batch)
                groups.setdefault(self.cluster.leader(batch.place), []).append(batch)
                ids[batch.place.topic] = self.cluster.metadata.topic(batch.place.topic).topic_id
            except (KafkaError, ClientError) as error:
                self._settle(batch, error)
        under_way: list[tuple[Connection, list[_Batch]]] = []
        for broker, group in groups.items():
            try:
                connection = self.cluster.connection(broker)
                self._send(connection, group, ids)
                under_way.append((connection, group))
            except ConnectionFailed as error:
                failure = self._moved(group, error)
        for connection, group in under_way:
            try:
                failure = self._receive(connection, group, ids) or failure
            except ConnectionFailed as error:
                failure = self._moved(group, error)
        return failure

    def _prepare(self, batch: _Batch) -> None:
        """Encode a batch, once: a retry sends the same bytes, so that the broker can recognise it."""
        if batch.payload is not None:
            return
        if self.settings.idempotent:
            if self._producer_id < 0:
                self._init_producer_id()
            batch.sequence = self._sequences.get(batch.place, 0)
            self._sequences[batch.place] = next_sequence(batch.sequence + len(batch.records) - 1)
        batch.payload = build_batch(
            batch.records,
            compression=self.settings.compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=batch.sequence,
        )

    def _send(self, connection: Connection, group: list[_Batch], ids: dict[str, bytes]) -> None:
        topics: dict[str, TopicProduceData] = {}
        for batch in group:
            name = batch.place.topic
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = TopicProduceData(name=name, topic_id=ids[name])
            topic.partition_data.append(PartitionProduceData(index=batch.place.partition, records=batch.payload))
        request = ProduceRequest(
            acks=self.settings.acks, timeout_ms=self.settings.timeout_ms, topic_data=list(topics.values())
        )
        connection.send(
            request,
            newest=_NEWEST_WITH_TOPIC_NAMES if any(ids[name] == ZERO_UUID for name in topics) else None,
            expect_answer=self.settings.acks != ACKS_NONE,
        )

    def _receive(self, connection: Connection, group: list[_Batch], ids: dict[str, bytes]) -> Exception | None:
        if self.settings.acks == ACKS_NONE:
            for batch in group:
                batch.done = True
            return None
        answer = connection.receive(ProduceResponse)
        names = {topic_id: name for name, topic_id in ids.items()}
        answers = {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), p.index): p
            for topic in answer.responses
            for p in topic.partition_responses
        }
        failure: Exception | None = None
        for batch in group:
            result = answers.get(batch.place)
            if result is None:
                self._settle(
                    batch,
                    KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker did not answer for {batch.place}"),
                )
            else:
                failure = self._acknowledge(batch, result) or failure
        return failure

    def _acknowledge(self, batch: _Batch, result: PartitionProduceResponse) -> Exception | None:
        """Take the answer for one batch; the failure that should be tried again, or None."""
        code = result.error_code
        if not code or code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            batch.base_offset = -1 if code else result.base_offset
            batch.log_append_time = result.log_append_time_ms
            batch.done = True
            return None
        detail = "; ".join(e.batch_index_error_message or "" for e in result.record_errors)
        error = error_for_code(code, f"writing to {batch.place}", result.error_message or detail or None)
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            error = KafkaError(
                error.code,
                f"{error.message}; the batch has {len(batch.payload or b'')} bytes. Send less at once, or raise "
                "max.message.bytes of the topic",
            )
        if error.retriable:
            return self._moved([batch], error)
        self._settle(batch, error)
        return None

    def _moved(self, group: list[_Batch], error: Exception) -> Exception:
        for batch in group:
            self.cluster.doubt(batch.place.topic)
        return error

    def _settle(self, batch: _Batch, error: Exception) -> None:
        batch.error = error
        batch.done = True
        if self.settings.idempotent:
            # The broker waits for a sequence that never comes: start over under a new producer id.
            self._producer_id = -1
            self._sequences.clear()

    def _init_producer_id(self) -> None:
        def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = self.cluster.call_any(request, InitProducerIdResponse)
            raise_for_code(answer.error_code, "getting a producer id")
            return answer

        answer = retry("getting a producer id", self.cluster.settings.retry, attempt)
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
        log.debug("got producer id %d, epoch %d", self._producer_id, self._producer_epoch)
