"""CreateTopics (versions 0 to 7), DeleteTopics (0 to 6), CreatePartitions (0 to 3).

DeleteTopics 6 names a topic or gives its id, one per entry; before it there is a plain list of names.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import ZERO_UUID, Bool, Int8, Int16, Int32, Message, String, Uuid, V


class CreatableReplicaAssignment(Message):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Message):
    name: String = ""
    value: String | None = ""


class CreatableTopic(Message):
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.CREATE_TOPICS

    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: Annotated[Bool, V("1+")] = False


class CreatableTopicConfigs(Message):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Message):
    name: String = ""
    topic_id: Annotated[Uuid, V("7+")] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, V("1+")] = None
    topic_config_error_code: Annotated[Int16, V("5+", tag=0)] = 0
    num_partitions: Annotated[Int32, V("5+")] = -1
    replication_factor: Annotated[Int16, V("5+")] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, V("5+")] = []


class CreateTopicsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.CREATE_TOPICS

    throttle_time_ms: Annotated[Int32, V("2+")] = 0
    topics: list[CreatableTopicResult] = []


class DeleteTopicState(Message):
    name: String | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DELETE_TOPICS

    topics: Annotated[list[DeleteTopicState], V("6+")] = []
    topic_names: Annotated[list[String], V("0-5")] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    name: Annotated[String | None, V("0+", nullable="6+")] = ""
    topic_id: Annotated[Uuid, V("6+")] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, V("5+")] = None


class DeleteTopicsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DELETE_TOPICS

    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    responses: list[DeletableTopicResult] = []


class CreatePartitionsAssignment(Message):
    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Message):
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []


class CreatePartitionsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.CREATE_PARTITIONS

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message):
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class CreatePartitionsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.CREATE_PARTITIONS

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []
