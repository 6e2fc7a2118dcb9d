"""Every Kafka client from PyPI against one real node: discover, administer, write, read."""

from __future__ import annotations

import itertools

import pytest

from harness.clients.message import CODECS, Client, Message
from harness.clients.registry import CLIENTS
from harness.waiting import eventually

TIMESTAMP = 1_700_000_000_000


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


@pytest.fixture
def admin(client: Client, clients: dict[str, Client]) -> Client:
    """Who makes topics for the client: itself, where its version can."""
    return client if client.can_create else clients["confluent-kafka"]


def test_a_client_sees_the_broker_and_the_controller(client: Client) -> None:
    assert client.brokers() == ([1], 1)


def test_a_client_creates_describes_alters_and_deletes_a_topic(client: Client, admin: Client, topic: str) -> None:
    admin.create_topic(topic, 3, 1, {"retention.ms": "3600000"})
    assert topic in client.topics()
    assert client.partitions(topic) == [0, 1, 2]
    if client.can_alter:
        assert client.config(topic, "retention.ms") == "3600000"
        client.alter_config(topic, "retention.ms", "7200000")
        assert client.config(topic, "retention.ms") == "7200000"
    admin.delete_topic(topic)
    eventually(lambda: topic not in client.topics(), "the topic is gone")


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_a_client_writes_it_reads_back(client: Client, admin: Client, topic: str, partitions: int) -> None:
    admin.create_topic(topic, partitions, 1, {})
    for partition in range(partitions):
        sent = [
            Message(
                f"value-{partition}-{number}".encode(),
                f"key-{number}".encode(),
                (("trace", b"\x00\xff"), ("n", str(number).encode())) if client.has_headers else (),
                TIMESTAMP + number if client.has_timestamps else None,
            )
            for number in range(200)
        ]
        offsets = client.produce(topic, partition, sent, "none")
        assert offsets == list(range(200))
        assert client.end_offset(topic, partition) == 200
        received = client.consume(topic, partition, 0, 200)
        assert received == sent
        assert [message.offset for message in received] == list(range(200))


def test_null_values_and_empty_values_stay_apart(client: Client, admin: Client, topic: str) -> None:
    admin.create_topic(topic, 1, 1, {})
    sent = [Message(b"", b"empty", (), TIMESTAMP), Message(None, b"null", (), TIMESTAMP)]
    client.produce(topic, 0, sent, "none")
    assert [message.value for message in client.consume(topic, 0, 0, 2)] == [b"", None]


def test_a_megabyte_message_survives(client: Client, admin: Client, topic: str) -> None:
    admin.create_topic(topic, 1, 1, {"max.message.bytes": str(2 * 1024 * 1024)})
    value = bytes(range(256)) * 4096
    client.produce(topic, 0, [Message(value, b"big", (), TIMESTAMP)], "none")
    assert client.consume(topic, 0, 0, 1)[0].value == value


def test_a_read_from_the_middle_starts_there(client: Client, admin: Client, topic: str) -> None:
    admin.create_topic(topic, 1, 1, {})
    client.produce(topic, 0, [Message(str(number).encode()) for number in range(100)], "none")
    received = client.consume(topic, 0, 57, 43)
    assert [message.offset for message in received] == list(range(57, 100))


def _pairs() -> list[tuple[str, str, str]]:
    """Each writer with each reader, and each writer and each reader with each codec, in few runs."""
    return [
        (writer, reader, CODECS[(row + column) % len(CODECS)])
        for (row, writer), (column, reader) in itertools.product(enumerate(CLIENTS), enumerate(CLIENTS))
    ]


@pytest.mark.parametrize(("writer", "reader", "codec"), _pairs())
def test_what_one_client_writes_another_reads(
    clients: dict[str, Client], topic: str, writer: str, reader: str, codec: str
) -> None:
    source, sink = clients[writer], clients[reader]
    if codec not in source.codecs or codec not in sink.codecs:
        codec = "lz4"
    (source if source.can_create else clients["confluent-kafka"]).create_topic(topic, 1, 1, {})
    sent = [Message(f"{codec}-{number}".encode() * 10, f"k{number}".encode()) for number in range(300)]
    assert source.produce(topic, 0, sent, codec) == list(range(300))
    received = sink.consume(topic, 0, 0, 300)
    assert [(message.key, message.value) for message in received] == [(message.key, message.value) for message in sent]
