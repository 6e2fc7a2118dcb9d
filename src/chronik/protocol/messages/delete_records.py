"""DeleteRecords: versions 0 to 2."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Int16, Int32, Int64, Message, String


class DeleteRecordsPartition(Message):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Message):
    name: String = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DELETE_RECORDS

    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Message):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message):
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DELETE_RECORDS

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []
