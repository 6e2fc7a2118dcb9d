"""Every API and version that kio has: our bytes are kio's bytes, in both directions, for random contents."""

from random import Random

import pytest
from oracles import kio_oracle
from oracles.random_messages import MessageGenerator, every_message

from chronik.protocol import codec
from chronik.protocol.api import APIS
from chronik.protocol.messages import internal_consumer_protocol
from chronik.protocol.wire import Message

EXAMPLES = 5


def _kind(cls: type[Message]) -> str:
    return "request" if cls.__name__.endswith("Request") else "response"


CASES = [
    pytest.param(cls, version, api.key, id=f"{cls.__name__}-v{version}")
    for api, cls in every_message()
    for version in range(api.min_version, api.max_version + 1)
    if kio_oracle.kio_class(api.key, _kind(cls), version) is not None
]


@pytest.mark.parametrize(("cls", "version", "key"), CASES)
def test_what_we_encode_is_what_kio_reads_and_writes(cls: type[Message], version: int, key: int) -> None:
    oracle = kio_oracle.kio_class(key, _kind(cls), version)
    generator = MessageGenerator((cls.__name__, version), tame=True)
    for _ in range(EXAMPLES):
        message = generator.message(cls, version)
        data = codec.encode(message, version)
        assert kio_oracle.encode(kio_oracle.decode(oracle, data)) == data


@pytest.mark.parametrize(("cls", "version", "key"), CASES)
def test_what_kio_encodes_we_read_and_write_back_the_same(cls: type[Message], version: int, key: int) -> None:
    oracle = kio_oracle.kio_class(key, _kind(cls), version)
    random = Random(f"{cls.__name__} v{version}")
    for _ in range(EXAMPLES):
        data = kio_oracle.encode(kio_oracle.random_entity(oracle, random))
        assert codec.encode(codec.decode(cls, version, data), version) == data


def test_kio_knows_the_newest_version_of_every_api_we_know() -> None:
    """So that a version beyond Kafka's, or an API that nobody checks, does not slip in."""
    unknown = [api.name for api in APIS.values() if kio_oracle.kio_class(api.key, "request", api.max_version) is None]
    assert unknown == []
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
