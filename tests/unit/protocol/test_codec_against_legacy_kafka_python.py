"""The versions that today's libraries have dropped, against kafka-python 2.0.2, which still speaks them."""

from collections.abc import Iterator

import pytest

from chronik.protocol import codec
from chronik.protocol.api import ApiKey
from oracles import kafka_python_oracle, kio_oracle
from oracles.legacy_oracle import LegacyOracle, values_of
from oracles.random_messages import MessageGenerator, every_message

EXAMPLES = 4

MISTAKES_OF_2_0_2 = {
    ("CreatePartitionsRequest", 0),  # groups two fields into a struct of its own: same bytes, another shape
    ("CreatePartitionsRequest", 1),
    ("DescribeConfigsResponse", 1),
    ("DescribeGroupsResponse", 3),
    ("FetchRequest", 7),  # cannot encode its forgotten topics
    ("FetchRequest", 8),
    ("FetchRequest", 9),
    ("FetchRequest", 10),
    ("FetchRequest", 11),
    ("FindCoordinatorResponse", 1),
    ("ListOffsetsRequest", 4),
    ("ListOffsetsRequest", 5),
    ("ProduceResponse", 8),
}
"""Known to differ from Kafka in 2.0.2; kio has all of these versions and decides."""

CLASSES = {cls.__name__: cls for _, cls in every_message()}


@pytest.fixture(scope="module")
def oracle() -> Iterator[LegacyOracle]:
    child = LegacyOracle()
    yield child
    child.close()


def test_old_versions_are_what_kafka_python_2_0_2_reads_and_writes(oracle: LegacyOracle) -> None:
    checked = 0
    for name, version in oracle.messages():
        if name not in CLASSES or (name, version) in MISTAKES_OF_2_0_2:
            continue
        generator = MessageGenerator((name, version), tame=False)
        for _ in range(EXAMPLES):
            message = generator.message(CLASSES[name], version)
            data = codec.encode(message, version)
            assert oracle.encode(message, version) == data, f"{name} v{version}"
            assert oracle.decode(name, version, data) == values_of(message, version), f"{name} v{version}"
            assert codec.decode(CLASSES[name], version, data) == message
            checked += 1
    assert checked > 550


def test_every_version_is_checked_by_an_independent_codec(oracle: LegacyOracle) -> None:
    legacy = set(oracle.messages()) - MISTAKES_OF_2_0_2
    unchecked = [
        f"{cls.__name__} v{version}"
        for api, cls in every_message()
        for version in range(api.min_version, api.max_version + 1)
        if api.key is not ApiKey.ADMINISTER  # Chronik's own: nobody else has a codec for it
        and kio_oracle.kio_class(api.key, "request", version) is None
        and (cls.__name__, version) not in legacy
        and kafka_python_oracle.message_class(cls.__name__, version) is None
    ]
    assert unchecked == []


def test_every_mistake_of_2_0_2_is_a_version_that_kio_has() -> None:
    keys = {cls.__name__: api.key for api, cls in every_message()}
    for name, version in MISTAKES_OF_2_0_2:
        assert kio_oracle.kio_class(keys[name], "request", version) is not None


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("name", ["ProduceRequest", "ProduceResponse"])
def test_the_oldest_produce_is_in_the_oracle(oracle: LegacyOracle, name: str, version: int) -> None:
    assert (name, version) in oracle.messages()


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("FetchRequest", 3),
        ("FetchResponse", 0),
        ("ListOffsetsRequest", 0),
        ("ListOffsetsResponse", 0),
        ("CreateTopicsRequest", 0),
        ("CreateTopicsResponse", 1),
        ("OffsetCommitRequest", 1),
        ("OffsetFetchRequest", 0),
        ("DescribeConfigsResponse", 0),
        ("DeleteTopicsResponse", 0),
    ],
)
def test_versions_that_kafka_4_dropped_are_in_the_oracle(oracle: LegacyOracle, name: str, version: int) -> None:
    assert (name, version) in oracle.messages()
