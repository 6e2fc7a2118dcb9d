"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, versions 0 to 1: the group protocol of KIP-848."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from msgspec import field

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import ZERO_UUID, Bool, Int8, Int16, Int32, Message, String, Uuid, V


class TopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.CONSUMER_GROUP_HEARTBEAT

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: Annotated[String | None, V("1+")] = None
    server_assignor: String | None = None
    topic_partitions: list[TopicPartitions] | None = None


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.CONSUMER_GROUP_HEARTBEAT

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None


class ConsumerGroupDescribeRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.CONSUMER_GROUP_DESCRIBE

    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class DescribedTopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = []


class DescribedAssignment(Message):
    topic_partitions: list[DescribedTopicPartitions] = []


class DescribedMember(Message):
    member_id: String = ""
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = None
    assignment: DescribedAssignment = field(default_factory=DescribedAssignment)
    target_assignment: DescribedAssignment = field(default_factory=DescribedAssignment)
    member_type: Annotated[Int8, V("1+")] = -1


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[DescribedMember] = []
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.CONSUMER_GROUP_DESCRIBE

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
