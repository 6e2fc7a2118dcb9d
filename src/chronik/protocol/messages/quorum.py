"""DescribeQuorum: versions 0 to 2."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import ZERO_UUID, Int16, Int32, Int64, Message, String, UInt16, Uuid, V


class QuorumPartition(Message):
    partition_index: Int32 = 0


class QuorumTopic(Message):
    topic_name: String = ""
    partitions: list[QuorumPartition] = []


class DescribeQuorumRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_QUORUM

    topics: list[QuorumTopic] = []


class ReplicaState(Message):
    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, V("2+")] = ZERO_UUID
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, V("1+")] = -1
    last_caught_up_timestamp: Annotated[Int64, V("1+")] = -1


class DescribedQuorumPartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, V("2+")] = None
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = []
    observers: list[ReplicaState] = []


class DescribedQuorumTopic(Message):
    topic_name: String = ""
    partitions: list[DescribedQuorumPartition] = []


class Listener(Message):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class Node(Message):
    node_id: Int32 = 0
    listeners: list[Listener] = []


class DescribeQuorumResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_QUORUM

    error_code: Int16 = 0
    error_message: Annotated[String | None, V("2+")] = None
    topics: list[DescribedQuorumTopic] = []
    nodes: Annotated[list[Node], V("2+")] = []
