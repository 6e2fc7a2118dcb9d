"""Which error codes a client of which version understands, for the transaction APIs. No handler."""

from __future__ import annotations

from chronik.protocol.errors import ErrorCode, KafkaError

FIRST_VERSION_WITH_FENCED = 2
"""Of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn: clients before know INVALID_PRODUCER_EPOCH only."""

CONCURRENT = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
NO_COORDINATOR = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def for_version(code: ErrorCode, version: int) -> ErrorCode:
    """What clients of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn are told."""
    if code is ErrorCode.PRODUCER_FENCED and version < FIRST_VERSION_WITH_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def refusal(code: ErrorCode, *, abortable_known: bool, concurrent_known: bool) -> KafkaError:
    """What a producer is told when the coordinator did not confirm a partition.

    Errors that pass become NOT_ENOUGH_REPLICAS, which every producer retries without looking for another leader.
    """
    if code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "a newer instance of this producer has taken over")
    if code is ErrorCode.TRANSACTION_ABORTABLE and not abortable_known:
        code = ErrorCode.INVALID_TXN_STATE
    if code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
        return KafkaError(code, "the partition is not in the producer's transaction; abort it and begin a new one")
    if code in NO_COORDINATOR or (code in CONCURRENT and not concurrent_known):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction could not be verified ({code.name}); try again"
        )
    return KafkaError(code, f"the coordinator of the transaction refused the partition ({code.name})")
