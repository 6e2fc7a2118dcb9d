"""EndTxn, v0–v5: a producer commits or aborts its transaction.

Answered when the decision is in the log on all in-sync replicas; it is carried out after that, whatever fails. From
version 5 on (KIP-890) the answer names the producer id and the raised epoch for the next transaction.

Deliberate gaps: none.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.broker.handlers.transaction_errors import for_version
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from chronik.transactions.state import KIP_890

FIRST_VERSION_THAT_RAISES = 5


async def end_txn(request: EndTxnRequest, ctx: RequestContext) -> EndTxnResponse:
    raises = ctx.api_version >= FIRST_VERSION_THAT_RAISES
    try:
        producer_id, epoch = await ctx.coordinators["transactions"].end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            KIP_890 if raises else 0,
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=for_version(error.code, ctx.api_version))
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)


def end_txn_failed(request: EndTxnRequest, error: KafkaError) -> EndTxnResponse:
    return EndTxnResponse(error_code=error.code)
