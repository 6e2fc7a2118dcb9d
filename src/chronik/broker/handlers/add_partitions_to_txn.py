"""AddPartitionsToTxn, v0–v5: partitions join a transaction before anything is written to them.

Versions 0–3 are a producer's, about its own transaction. From version 4 on it is the form between brokers, about many
transactions at once, which may also only ask whether partitions are in one (`verify_only`). Chronik's nodes ask each
other the same over their own connections.

Deliberate gaps: none. Clients of KIP-890 do not send it at all: writing joins.
"""

from __future__ import annotations

from collections.abc import Iterable

from chronik.broker.context import RequestContext
from chronik.broker.handlers.transaction_errors import for_version
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from chronik.transactions.coordinator import TransactionCoordinator
from chronik.transactions.membership import topic_results
from chronik.transactions.state import Place

FIRST_VERSION_BETWEEN_BROKERS = 4
FIRST_VERSION_WITH_ABORTABLE = 5
TRANSACTIONS_MAX = 1000
CLIENT_VERSION = 0


async def add_partitions_to_txn(request: AddPartitionsToTxnRequest, ctx: RequestContext) -> AddPartitionsToTxnResponse:
    """Everything or nothing of one transaction."""
    coordinator: TransactionCoordinator = ctx.coordinators["transactions"]
    if ctx.api_version < FIRST_VERSION_BETWEEN_BROKERS:
        codes = await _joined(request, ctx, coordinator)
        ctx.outcome = next((code for code in codes.values() if code), 0)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topic_results(codes))
    if len(request.transactions) > TRANSACTIONS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {TRANSACTIONS_MAX} transactions can be named at once")
    results: list[AddPartitionsToTxnResult] = []
    for transaction in request.transactions:
        codes = await _decided(transaction, ctx, coordinator)
        results.append(
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topic_results(codes))
        )
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def add_partitions_to_txn_failed(request: AddPartitionsToTxnRequest, error: KafkaError) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        error_code=error.code,
        results_by_topic_v3_and_below=topic_results(dict.fromkeys(_places(request.v3_and_below_topics), error.code)),
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=topic_results(dict.fromkeys(_places(transaction.topics), error.code)),
            )
            for transaction in request.transactions
        ],
    )


async def _joined(
    request: AddPartitionsToTxnRequest, ctx: RequestContext, coordinator: TransactionCoordinator
) -> dict[Place, ErrorCode]:
    places = _places(request.v3_and_below_topics)
    refused = _unknown(places, ctx)
    if refused is not None:
        return refused
    code = ErrorCode.NONE
    try:
        await coordinator.add_partitions(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            places,
            CLIENT_VERSION,
        )
    except KafkaError as error:
        code = for_version(error.code, ctx.api_version)
    return dict.fromkeys(places, code)


async def _decided(
    transaction: AddPartitionsToTxnTransaction, ctx: RequestContext, coordinator: TransactionCoordinator
) -> dict[Place, ErrorCode]:
    refused = _unknown(_places(transaction.topics), ctx)
    if refused is not None:
        return refused
    codes = await coordinator.membership.decide(transaction)
    if ctx.api_version < FIRST_VERSION_WITH_ABORTABLE:
        return {
            place: ErrorCode.INVALID_TXN_STATE if code is ErrorCode.TRANSACTION_ABORTABLE else code
            for place, code in codes.items()
        }
    return codes


def _places(topics: Iterable[AddPartitionsToTxnTopic]) -> list[Place]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _unknown(places: list[Place], ctx: RequestContext) -> dict[Place, ErrorCode] | None:
    """The refusal of a request that names a partition which does not exist."""
    image = ctx.store.image
    missing = {place for place in places if image.partition(*place) is None}
    if not missing:
        return None
    return {
        place: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if place in missing else ErrorCode.OPERATION_NOT_ATTEMPTED
        for place in places
    }
