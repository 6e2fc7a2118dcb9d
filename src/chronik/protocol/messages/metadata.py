"""Metadata: versions 0 to 13.

In version 0 an empty list of topics asks for all; from version 1 null does, and empty asks for none. Topic ids come
with version 10.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import ZERO_UUID, Bool, Int16, Int32, Message, String, Uuid, V


class MetadataRequestTopic(Message):
    topic_id: Annotated[Uuid, V("10+")] = ZERO_UUID
    name: Annotated[String | None, V("0+", nullable="10+")] = ""


class MetadataRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.METADATA

    topics: Annotated[list[MetadataRequestTopic] | None, V("0+", nullable="1+")] = []
    allow_auto_topic_creation: Annotated[Bool, V("4+")] = True
    include_cluster_authorized_operations: Annotated[Bool, V("8-10")] = False
    include_topic_authorized_operations: Annotated[Bool, V("8+")] = False


class MetadataResponseBroker(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, V("1+")] = None


class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, V("7+")] = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: Annotated[list[Int32], V("5+")] = []


class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[String | None, V("0+", nullable="12+")] = ""
    topic_id: Annotated[Uuid, V("10+")] = ZERO_UUID
    is_internal: Annotated[Bool, V("1+")] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, V("8+")] = -2147483648


class MetadataResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.METADATA

    throttle_time_ms: Annotated[Int32, V("3+")] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[String | None, V("2+")] = None
    controller_id: Annotated[Int32, V("1+")] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, V("8-10")] = -2147483648
    error_code: Annotated[Int16, V("13+")] = 0
