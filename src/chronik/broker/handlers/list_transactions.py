"""ListTransactions, v0–v2: the transactional ids that this node coordinates, filtered.

By state, by producer id, from version 1 on by how long they have been open, from version 2 on by a pattern of the id in
RE2 syntax (which cannot be made to run for ever).

Deliberate gaps: none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chronik.broker.context import RequestContext
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transaction_admin import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from chronik.transactions.state import State, Transaction

_STATES = {state.label: state for state in State}


def list_transactions(request: ListTransactionsRequest, ctx: RequestContext) -> ListTransactionsResponse:
    coordinator = ctx.coordinators["transactions"]
    if coordinator.shards.are_loading:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "transactions are being loaded; try again")
    states = {_STATES[name] for name in request.state_filters if name in _STATES}
    producers = set(request.producer_id_filters)
    matches = _pattern(request.transactional_id_pattern)
    opened_before = coordinator.clock_ms() - request.duration_filter

    def wanted(txn: Transaction) -> bool:
        return (
            (not request.state_filters or txn.state in states)
            and (not producers or txn.producer_id in producers)
            and (request.duration_filter < 0 or 0 <= txn.start_ms < opened_before)
            and matches(txn.transactional_id)
        )

    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in _STATES],
        transaction_states=[
            ListedTransaction(
                transactional_id=txn.transactional_id, producer_id=txn.producer_id, transaction_state=txn.state.label
            )
            for txn in coordinator.transactions()
            if wanted(txn)
        ],
    )


def list_transactions_failed(request: ListTransactionsRequest, error: KafkaError) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=error.code)


def _pattern(text: str | None) -> Callable[[str], Any]:
    if not text:
        return lambda name: True
    from chronik.groups.topic_patterns import compile_pattern  # RE2 is loaded only by who needs it

    match: Callable[[str], Any] = compile_pattern(text).fullmatch
    return match
