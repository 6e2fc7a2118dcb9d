"""ListOffsets: versions 0 to 11.

Version 0 asks for up to `max_num_offsets` offsets before a time and gets a list of them (`old_style_offsets`).
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Int8, Int16, Int32, Int64, Message, String, V


class ListOffsetsPartition(Message):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, V("4+")] = -1
    timestamp: Int64 = 0
    max_num_offsets: Annotated[Int32, V("0")] = 1


class ListOffsetsTopic(Message):
    name: String = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.LIST_OFFSETS

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, V("2+")] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, V("10+")] = 0


class ListOffsetsPartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    old_style_offsets: Annotated[list[Int64], V("0")] = []
    timestamp: Annotated[Int64, V("1+")] = -1
    offset: Annotated[Int64, V("1+")] = -1
    leader_epoch: Annotated[Int32, V("4+")] = -1


class ListOffsetsTopicResponse(Message):
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.LIST_OFFSETS

    throttle_time_ms: Annotated[Int32, V("2+")] = 0
    topics: list[ListOffsetsTopicResponse] = []
