"""DescribeUserScramCredentials and AlterUserScramCredentials: version 0."""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import ClassVar

from chronik.protocol.api import ApiKey
from chronik.protocol.wire import Bytes, Int8, Int16, Int32, Message, String


class UserName(Message):
    name: String = ""


class DescribeUserScramCredentialsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS

    users: list[UserName] | None = []


class CredentialInfo(Message):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribedScramUser(Message):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
    credential_infos: list[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: list[DescribedScramUser] = []


class ScramCredentialDeletion(Message):
    name: String = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Message):
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(Message):
    API: ClassVar[ApiKey] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS

    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


class AlteredScramUser(Message):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class AlterUserScramCredentialsResponse(Message):
    API: ClassVar[ApiKey] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS

    throttle_time_ms: Int32 = 0
    results: list[AlteredScramUser] = []
