"""OffsetForLeaderEpoch: versions 0 to 4."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Int16, Int32, Int64, Message, String, V


class OffsetForLeaderPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, V("2+")] = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.OFFSET_FOR_LEADER_EPOCH

    replica_id: Annotated[Int32, V("3+")] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Message):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Annotated[Int32, V("1+")] = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: String = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.OFFSET_FOR_LEADER_EPOCH

    throttle_time_ms: Annotated[Int32, V("2+")] = 0
    topics: list[OffsetForLeaderTopicResult] = []
