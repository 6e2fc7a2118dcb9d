"""TxnOffsetCommit, v0–v5: offsets of a group that count if the transaction commits.

Sent to the coordinator of the group. From version 3 on the member is checked (KIP-447); version 4 knows
TRANSACTION_ABORTABLE; version 5 joins the transaction by itself (KIP-890). Before, the partition of
`__consumer_offsets` must have joined by AddOffsetsToTxn, which is verified.

Deliberate gaps: none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.broker.context import RequestContext
from chronik.broker.handlers.transaction_errors import CONCURRENT, NO_COORDINATOR
from chronik.cluster.internal_topics import OFFSETS_TOPIC
from chronik.coordination.topic_access import partition_for
from chronik.groups.offset_book import CommittedOffset, Place
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from chronik.groups.coordinator import GroupCoordinator
    from chronik.transactions.coordinator import TransactionCoordinator

FIRST_VERSION_WITH_LOADING = 2
FIRST_VERSION_WITH_ABORTABLE = 4
FIRST_VERSION_THAT_JOINS = 5


async def txn_offset_commit(request: TxnOffsetCommitRequest, ctx: RequestContext) -> TxnOffsetCommitResponse:
    """Joins or verifies, then writes the offsets; a partition that does not exist has its own error."""
    groups: GroupCoordinator = ctx.coordinators["groups"]
    image = ctx.store.image
    offsets: dict[Place, CommittedOffset] = {}
    codes: dict[Place, ErrorCode] = {}
    now_ms = groups.clock_ms()
    for topic in request.topics:
        for p in topic.partitions:
            place = (topic.name, p.partition_index)
            if image.partition(*place) is None:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not groups.offsets.metadata_fits(p.committed_metadata or ""):
                codes[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                offsets[place] = CommittedOffset(
                    p.committed_offset, p.committed_leader_epoch, p.committed_metadata or "", now_ms
                )
    if offsets:
        try:
            code = await _commit(request, ctx, groups, offsets)
        except KafkaError as error:
            code = error.code
        codes.update(dict.fromkeys(offsets, _for_version(code, ctx.api_version)))
    ctx.outcome = next((code for code in codes.values() if code), 0)
    return _response(request, codes)


def txn_offset_commit_failed(request: TxnOffsetCommitRequest, error: KafkaError) -> TxnOffsetCommitResponse:
    return _response(
        request, {(topic.name, p.partition_index): error.code for topic in request.topics for p in topic.partitions}
    )


async def _commit(
    request: TxnOffsetCommitRequest,
    ctx: RequestContext,
    groups: GroupCoordinator,
    offsets: dict[Place, CommittedOffset],
) -> ErrorCode:
    groups.shard_of(request.group_id)
    transactions: TransactionCoordinator = ctx.coordinators["transactions"]
    index = partition_for(request.group_id, groups.topic.partitions)
    partition = ctx.replicas.partition(OFFSETS_TOPIC, index)
    partition.require_leader()
    producer_id, epoch = request.producer_id, request.producer_epoch
    if not partition.log.has_open_transaction(producer_id, epoch):
        place = (OFFSETS_TOPIC, index)
        join = ctx.api_version >= FIRST_VERSION_THAT_JOINS
        token = None if join else partition.log.begin_verification(producer_id, epoch)
        codes = await transactions.membership.ask(request.transactional_id, producer_id, epoch, [place], join=join)
        if codes[place] is not ErrorCode.NONE:
            return _unconfirmed(codes[place], ctx.api_version)
        if token is not None:
            partition.log.check_verification(producer_id, token)
    return await groups.prepare_transactional_commit(
        request.group_id,
        producer_id,
        epoch,
        offsets,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )


def _unconfirmed(code: ErrorCode, version: int) -> ErrorCode:
    """What a client is told when the coordinator of the transaction did not say yes. It is another one than that of the
    group: the client must not look for a new coordinator because of it, only come again."""
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if code in NO_COORDINATOR or (code in CONCURRENT and version < FIRST_VERSION_THAT_JOINS):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return code


def _for_version(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_COORDINATOR
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < FIRST_VERSION_WITH_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def _response(request: TxnOffsetCommitRequest, codes: dict[Place, ErrorCode]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=codes[topic.name, p.partition_index]
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
