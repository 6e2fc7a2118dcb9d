"""ApiVersions: versions 0 to 4.

The first request of most clients. Its response has the oldest header for ever (see `codec`), and a request in a version
we do not know is answered in version 0.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bool, Int16, Int32, Int64, Message, String, V


class ApiVersionsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.API_VERSIONS

    client_software_name: Annotated[String, V("3+")] = ""
    client_software_version: Annotated[String, V("3+")] = ""


class ApiVersion(Message):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message):
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Message):
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.API_VERSIONS

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    supported_features: Annotated[list[SupportedFeatureKey], V("3+", tag=0)] = []
    finalized_features_epoch: Annotated[Int64, V("3+", tag=1)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], V("3+", tag=2)] = []
    zk_migration_ready: Annotated[Bool, V("3+", tag=3)] = False
