"""Records that KIP-848 consumer groups keep in `__consumer_offsets`.

The record key begins with an int16 that says what the record is; here it is the one version of each key class.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.wire import ZERO_UUID, Bytes, Int8, Int32, Int64, Message, String, Uuid, V


class ConsumerGroupMetadataKey(Message):
    VERSIONS: ClassVar[str] = "3"

    group_id: String = ""


class ConsumerGroupMetadataValue(Message):
    VERSIONS: ClassVar[str] = "0"
    FLEXIBLE: ClassVar[str] = "0+"

    epoch: Int32 = 0
    metadata_hash: Annotated[Int64, V("0+", tag=0)] = 0


class ConsumerGroupPartitionMetadataKey(Message):
    VERSIONS: ClassVar[str] = "4"

    group_id: String = ""


class PartitionMetadata(Message):
    partition: Int32 = 0
    racks: list[String] = []


class TopicMetadata(Message):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = []


class ConsumerGroupPartitionMetadataValue(Message):
    VERSIONS: ClassVar[str] = "0"
    FLEXIBLE: ClassVar[str] = "0+"

    topics: list[TopicMetadata] = []


class ConsumerGroupMemberMetadataKey(Message):
    VERSIONS: ClassVar[str] = "5"

    group_id: String = ""
    member_id: String = ""


class ClassicProtocol(Message):
    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Message):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = []


class ConsumerGroupMemberMetadataValue(Message):
    VERSIONS: ClassVar[str] = "0"
    FLEXIBLE: ClassVar[str] = "0+"

    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, V("0+", nullable="0+", tag=0)] = None


class ConsumerGroupTargetAssignmentMetadataKey(Message):
    VERSIONS: ClassVar[str] = "6"

    group_id: String = ""


class ConsumerGroupTargetAssignmentMetadataValue(Message):
    VERSIONS: ClassVar[str] = "0"
    FLEXIBLE: ClassVar[str] = "0+"

    assignment_epoch: Int32 = 0


class ConsumerGroupTargetAssignmentMemberKey(Message):
    VERSIONS: ClassVar[str] = "7"

    group_id: String = ""
    member_id: String = ""


class TopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupTargetAssignmentMemberValue(Message):
    VERSIONS: ClassVar[str] = "0"
    FLEXIBLE: ClassVar[str] = "0+"

    topic_partitions: list[TopicPartitions] = []


class ConsumerGroupCurrentMemberAssignmentKey(Message):
    VERSIONS: ClassVar[str] = "8"

    group_id: String = ""
    member_id: String = ""


class ConsumerGroupCurrentMemberAssignmentValue(Message):
    VERSIONS: ClassVar[str] = "0"
    FLEXIBLE: ClassVar[str] = "0+"

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = []
    partitions_pending_revocation: list[TopicPartitions] = []


class ConsumerGroupRegularExpressionKey(Message):
    VERSIONS: ClassVar[str] = "16"

    group_id: String = ""
    regular_expression: String = ""


class ConsumerGroupRegularExpressionValue(Message):
    VERSIONS: ClassVar[str] = "0"
    FLEXIBLE: ClassVar[str] = "0+"

    topics: list[String] = []
    version: Int64 = 0
    timestamp: Int64 = 0
