"""AddOffsetsToTxn, v0–v4: the offsets of a group will be committed in a transaction.

The partition of `__consumer_offsets` that the group belongs to joins the transaction.

Deliberate gaps: none. Clients of KIP-890 do not send it: TxnOffsetCommit joins.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.broker.handlers.transaction_errors import for_version
from chronik.cluster.internal_topics import OFFSETS_TOPIC
from chronik.coordination.topic_access import partition_for
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

CLIENT_VERSION = 0


async def add_offsets_to_txn(request: AddOffsetsToTxnRequest, ctx: RequestContext) -> AddOffsetsToTxnResponse:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group needs a name; set group.id")
    offsets = ctx.coordinators["groups"].topic
    try:
        await offsets.ensure()
        await ctx.coordinators["transactions"].add_partitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [(OFFSETS_TOPIC, partition_for(request.group_id, offsets.partitions))],
            CLIENT_VERSION,
        )
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=for_version(error.code, ctx.api_version))
    return AddOffsetsToTxnResponse()


def add_offsets_to_txn_failed(request: AddOffsetsToTxnRequest, error: KafkaError) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=error.code)
