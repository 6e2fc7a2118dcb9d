"""What Produce asks a coordinator before the first batch of a transaction in a partition is appended.

No handler. What the answers mean to producers of which version is in `transaction_errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.broker.handlers.transaction_errors import refusal
from chronik.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from chronik.broker.context import RequestContext
    from chronik.protocol.records import BatchInfo
    from chronik.replication.partition import Partition
    from chronik.transactions.membership import Membership

FIRST_VERSION_THAT_JOINS = 12
FIRST_VERSION_WITH_ABORTABLE = 11


def is_needed(ctx: RequestContext) -> bool:
    """Newer clients rely on it, for older ones it can be switched off."""
    return "transactions" in ctx.coordinators and (
        ctx.api_version >= FIRST_VERSION_THAT_JOINS
        or ctx.services.configs.broker_bool("transaction.partition.verification.enable")
    )


async def confirm(
    ctx: RequestContext, transactional_id: str | None, asked: list[tuple[Partition, list[BatchInfo]]]
) -> list[KafkaError | None]:
    """For each partition, why its batch must not be appended, or None."""
    if transactional_id is None:
        error = KafkaError(ErrorCode.INVALID_TXN_STATE, "a transactional batch came without a transactional id")
        return [error] * len(asked)
    version = ctx.api_version
    membership: Membership = ctx.coordinators["transactions"].membership
    producers: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for partition, batches in asked:
        producers.setdefault(_producer(batches), []).append((partition.topic, partition.index))
    codes = {
        producer: await membership.ask(transactional_id, *producer, places, join=version >= FIRST_VERSION_THAT_JOINS)
        for producer, places in producers.items()
    }
    refused: list[KafkaError | None] = []
    for partition, batches in asked:
        code = codes[_producer(batches)][partition.topic, partition.index]
        refused.append(
            refusal(
                code,
                abortable_known=version >= FIRST_VERSION_WITH_ABORTABLE,
                concurrent_known=version >= FIRST_VERSION_THAT_JOINS,
            )
            if code
            else None
        )
    return refused


def _producer(batches: list[BatchInfo]) -> tuple[int, int]:
    return batches[0].producer_id, batches[0].producer_epoch
