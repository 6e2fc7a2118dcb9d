"""Produce: versions 0 to 13.

Versions 0 to 2 carry message sets of the old formats, 3 brings record batches and transactions, 9 is flexible, 13 goes
by topic id. `records` is a view of the request's frame.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import ZERO_UUID, Int16, Int32, Int64, Message, Records, String, Uuid, V


class PartitionProduceData(Message):
    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Message):
    name: Annotated[String, V("0-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = ZERO_UUID
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.PRODUCE

    transactional_id: Annotated[String | None, V("3+")] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Message):
    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Message):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Annotated[Int64, V("2+")] = -1
    log_start_offset: Annotated[Int64, V("5+")] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], V("8+")] = []
    error_message: Annotated[String | None, V("8+")] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, V("10+", tag=0)] = None


class TopicProduceResponse(Message):
    name: Annotated[String, V("0-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ProduceResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.PRODUCE

    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    node_endpoints: Annotated[list[NodeEndpoint], V("10+", tag=0)] = []
