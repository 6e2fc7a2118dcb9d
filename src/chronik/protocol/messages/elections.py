"""ElectLeaders: versions 0 to 2. Null topic partitions mean all of them."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Int8, Int16, Int32, Message, String, V


class TopicPartitions(Message):
    topic: String = ""
    partitions: list[Int32] = []


class ElectLeadersRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.ELECT_LEADERS

    election_type: Annotated[Int8, V("1+")] = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: Int32 = 60000


class PartitionResult(Message):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class ReplicaElectionResult(Message):
    topic: String = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.ELECT_LEADERS

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, V("1+")] = 0
    replica_election_results: list[ReplicaElectionResult] = []
