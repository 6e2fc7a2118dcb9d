"""Every API and version that kio has: our bytes are kio's bytes, in both directions, for random contents."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from chronik.protocol import codec
from chronik.protocol.api import APIS, Api
from chronik.protocol.messages import internal_consumer_protocol
from chronik.protocol.wire import Message
from oracles import kio_oracle
from oracles.random_messages import MessageGenerator, every_message

EXAMPLES = 5


def _kind(cls: type[Message]) -> str:
    return "request" if cls.__name__.endswith("Request") else "response"


MESSAGES = [pytest.param(api, cls, id=cls.__name__) for api, cls in every_message()]


def _versions(api: Api, cls: type[Message]) -> Iterator[tuple[int, Any]]:
    """The versions kio has, with its class for each."""
    for version in range(api.min_version, api.max_version + 1):
        oracle = kio_oracle.kio_class(api.key, _kind(cls), version)
        if oracle is not None:
            yield version, oracle


@pytest.mark.parametrize(("api", "cls"), MESSAGES)
def test_what_we_encode_is_what_kio_reads_and_writes(api: Api, cls: type[Message]) -> None:
    for version, oracle in _versions(api, cls):
        generator = MessageGenerator((cls.__name__, version), tame=True)
        for _ in range(EXAMPLES):
            data = codec.encode(generator.message(cls, version), version)
            assert kio_oracle.encode(kio_oracle.decode(oracle, data)) == data, f"version {version}"


@pytest.mark.parametrize(("api", "cls"), MESSAGES)
def test_what_kio_encodes_we_read_and_write_back_the_same(api: Api, cls: type[Message]) -> None:
    for version, oracle in _versions(api, cls):
        random = Random(f"{cls.__name__} v{version}")
        for _ in range(EXAMPLES):
            data = kio_oracle.encode(kio_oracle.random_entity(oracle, random))
            assert codec.encode(codec.decode(cls, version, data), version) == data, f"version {version}"


def test_kio_knows_the_newest_version_of_every_api_we_know() -> None:
    """So that a version beyond Kafka's, or an API that nobody checks, does not slip in."""
    unknown = [api.name for api in APIS.values() if kio_oracle.kio_class(api.key, "request", api.max_version) is None]
    assert unknown == ["Administer"]  # Chronik's own
    beyond = [api.name for api in APIS.values() if kio_oracle.kio_class(api.key, "request", api.max_version + 1)]
    assert beyond == []


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize(
    ("cls", "schema"),
    [
        (internal_consumer_protocol.ConsumerProtocolSubscription, "consumer_protocol_subscription"),
        (internal_consumer_protocol.ConsumerProtocolAssignment, "consumer_protocol_assignment"),
    ],
)
def test_the_consumer_protocol_is_what_kio_reads_and_writes(cls: type[Message], schema: str, version: int) -> None:
    oracle = kio_oracle.kio_data_class(schema, cls.__name__, version)
    generator = MessageGenerator((cls.__name__, version), tame=True)
    random = Random(f"{cls.__name__} v{version}")
    for _ in range(EXAMPLES):
        data = codec.encode(generator.message(cls, version), version)
        assert kio_oracle.encode(kio_oracle.decode(oracle, data)) == data
        data = kio_oracle.encode(kio_oracle.random_entity(oracle, random))
        assert codec.encode(codec.decode(cls, version, data), version) == data
