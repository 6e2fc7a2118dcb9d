"""Every message that kafka-python 3 has, from version 0 on: the same bytes and the same values, in both directions."""

from collections.abc import Iterator
from typing import Any

import pytest

from chronik.protocol import codec
from chronik.protocol.api import Api
from chronik.protocol.messages.api_versions import ApiVersionsResponse
from chronik.protocol.wire import Message
from oracles import kafka_python_oracle
from oracles.random_messages import MessageGenerator, every_message

EXAMPLES = 2

MESSAGES = [
    pytest.param(api, cls, id=cls.__name__)
    for api, cls in every_message()
    if kafka_python_oracle.message_class(cls.__name__, api.min_version) is not None
]


def _versions(api: Api, cls: type[Message]) -> Iterator[tuple[int, Any]]:
    """The versions kafka-python has, with its class for each."""
    for version in range(api.min_version, api.max_version + 1):
        oracle = kafka_python_oracle.message_class(cls.__name__, version)
        if oracle is not None:
            yield version, oracle


@pytest.mark.parametrize(("api", "cls"), MESSAGES)
def test_what_we_encode_kafka_python_reads_and_writes_back_the_same(api: Api, cls: type[Message]) -> None:
    for version, oracle in _versions(api, cls):
        generator = MessageGenerator((cls.__name__, version), tame=False)
        for _ in range(EXAMPLES):
            message = generator.message(cls, version)
            if isinstance(message, ApiVersionsResponse):
                message.error_code = 0  # kafka-python reads any other answer as version 0, as a client must
            data = codec.encode(message, version)
            theirs = kafka_python_oracle.decode(oracle, version, data)
            assert kafka_python_oracle.encode(theirs, version) == data, f"version {version}"


@pytest.mark.parametrize(("api", "cls"), MESSAGES)
def test_what_kafka_python_encodes_we_read_with_the_same_values(api: Api, cls: type[Message]) -> None:
    for version, oracle in _versions(api, cls):
        generator = MessageGenerator((cls.__name__, version, "values"), tame=False)
        for _ in range(EXAMPLES):
            message = generator.message(cls, version)
            data = kafka_python_oracle.encode(kafka_python_oracle.from_ours(oracle, version, message), version)
            assert codec.decode(cls, version, data) == message, f"version {version}"
