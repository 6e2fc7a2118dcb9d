"""DescribeConfigs (versions 0 to 4), AlterConfigs (0 to 2), IncrementalAlterConfigs and ListConfigResources (0 to 1).

Kafka called ListConfigResources ListClientMetricsResources while it had version 0 only.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bool, Int8, Int16, Int32, Message, String, V


class DescribeConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = []


class DescribeConfigsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CONFIGS

    resources: list[DescribeConfigsResource] = []
    include_synonyms: Annotated[Bool, V("1+")] = False
    include_documentation: Annotated[Bool, V("3+")] = False


class DescribeConfigsSynonym(Message):
    name: String = ""
    value: String | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Message):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Annotated[Int8, V("1+")] = -1
    is_default: Annotated[Bool, V("0")] = False
    is_sensitive: Bool = False
    synonyms: Annotated[list[DescribeConfigsSynonym], V("1+")] = []
    config_type: Annotated[Int8, V("3+")] = 0
    documentation: Annotated[String | None, V("3+")] = None


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CONFIGS

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []


class AlterableConfig(Message):
    name: String = ""
    value: String | None = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.ALTER_CONFIGS

    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.ALTER_CONFIGS

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


class IncrementalConfig(Message):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = ""


class IncrementalConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[IncrementalConfig] = []


class IncrementalAlterConfigsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.INCREMENTAL_ALTER_CONFIGS

    resources: list[IncrementalConfigsResource] = []
    validate_only: Bool = False


class IncrementalAlterConfigsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.INCREMENTAL_ALTER_CONFIGS

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


class ListConfigResourcesRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.LIST_CONFIG_RESOURCES

    resource_types: Annotated[list[Int8], V("1+")] = []


class ConfigResource(Message):
    resource_name: String = ""
    resource_type: Annotated[Int8, V("1+")] = 16


class ListConfigResourcesResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.LIST_CONFIG_RESOURCES

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []
