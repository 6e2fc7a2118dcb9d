"""Fetch: versions 0 to 18.

Versions 0 to 3 carry message sets of the old formats; 4 brings transactions, 7 fetch sessions, 9 and 12 leader epochs,
13 topic ids in place of names, 15 moves the replica id into a tagged struct, 16 adds the endpoints of new leaders.
`records` of a response defaults to empty: Kafka never answers null.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import MAX_INT64, ZERO_UUID, Int8, Int16, Int32, Int64, Message, Records, String, Uuid, V


class ReplicaState(Message):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, V("9+")] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, V("12+")] = -1
    log_start_offset: Annotated[Int64, V("5+")] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, V("17+", tag=0)] = ZERO_UUID
    high_watermark: Annotated[Int64, V("18+", tag=1)] = MAX_INT64


class FetchTopic(Message):
    topic: Annotated[String, V("0-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = ZERO_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    topic: Annotated[String, V("7-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = ZERO_UUID
    partitions: list[Int32] = []


class FetchRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.FETCH

    cluster_id: Annotated[String | None, V("12+", tag=0)] = None
    replica_id: Annotated[Int32, V("0-14")] = -1
    replica_state: Annotated[ReplicaState | None, V("15+", tag=1)] = None
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Annotated[Int32, V("3+")] = 2147483647
    isolation_level: Annotated[Int8, V("4+")] = 0
    session_id: Annotated[Int32, V("7+")] = 0
    session_epoch: Annotated[Int32, V("7+")] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], V("7+")] = []
    rack_id: Annotated[String, V("11+")] = ""


class EpochEndOffset(Message):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Message):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Annotated[Int64, V("4+")] = -1
    log_start_offset: Annotated[Int64, V("5+")] = -1
    diverging_epoch: Annotated[EpochEndOffset | None, V("12+", tag=0)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, V("12+", tag=1)] = None
    snapshot_id: Annotated[SnapshotId | None, V("12+", tag=2)] = None
    aborted_transactions: Annotated[list[AbortedTransaction] | None, V("4+")] = []
    preferred_read_replica: Annotated[Int32, V("11+")] = -1
    records: Records | None = b""


class FetchableTopicResponse(Message):
    topic: Annotated[String, V("0-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = ZERO_UUID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class FetchResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.FETCH

    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Annotated[Int16, V("7+")] = 0
    session_id: Annotated[Int32, V("7+")] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], V("16+", tag=0)] = []
