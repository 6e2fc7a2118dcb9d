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


def begin(ctx: RequestContext, partition: Partition, batch: BatchInfo) -> tuple[bool, int | None]:
    """Whether the coordinator has to confirm a batch, and the token with which it is appended then.

    A batch that joins needs no token: the marker that ends its transaction raises the epoch, and an older epoch is
    refused. Asking about older clients can be switched off.
    """
    log, producer_id, epoch = partition.log, batch.producer_id, batch.producer_epoch
    if "transactions" not in ctx.coordinators or log.has_open_transaction(producer_id, epoch):
        return False, None
    if ctx.api_version >= FIRST_VERSION_THAT_JOINS:
        return True, None
    if not ctx.services.configs.broker_bool("transaction.partition.verification.enable"):
        return False, None
    token = log.begin_verification(producer_id, epoch)
    return token is not None, token


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
