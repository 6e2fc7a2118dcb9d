"""The records of `__transaction_state`, in Kafka's format: one per transactional id, the last one counts.

A key begins with an int16 that says what the record is, a value with an int16 that is its version. A record without a
value is the end of the id.
"""

from __future__ import annotations

from chronik.coordination.log_writer import RawRecord
from chronik.protocol.codec import UnsupportedVersion, decode, encode
from chronik.protocol.messages.internal_transactions import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
)
from chronik.transactions.state import State, Transaction

KEY_VERSION = 0
VALUE_VERSION = 1


def raw(txn: Transaction) -> RawRecord:
    """A transactional id as it stands."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(txn.partitions):
        topics.setdefault(topic, []).append(index)
    value = TransactionLogValue(
        producer_id=txn.producer_id,
        previous_producer_id=txn.previous_producer_id,
        next_producer_id=txn.next_producer_id,
        producer_epoch=txn.epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=txn.state,
        transaction_partitions=None
        if txn.state is State.EMPTY
        else [TransactionPartitions(topic=topic, partition_ids=ids) for topic, ids in topics.items()],
        transaction_last_update_timestamp_ms=txn.updated_ms,
        transaction_start_timestamp_ms=txn.start_ms,
        client_transaction_version=txn.client_version,
    )
    return _key(txn.transactional_id), VALUE_VERSION.to_bytes(2, "big") + encode(value, VALUE_VERSION)


def tombstone(transactional_id: str) -> RawRecord:
    """The end of a transactional id."""
    return _key(transactional_id), None


def _key(transactional_id: str) -> bytes:
    return KEY_VERSION.to_bytes(2, "big") + encode(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


def parsed(key: bytes | None, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """The id and what it is; None for kinds and versions of a later time. Raises DecodeError for damage."""
    if key is None or len(key) < 2 or int.from_bytes(key[:2], "big", signed=True) != KEY_VERSION:
        return None
    name = decode(TransactionLogKey, KEY_VERSION, memoryview(key)[2:]).transactional_id
    if value is None:
        return name, None
    try:
        read = decode(TransactionLogValue, int.from_bytes(value[:2], "big", signed=True), memoryview(value)[2:])
    except UnsupportedVersion:
        return None
    return name, Transaction(
        name,
        read.producer_id,
        epoch=read.producer_epoch,
        timeout_ms=read.transaction_timeout_ms,
        state=State(read.transaction_status),
        partitions=frozenset((t.topic, index) for t in read.transaction_partitions or () for index in t.partition_ids),
        start_ms=read.transaction_start_timestamp_ms,
        updated_ms=read.transaction_last_update_timestamp_ms,
        previous_producer_id=read.previous_producer_id,
        next_producer_id=read.next_producer_id,
        client_version=read.client_transaction_version,
    )
