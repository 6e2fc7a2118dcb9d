"""Records of the transaction coordinator in `__transaction_state`."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.wire import Int8, Int16, Int32, Int64, Message, String, V


class TransactionLogKey(Message):
    VERSIONS: ClassVar[str] = "0"

    transactional_id: String = ""


class TransactionPartitions(Message):
    topic: String = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(Message):
    VERSIONS: ClassVar[str] = "0-1"
    FLEXIBLE: ClassVar[str] = "1+"

    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, V("1+", tag=0)] = -1
    next_producer_id: Annotated[Int64, V("1+", tag=1)] = -1
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[TransactionPartitions] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, V("1+", tag=2)] = 0
    next_producer_epoch: Annotated[Int16, V("1+", tag=3)] = -1
