"""DescribeTransactions, v0: the state of transactional ids that this node coordinates.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transaction_admin import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionTopic,
)
from chronik.transactions.state import Transaction

IDS_MAX = 10_000


def describe_transactions(request: DescribeTransactionsRequest, ctx: RequestContext) -> DescribeTransactionsResponse:
    if len(request.transactional_ids) > IDS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {IDS_MAX} ids can be described at once")
    coordinator = ctx.coordinators["transactions"]
    found: list[DescribedTransaction] = []
    for name in request.transactional_ids:
        try:
            found.append(_described(coordinator.describe(name)))
        except KafkaError as error:
            found.append(DescribedTransaction(transactional_id=name, error_code=error.code))
    ctx.outcome = next((one.error_code for one in found if one.error_code), 0)
    return DescribeTransactionsResponse(transaction_states=found)


def describe_transactions_failed(
    request: DescribeTransactionsRequest, error: KafkaError
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribedTransaction(transactional_id=name, error_code=error.code) for name in request.transactional_ids
        ]
    )


def _described(txn: Transaction) -> DescribedTransaction:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(txn.partitions):
        topics.setdefault(topic, []).append(index)
    return DescribedTransaction(
        transactional_id=txn.transactional_id,
        transaction_state=txn.state.label,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.start_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        topics=[TransactionTopic(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )
