"""DescribeTransactions (version 0), ListTransactions (0 to 2)."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Int16, Int32, Int64, Message, String, V


class DescribeTransactionsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_TRANSACTIONS

    transactional_ids: list[String] = []


class TransactionTopic(Message):
    topic: String = ""
    partitions: list[Int32] = []


class DescribedTransaction(Message):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TransactionTopic] = []


class DescribeTransactionsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_TRANSACTIONS

    throttle_time_ms: Int32 = 0
    transaction_states: list[DescribedTransaction] = []


class ListTransactionsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.LIST_TRANSACTIONS

    state_filters: list[String] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, V("1+")] = -1
    transactional_id_pattern: Annotated[String | None, V("2+")] = None


class ListedTransaction(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.LIST_TRANSACTIONS

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = []
    transaction_states: list[ListedTransaction] = []
