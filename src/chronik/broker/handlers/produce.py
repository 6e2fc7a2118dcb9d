"""Produce, v0–v13: takes record batches into the logs of the partitions this node leads.

Versions 0–2 carry message sets of magic 0 and 1, which are stored as batches of magic 2. From version 13 on topics
are named by id. A batch is stored as it came, except where its topic has a `compression.type` of its own, is
compacted (every record needs a key), limits the age of records, or the batch is in an old format: then its records are
decoded off the loop, and later requests of the same connection wait, so that order is kept.

acks: 0 gets no response at all, and an error closes the connection; 1 is answered after the append; -1 (all) when the
in-sync replicas have it, or with REQUEST_TIMED_OUT. The append itself happens before this handler returns, so a
producer's pipelined requests are in the log in order while their answers wait.

A batch behind one that was refused for a reason that passes is refused like it, see `refused_batches`.

The first batch of a transaction in a partition is appended only when the transaction's coordinator has confirmed it;
from version 12 on (KIP-890) that also makes the partition join.

Deliberate gaps: `record_errors` stays empty, the error message says which record it was; nothing is throttled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from chronik.broker.context import PendingResponse, RequestContext
from chronik.broker.handlers import transaction_verification as verification
from chronik.broker.handlers.leader_hints import current_leader, is_about_leadership, is_out_of_touch
from chronik.broker.handlers.record_preparation import convert, prepare, sent_records
from chronik.broker.produce_answers import FIRST_VERSION_WITH_ALL_NUMBERS
from chronik.broker.refused_batches import RefusedBatches
from chronik.metadata.model import INTERNAL_TOPICS
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chronik.protocol.records.header import TRANSACTIONAL_FLAG, BatchInfo, next_sequence, parse_batches
from chronik.protocol.wire import Buffer

if TYPE_CHECKING:
    from chronik.metadata.model import TopicInfo
    from chronik.metadata.topic_settings import TopicSettings
    from chronik.replication.partition import Partition
    from chronik.storage.partition_log import ProducerInfo

log = structlog.get_logger(__name__)

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
FIRST_VERSION_WITH_TOPIC_IDS = 13
ADMIN_CLIENT_ID = "__admin_client"
"""The client id whose writes to internal topics are let through, as in Kafka."""

Reply = ProduceResponse | list[Buffer]
Answer = Reply | PendingResponse | Coroutine[Any, Any, Reply | None] | None


def produce(request: ProduceRequest, ctx: RequestContext) -> Answer:
    """Append every partition's batch, then answer as `acks` asks."""
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
    run = _ProduceRun(request, ctx)
    if not run.prepare_all():
        run.keep_records()
        return run.finish_slowly()
    run.append_all()
    return run.answer()


def produce_failed(request: ProduceRequest, error: KafkaError) -> ProduceResponse | None:
    """The same error for every partition; nothing at all where the client does not listen."""
    if request.acks == ACKS_NONE:
        return None
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=data.index, error_code=error.code, base_offset=-1, error_message=error.message
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


class _Item(msgspec.Struct, eq=False):
    """One partition of the request that has passed its checks."""

    answer: PartitionProduceResponse
    partition: Partition
    settings: TopicSettings
    data: memoryview
    batches: list[BatchInfo] | None  # None where `data` has to be converted first
    asks: bool = False  # whether the coordinator of its transaction has to confirm it
    verification: int | None = None  # the log's token for that, where it needs one


class _ProduceRun:
    """One produce request on its way: what each partition answers, and which of them still wait for replicas."""

    __slots__ = ("_acks", "_ctx", "_deadline", "_items", "_now_ms", "_pending", "_request", "_response", "_waits")

    def __init__(self, request: ProduceRequest, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._request = request
        self._acks = request.acks
        self._now_ms = int(time.time() * 1000)
        self._response = ProduceResponse()
        self._items: list[_Item] = []
        self._waits: dict[asyncio.Future[None], _Item] = {}
        self._pending: PendingResponse | None = None
        self._deadline = 0.0

    # --- preparing ----------------------------------------------------------------------------------------------

    def prepare_all(self) -> bool:
        """Check every batch; false when one of them needs work that the loop must not do."""
        services = self._ctx.services
        version = self._ctx.api_version
        inline = True
        for topic_data in self._request.topic_data:
            answers: list[PartitionProduceResponse] = []
            self._response.responses.append(
                TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=answers)
            )
            topic = self._find_topic(topic_data)
            if isinstance(topic, KafkaError):
                for data in topic_data.partition_data:
                    answers.append(PartitionProduceResponse(index=data.index))
                    self._refuse(answers[-1], topic, "")
                    self._remember_refused(topic_data.name or topic_data.topic_id, data, topic)
                continue
            name = topic.name
            settings = services.configs.topic_settings(name)
            for data in topic_data.partition_data:
                answer = PartitionProduceResponse(index=data.index)
                answers.append(answer)
                try:
                    partition = services.replicas.partition(name, data.index)
                    records = sent_records(data.records)
                    batches = prepare(records, settings, version, self._now_ms)
                except KafkaError as error:
                    self._refuse(answer, error, name)
                    self._remember_refused(name, data, error)
                    continue
                item = _Item(answer, partition, settings, records, batches)
                if batches is None or (batches[0].attributes & TRANSACTIONAL_FLAG and self._must_ask(item, batches[0])):
                    inline = False
                self._items.append(item)
        return inline

    def _find_topic(self, data: TopicProduceData) -> TopicInfo | KafkaError:
        image = self._ctx.services.store.image
        if self._ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic = image.topics_by_id.get(data.topic_id)
            if topic is None:
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        else:
            topic = image.topics.get(data.name)
            if topic is None:
                return KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
                )
        if topic.name in INTERNAL_TOPICS and self._ctx.client_id != ADMIN_CLIENT_ID:
            return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic.name}")
        return topic

    def keep_records(self) -> None:
        """Copy what was sent: views of the frame do not outlive the handler's return."""
        for item in self._items:
            item.data = memoryview(bytearray(item.data))

    def _must_ask(self, item: _Item, batch: BatchInfo) -> bool:
        """Whether the coordinator has to be asked: the first batch of a transaction in this partition joins it, or for
        older clients must have joined before."""
        if batch.attributes & TRANSACTIONAL_FLAG and item.partition.is_leader:
            item.asks, item.verification = verification.begin(self._ctx, item.partition, batch)
        return item.asks

    async def finish_slowly(self) -> Reply | None:
        """The slow way: convert on a thread what needs it, ask the coordinator, then append and answer as usual."""
        await self._convert_all()
        await self._ask_coordinator([item for item in self._items if item.asks])
        self.append_all()
        answer = self.answer()
        if not isinstance(answer, PendingResponse):
            return answer
        finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.attach(finished.set_result)
        response: Reply | None = await finished
        return response

    async def _ask_coordinator(self, asked: list[_Item]) -> None:
        if not asked:
            return
        refused = await verification.confirm(
            self._ctx, self._request.transactional_id, [(item.partition, item.batches or []) for item in asked]
        )
        for item, refusal in zip(asked, refused, strict=True):
            if refusal is not None:
                self._refuse_item(item, refusal)
                self._items.remove(item)

    async def _convert_all(self) -> None:
        loop = asyncio.get_running_loop()
        version = self._ctx.api_version
        ready: list[_Item] = []
        for item in self._items:
            if item.batches is None:
                try:
                    made, item.batches = await loop.run_in_executor(
                        self._ctx.services.executor, convert, item.data, item.settings, version, self._now_ms
                    )
                    item.data = memoryview(made)
                except KafkaError as error:
                    self._refuse(item.answer, error, item.partition.topic)
                    continue
                if item.batches:
                    self._must_ask(item, item.batches[0])
            ready.append(item)
        self._items = ready

    # --- appending ----------------------------------------------------------------------------------------------

    def append_all(self) -> None:
        """Append what passed its checks; an error stays with its partition."""
        metrics = self._ctx.services.metrics
        refused = self._ctx.connection.refused_batches
        for item in self._items:
            data, partition, answer = item.data, item.partition, item.answer
            try:
                if refused:
                    _check_the_one_before(refused, item)
                info = partition.append(
                    data,
                    required_acks=self._acks,
                    now_ms=self._now_ms,
                    batches=item.batches,
                    verification=item.verification,
                )
            except KafkaError as error:
                self._refuse_item(item, error)
                continue
            except Exception as error:
                log.error(
                    "an append failed unexpectedly", topic=partition.topic, partition=partition.index, exc_info=error
                )
                unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The append failed; the broker's log says why.")
                self._refuse(answer, unknown, partition.topic)
                continue
            if refused:
                _forget_refused(refused, item)
            metrics.produce_bytes += len(data)
            answer.base_offset = info.base_offset
            answer.log_start_offset = info.log_start_offset
            if item.settings.log_append_time:
                answer.log_append_time_ms = self._now_ms
            if self._acks == ACKS_ALL:
                committed = partition.committed(info.last_offset + 1)
                if committed is not None:
                    self._waits[committed] = item

    # --- answering ----------------------------------------------------------------------------------------------

    def answer(self) -> Reply | PendingResponse | None:
        """Now, later, or not at all."""
        if self._acks == ACKS_NONE:
            if self._ctx.outcome:
                self._close_for_errors()
            return None
        if not self._waits:
            return self._reply()
        self._pending = PendingResponse()
        self._deadline = time.monotonic() + max(0, self._request.timeout_ms) / 1000
        self._ctx.services.produce_waits.enter(self)
        for committed in self._waits:
            committed.add_done_callback(self._committed)
        return self._pending

    def _reply(self) -> Reply:
        """What is known of all partitions, as a whole frame where it is the commonest there is."""
        ctx, topics = self._ctx, self._response.responses
        if (
            ctx.outcome == 0
            and ctx.api_version >= FIRST_VERSION_WITH_ALL_NUMBERS
            and len(topics) == 1
            and len(topics[0].partition_responses) == 1
        ):
            return [ctx.services.produce_answers.frame(ctx.api_version, ctx.correlation_id, topics[0])]
        return self._response

    def _committed(self, future: asyncio.Future[None]) -> None:
        item = self._waits.pop(future, None)
        if item is None:
            return
        error = future.exception() if not future.cancelled() else asyncio.CancelledError()
        if error is not None:
            known = error if isinstance(error, KafkaError) else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
            self._refuse(item.answer, known, item.partition.topic)
        if not self._waits:
            self._finish()

    def look(self, now: float) -> None:
        """Waits for the replicas until the request's time is over, or this node is out of touch with the cluster."""
        if is_out_of_touch(self._ctx.services):
            self._give_up(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "This node is cut off from the cluster and can no longer tell whether the write counts; ask another.",
            )
        elif now >= self._deadline:
            self._give_up(
                ErrorCode.REQUEST_TIMED_OUT, "The replicas did not confirm the write within the request's timeout."
            )

    def _give_up(self, code: ErrorCode, message: str) -> None:
        waits, self._waits = self._waits, {}
        for committed, item in waits.items():
            committed.cancel()
            self._refuse(item.answer, KafkaError(code, message), item.partition.topic)
        self._finish()

    def _finish(self) -> None:
        self._ctx.services.produce_waits.leave(self)
        assert self._pending is not None
        self._pending.finish(self._reply())

    def _refuse_item(self, item: _Item, error: KafkaError) -> None:
        self._refuse(item.answer, error, item.partition.topic)
        self._remember(item.partition.topic, item.answer.index, item.batches or [], error)

    def _remember_refused(self, topic: str | bytes, data: PartitionProduceData, error: KafkaError) -> None:
        """The same for records that nobody has looked at."""
        try:
            batches = parse_batches(sent_records(data.records), check_crc=False)
        except KafkaError:
            return
        self._remember(topic, data.index, batches, error)

    def _remember(self, topic: str | bytes, index: int, batches: list[BatchInfo], error: KafkaError) -> None:
        connection = self._ctx.connection
        if connection.refused_batches is None:
            connection.refused_batches = RefusedBatches()
        connection.refused_batches.remember(topic, index, batches, error, time.monotonic())

    def _refuse(self, answer: PartitionProduceResponse, error: KafkaError, topic: str) -> None:
        self._ctx.outcome = error.code
        answer.error_code = error.code
        answer.error_message = error.message
        answer.base_offset = -1
        answer.log_start_offset = -1
        answer.log_append_time_ms = -1
        if is_about_leadership(error.code):
            if is_out_of_touch(self._ctx.services):
                self._ctx.connection.close()
            hint = current_leader(self._ctx.services.store.image, topic, answer.index)
            if hint is not None:
                leader, epoch, broker = hint
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                endpoints = self._response.node_endpoints
                if broker is not None and all(endpoint.node_id != leader for endpoint in endpoints):
                    endpoints.append(NodeEndpoint(node_id=leader, host=broker.host, port=broker.port, rack=broker.rack))

    def _close_for_errors(self) -> None:
        first = next(
            (topic, answer)
            for topic in self._response.responses
            for answer in topic.partition_responses
            if answer.error_code
        )
        self._ctx.connection.refuse(
            "closed a connection: a produce with acks=0 failed, which has no other way to be told",
            topic=first[0].name,
            partition=first[1].index,
            error=ErrorCode(first[1].error_code).name,
            reason=first[1].error_message,
            client_id=self._ctx.client_id,
        )


def _check_the_one_before(refused: RefusedBatches, item: _Item) -> None:
    """Raises the error of the batch before, when that was refused a moment ago and has not been written since."""
    partition, batches = item.partition, item.batches
    if not batches or not partition.is_leader:
        return
    first, now = batches[0], time.monotonic()
    for topic in (partition.topic, partition.topic_id):
        error = refused.before(topic, partition.index, first, now)
        if error is not None and not _continues(partition.log.producer(first.producer_id), first):
            raise error


def _continues(known: ProducerInfo | None, batch: BatchInfo) -> bool:
    """Whether the log ends, for this producer, where the batch begins."""
    return (
        known is not None
        and known.producer_epoch == batch.producer_epoch
        and next_sequence(known.last_sequence) == batch.base_sequence
    )


def _forget_refused(refused: RefusedBatches, item: _Item) -> None:
    if item.batches:
        for topic in (item.partition.topic, item.partition.topic_id):
            refused.forget(topic, item.partition.index, item.batches[0].producer_id)
