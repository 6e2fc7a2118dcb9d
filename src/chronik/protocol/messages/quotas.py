"""DescribeClientQuotas and AlterClientQuotas: versions 0 to 1."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bool, Float64, Int8, Int16, Int32, Message, String


class QuotaFilterComponent(Message):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = ""


class DescribeClientQuotasRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLIENT_QUOTAS

    components: list[QuotaFilterComponent] = []
    strict: Bool = False


class DescribedQuotaEntity(Message):
    entity_type: String = ""
    entity_name: String | None = ""


class DescribedQuotaValue(Message):
    key: String = ""
    value: Float64 = 0.0


class DescribedQuotaEntry(Message):
    entity: list[DescribedQuotaEntity] = []
    values: list[DescribedQuotaValue] = []


class DescribeClientQuotasResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLIENT_QUOTAS

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    entries: list[DescribedQuotaEntry] | None = []


class AlterQuotaEntity(Message):
    entity_type: String = ""
    entity_name: String | None = ""


class AlterQuotaOperation(Message):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class AlterQuotaEntry(Message):
    entity: list[AlterQuotaEntity] = []
    ops: list[AlterQuotaOperation] = []


class AlterClientQuotasRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.ALTER_CLIENT_QUOTAS

    entries: list[AlterQuotaEntry] = []
    validate_only: Bool = False


class AlteredQuotaEntity(Message):
    entity_type: String = ""
    entity_name: String | None = ""


class AlteredQuotaEntry(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    entity: list[AlteredQuotaEntity] = []


class AlterClientQuotasResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.ALTER_CLIENT_QUOTAS

    throttle_time_ms: Int32 = 0
    entries: list[AlteredQuotaEntry] = []
