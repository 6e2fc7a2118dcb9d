"""The Kafka APIs this project has message definitions for: keys, versions, and where their messages are declared.

This is the one place that says which versions exist and from which version an API is flexible (compact lengths and
tagged fields). Which of them a broker *serves* is the broker's business. Message modules are imported on first use, so
that importing this module stays cheap.
"""

from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from chronik.protocol.wire import Message


class ApiKey(IntEnum):
    """Numbers of the APIs on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADMINISTER = 30_000  # Chronik's own


class Api(NamedTuple):
    """One API: its messages are `<name>Request` and `<name>Response` in `messages/<module>.py`."""

    key: ApiKey
    name: str
    module: str
    min_version: int
    max_version: int
    flexible_from: int

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


NEVER_FLEXIBLE = 0x7FFF

_TABLE = (
    (ApiKey.PRODUCE, "Produce", "produce", 0, 13, 9),
    (ApiKey.FETCH, "Fetch", "fetch", 0, 18, 12),
    (ApiKey.LIST_OFFSETS, "ListOffsets", "list_offsets", 0, 11, 6),
    (ApiKey.METADATA, "Metadata", "metadata", 0, 13, 9),
    (ApiKey.OFFSET_COMMIT, "OffsetCommit", "group_offsets", 0, 10, 8),
    (ApiKey.OFFSET_FETCH, "OffsetFetch", "group_offsets", 0, 10, 6),
    (ApiKey.FIND_COORDINATOR, "FindCoordinator", "coordinators", 0, 6, 3),
    (ApiKey.JOIN_GROUP, "JoinGroup", "group_membership", 0, 9, 6),
    (ApiKey.HEARTBEAT, "Heartbeat", "group_membership", 0, 4, 4),
    (ApiKey.LEAVE_GROUP, "LeaveGroup", "group_membership", 0, 5, 4),
    (ApiKey.SYNC_GROUP, "SyncGroup", "group_membership", 0, 5, 4),
    (ApiKey.DESCRIBE_GROUPS, "DescribeGroups", "group_admin", 0, 6, 5),
    (ApiKey.LIST_GROUPS, "ListGroups", "group_admin", 0, 5, 3),
    (ApiKey.API_VERSIONS, "ApiVersions", "api_versions", 0, 4, 3),
    (ApiKey.CREATE_TOPICS, "CreateTopics", "topics", 0, 7, 5),
    (ApiKey.DELETE_TOPICS, "DeleteTopics", "topics", 0, 6, 4),
    (ApiKey.DELETE_RECORDS, "DeleteRecords", "delete_records", 0, 2, 2),
    (ApiKey.INIT_PRODUCER_ID, "InitProducerId", "producers", 0, 6, 2),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", "leader_epochs", 0, 4, 4),
    (ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", "transactions", 0, 5, 3),
    (ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", "transactions", 0, 4, 3),
    (ApiKey.END_TXN, "EndTxn", "transactions", 0, 5, 3),
    (ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", "transactions", 0, 2, 1),
    (ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", "transactions", 0, 5, 3),
    (ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", "configs", 0, 4, 4),
    (ApiKey.ALTER_CONFIGS, "AlterConfigs", "configs", 0, 2, 2),
    (ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", "log_dirs", 0, 5, 2),
    (ApiKey.CREATE_PARTITIONS, "CreatePartitions", "topics", 0, 3, 2),
    (ApiKey.DELETE_GROUPS, "DeleteGroups", "group_admin", 0, 2, 2),
    (ApiKey.ELECT_LEADERS, "ElectLeaders", "elections", 0, 2, 2),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", "configs", 0, 1, 1),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", "reassignments", 0, 1, 0),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", "reassignments", 0, 0, 0),
    (ApiKey.OFFSET_DELETE, "OffsetDelete", "group_offsets", 0, 0, NEVER_FLEXIBLE),
    (ApiKey.DESCRIBE_QUORUM, "DescribeQuorum", "quorum", 0, 2, 0),
    (ApiKey.UPDATE_FEATURES, "UpdateFeatures", "cluster", 0, 2, 0),
    (ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", "cluster", 0, 2, 0),
    (ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", "producers", 0, 0, 0),
    (ApiKey.UNREGISTER_BROKER, "UnregisterBroker", "cluster", 0, 0, 0),
    (ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", "transaction_admin", 0, 0, 0),
    (ApiKey.LIST_TRANSACTIONS, "ListTransactions", "transaction_admin", 0, 2, 0),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", "consumer_groups", 0, 1, 0),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", "consumer_groups", 0, 1, 0),
    (ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources", "configs", 0, 1, 0),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", "topic_partitions", 0, 0, 0),
    (ApiKey.ADMINISTER, "Administer", "administer", 0, 0, 0),
)

APIS: dict[int, Api] = {row[0]: Api(*row) for row in _TABLE}
"""Every API by its key. Plain ints find their entry too."""


def request_class(key: int) -> "type[Message]":
    """The class of an API's request; `KeyError` for an unknown key."""
    return _message_class(APIS[key], "Request")


def response_class(key: int) -> "type[Message]":
    """The class of an API's response; `KeyError` for an unknown key."""
    return _message_class(APIS[key], "Response")


def _message_class(api: Api, kind: str) -> "type[Message]":
    module = import_module(f"chronik.protocol.messages.{api.module}")
    return cast("type[Message]", getattr(module, api.name + kind))
