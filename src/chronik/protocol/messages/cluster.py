"""UpdateFeatures (versions 0 to 2), DescribeCluster (0 to 2), UnregisterBroker (0)."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bool, Int8, Int16, Int32, Message, String, V


class FeatureUpdateKey(Message):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, V("0")] = False
    upgrade_type: Annotated[Int8, V("1+")] = 1


class UpdateFeaturesRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.UPDATE_FEATURES

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[Bool, V("1+")] = False


class UpdatableFeatureResult(Message):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class UpdateFeaturesResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.UPDATE_FEATURES

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: Annotated[list[UpdatableFeatureResult], V("0-1")] = []


class DescribeClusterRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLUSTER

    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, V("1+")] = 1
    include_fenced_brokers: Annotated[Bool, V("2+")] = False


class DescribeClusterBroker(Message):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Annotated[Bool, V("2+")] = False


class DescribeClusterResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLUSTER

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, V("1+")] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = -2147483648


class UnregisterBrokerRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.UNREGISTER_BROKER

    broker_id: Int32 = 0


class UnregisterBrokerResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.UNREGISTER_BROKER

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
