"""OffsetCommit (versions 0 to 10), OffsetFetch (0 to 10), OffsetDelete (0).

OffsetFetch 8 asks for many groups at once; version 10 of both commit and fetch goes by topic id.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import ZERO_UUID, Bool, Int16, Int32, Int64, Message, String, Uuid, V


class OffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, V("6+")] = -1
    commit_timestamp: Annotated[Int64, V("1")] = -1
    committed_metadata: String | None = ""


class OffsetCommitRequestTopic(Message):
    name: Annotated[String, V("0-9")] = ""
    topic_id: Annotated[Uuid, V("10+")] = ZERO_UUID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.OFFSET_COMMIT

    group_id: String = ""
    generation_id_or_member_epoch: Annotated[Int32, V("1+")] = -1
    member_id: Annotated[String, V("1+")] = ""
    group_instance_id: Annotated[String | None, V("7+")] = None
    retention_time_ms: Annotated[Int64, V("2-4")] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    name: Annotated[String, V("0-9")] = ""
    topic_id: Annotated[Uuid, V("10+")] = ZERO_UUID
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.OFFSET_COMMIT

    throttle_time_ms: Annotated[Int32, V("3+")] = 0
    topics: list[OffsetCommitResponseTopic] = []


class OffsetFetchRequestTopic(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class OffsetFetchRequestTopics(Message):
    name: Annotated[String, V("8-9")] = ""
    topic_id: Annotated[Uuid, V("10+")] = ZERO_UUID
    partition_indexes: list[Int32] = []


class OffsetFetchRequestGroup(Message):
    group_id: String = ""
    member_id: Annotated[String | None, V("9+")] = None
    member_epoch: Annotated[Int32, V("9+")] = -1
    topics: list[OffsetFetchRequestTopics] | None = []


class OffsetFetchRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.OFFSET_FETCH

    group_id: Annotated[String, V("0-7")] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, V("0-7", nullable="2-7")] = []
    groups: Annotated[list[OffsetFetchRequestGroup], V("8+")] = []
    require_stable: Annotated[Bool, V("7+")] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, V("5-7")] = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message):
    name: String = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponsePartitions(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Message):
    name: Annotated[String, V("8-9")] = ""
    topic_id: Annotated[Uuid, V("10+")] = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Message):
    group_id: String = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: Int16 = 0


class OffsetFetchResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.OFFSET_FETCH

    throttle_time_ms: Annotated[Int32, V("3+")] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], V("0-7")] = []
    error_code: Annotated[Int16, V("2-7")] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], V("8+")] = []


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Message):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.OFFSET_DELETE

    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.OFFSET_DELETE

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
