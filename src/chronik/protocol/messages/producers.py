"""InitProducerId (versions 0 to 6), DescribeProducers (0)."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bool, Int16, Int32, Int64, Message, String, V


class InitProducerIdRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.INIT_PRODUCER_ID

    transactional_id: String | None = None
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, V("3+")] = -1
    producer_epoch: Annotated[Int16, V("3+")] = -1
    enable_2pc: Annotated[Bool, V("6+")] = False
    keep_prepared_txn: Annotated[Bool, V("6+")] = False


class InitProducerIdResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.INIT_PRODUCER_ID

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, V("6+")] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, V("6+")] = -1


class TopicRequest(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class DescribeProducersRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_PRODUCERS

    topics: list[TopicRequest] = []


class ProducerState(Message):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[ProducerState] = []


class TopicResponse(Message):
    name: String = ""
    partitions: list[PartitionResponse] = []


class DescribeProducersResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_PRODUCERS

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []
