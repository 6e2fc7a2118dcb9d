"""InitProducerId, v0–v6: an id and an epoch for an idempotent or a transactional producer.

Without a transactional id this node hands out the next id of its block. With one, the transaction coordinator answers.

Deliberate gaps: an idempotent producer that names the id it had gets a new one (as in Kafka); two-phase commit that
others drive (KIP-939, the new fields of version 6) is refused.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from chronik.broker.context import RequestContext
from chronik.metadata.store import as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from chronik.transactions.coordinator import TransactionCoordinator

FIRST_VERSION_WITH_FENCED = 4

Answer = InitProducerIdResponse | Coroutine[Any, Any, InitProducerIdResponse]


def init_producer_id(request: InitProducerIdRequest, ctx: RequestContext) -> Answer:
    """At once from the block; a new block or a transactional id takes longer."""
    if request.transactional_id is not None:
        return _transactional(request, ctx)
    taken = ctx.services.producer_ids.take_nowait()
    if taken is not None:
        return InitProducerIdResponse(producer_id=taken, producer_epoch=0)
    return _from_new_block(ctx)


def init_producer_id_failed(request: InitProducerIdRequest, error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)


async def _from_new_block(ctx: RequestContext) -> InitProducerIdResponse:
    try:
        taken = await ctx.services.producer_ids.take()
    except Exception as error:
        known = as_kafka_error(error)
        if known.code is ErrorCode.UNKNOWN_SERVER_ERROR:
            raise
        # Producers retry COORDINATOR_LOAD_IN_PROGRESS here, which is what Kafka answers while it has no block.
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, known.message) from error
    return InitProducerIdResponse(producer_id=taken, producer_epoch=0)


def _transactional(request: InitProducerIdRequest, ctx: RequestContext) -> Answer:
    if not request.transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
    coordinator = ctx.coordinators.get("transactions")
    if coordinator is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "transactions are not served by this node")
    if request.enable_2pc or request.keep_prepared_txn:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, "transactions that others prepare (KIP-939) are not served; switch them off"
        )
    return _begun(request, ctx, coordinator)


async def _begun(
    request: InitProducerIdRequest, ctx: RequestContext, coordinator: TransactionCoordinator
) -> InitProducerIdResponse:
    assert request.transactional_id is not None
    expected: tuple[int, int] | None = None
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together, or not at all")
    if request.producer_id >= 0:
        expected = (request.producer_id, request.producer_epoch)
    try:
        producer_id, epoch = await coordinator.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected
        )
    except KafkaError as error:
        if error.code is ErrorCode.PRODUCER_FENCED and ctx.api_version < FIRST_VERSION_WITH_FENCED:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message) from error
        raise
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
