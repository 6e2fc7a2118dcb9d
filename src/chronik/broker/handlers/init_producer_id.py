"""InitProducerId, v0–v6: an id and an epoch for an idempotent or a transactional producer.

Without a transactional id this node hands out the next id of its block. With one, the transaction coordinator answers.

Deliberate gaps: an idempotent producer that names the id it had gets a new one (as in Kafka).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from chronik.broker.context import RequestContext
from chronik.metadata.store import as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse

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
    answer: Answer = coordinator.init_producer_id(request, ctx)
    return answer
