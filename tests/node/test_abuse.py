"""Bad clients against a real node: it stays up, answers good ones, and grows by a bounded amount."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from chronik.client.cluster import Cluster
from chronik.client.connection import Connection
from chronik.protocol.api import APIS, ApiKey, request_class
from chronik.protocol.codec import decode_response, encode_request
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chronik.protocol.messages.metadata import MetadataRequest
from harness.node_process import NodeProcess
from oracles.random_messages import MessageGenerator

ANSWER_DEADLINE_S = 15.0
SEED = 20260101
DANGEROUS = {ApiKey.UNREGISTER_BROKER, ApiKey.UPDATE_FEATURES, ApiKey.ADMINISTER}
"""Random but valid requests to these change the cluster as they were asked to; they are tested by name elsewhere."""
GROWTH_LIMIT_MB = 120


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path, settings={"auto.create.topics.enable": "false"}).start()
    yield made
    made.close()


def connect(node: NodeProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.kafka_port), timeout=ANSWER_DEADLINE_S)


def receive_frame(connection: socket.socket) -> bytes | None:
    """The next frame, or None when the node has closed the connection."""
    data = b""
    size: int | None = None
    while size is None or len(data) < size + 4:
        try:
            chunk = connection.recv(1 << 20)
        except ConnectionResetError:
            return None
        if not chunk:
            return None
        data += chunk
        if size is None and len(data) >= 4:
            size = struct.unpack(">i", data[:4])[0]
    return data[4:]


def resident_mb(node: NodeProcess) -> int:
    status = Path(f"/proc/{node.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def assert_serves(node: NodeProcess) -> None:
    with Cluster(node.bootstrap) as cluster:
        assert list(cluster.refresh().brokers) == [1]


def advertised(node: NodeProcess) -> dict[int, tuple[int, int]]:
    with connect(node) as connection:
        connection.sendall(b"".join(encode_request(ApiVersionsRequest(), 0, 1, "test")))
        frame = receive_frame(connection)
        assert frame is not None
        _, response = decode_response(ApiVersionsResponse, 0, memoryview(frame))
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def test_random_requests_of_every_api_and_version_get_an_answer_with_their_correlation_id(victim: NodeProcess) -> None:
    before = resident_mb(victim)
    asked = 0
    for key, (lowest, newest) in sorted(advertised(victim).items()):
        if key in DANGEROUS:
            continue
        for version in range(lowest, newest + 1):
            generator = MessageGenerator((SEED, key, version), tame=True)
            message = generator.message(request_class(key), version)
            if hasattr(message, "acks"):
                message.acks = 1
            if hasattr(message, "max_wait_ms"):
                message.max_wait_ms = 10
            if hasattr(message, "timeout_ms"):
                message.timeout_ms = 100
            correlation = key * 100 + version
            with connect(victim) as connection:
                connection.sendall(b"".join(bytes(p) for p in encode_request(message, version, correlation, "fuzz")))
                frame = receive_frame(connection)
            name = f"{APIS[key].name} v{version}"
            assert frame is not None, f"{name}: the connection was closed instead of answered\n{message}"
            assert struct.unpack(">i", frame[:4])[0] == correlation, name
            asked += 1
    assert asked > 100
    assert_serves(victim)
    assert resident_mb(victim) - before < GROWTH_LIMIT_MB


def test_mutated_requests_never_hang_or_crash_the_node(victim: NodeProcess) -> None:
    chance = random.Random(SEED)
    served = {key: versions for key, versions in advertised(victim).items() if key not in DANGEROUS}
    before = resident_mb(victim)
    for number in range(400):
        key = chance.choice(sorted(served))
        version = chance.randint(*served[key])
        message = MessageGenerator((SEED, number), tame=True).message(request_class(key), version)
        frame = bytearray(b"".join(bytes(part) for part in encode_request(message, version, number, "fuzz")))
        for _ in range(chance.randint(1, 8)):
            frame[chance.randrange(12, len(frame)) if len(frame) > 12 else 8] = chance.randrange(256)
        with connect(victim) as connection:
            # A second, good request: answered, or the connection is closed because of the first.
            with suppress(OSError):
                connection.sendall(bytes(frame) + b"".join(encode_request(ApiVersionsRequest(), 0, -7, "fuzz")))
                connection.shutdown(socket.SHUT_WR)
            while (answer := receive_frame(connection)) is not None:
                assert struct.unpack(">i", answer[:4])[0] in (number, -7)
    assert victim.running
    assert_serves(victim)
    assert resident_mb(victim) - before < GROWTH_LIMIT_MB


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1, -(2**31)])
def test_an_absurd_length_closes_the_connection(victim: NodeProcess, length: int) -> None:
    with connect(victim) as connection:
        connection.sendall(struct.pack(">i", length) + b"\x00" * 32)
        assert receive_frame(connection) is None
    assert_serves(victim)


def test_an_unknown_api_versions_version_is_answered_in_version_0(victim: NodeProcess) -> None:
    with connect(victim) as connection:
        connection.sendall(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 99, 77, -1))
        frame = receive_frame(connection)
        assert frame is not None
        correlation, response = decode_response(ApiVersionsResponse, 0, memoryview(frame))
    assert (correlation, response.error_code) == (77, ErrorCode.UNSUPPORTED_VERSION)
    assert [api.api_key for api in response.api_keys] == [ApiKey.API_VERSIONS]


def test_a_slow_request_holds_back_a_fast_one_behind_it(node: NodeProcess, topic: str) -> None:
    """Responses of one connection come in the order of the requests."""
    with Cluster(node.bootstrap) as cluster:
        topic_id = cluster.topic(topic, auto_create=True).topic_id
        assert topic_id
    slow = FetchRequest(
        replica_id=-1,
        max_wait_ms=700,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])],
    )
    with connect(node) as connection:
        started = time.monotonic()
        connection.sendall(b"".join(encode_request(slow, 11, 1, "test")))
        connection.sendall(b"".join(encode_request(MetadataRequest(topics=[]), 9, 2, "test")))
        first, second = receive_frames(connection, 2)
        assert time.monotonic() - started >= 0.6
    assert [struct.unpack(">i", frame[:4])[0] for frame in (first, second)] == [1, 2]


def receive_frames(connection: socket.socket, count: int) -> list[bytes]:
    data = b""
    frames: list[bytes] = []
    while len(frames) < count:
        while len(data) >= 4 and len(data) >= 4 + struct.unpack(">i", data[:4])[0]:
            size = struct.unpack(">i", data[:4])[0]
            frames.append(data[4 : 4 + size])
            data = data[4 + size :]
        if len(frames) < count:
            chunk = connection.recv(1 << 20)
            assert chunk, "the node closed the connection"
            data += chunk
    return frames


def _idle_connections(victim: NodeProcess, count: int) -> None:
    before = resident_mb(victim)
    with ExitStack() as open_connections:
        for number in range(count):
            connection = open_connections.enter_context(connect(victim))
            if number % 2:
                connection.sendall(struct.pack(">ih", 1000, 0))  # half a frame, for ever
        assert_serves(victim)
        assert resident_mb(victim) - before < GROWTH_LIMIT_MB
        good = Connection("127.0.0.1", victim.kafka_port)
        for _ in range(20):
            good.call(ApiVersionsRequest(), ApiVersionsResponse)
        good.close()


def test_a_thousand_idle_and_stalled_connections_cost_little(victim: NodeProcess) -> None:
    _idle_connections(victim, 1000)


@pytest.mark.long
def test_ten_thousand_idle_and_stalled_connections_cost_little(victim: NodeProcess) -> None:
    _idle_connections(victim, 10_000)


def test_a_thousand_connects_and_disconnects_leave_nothing_behind(victim: NodeProcess) -> None:
    descriptors = Path(f"/proc/{victim.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(1000):
        connect(victim).close()
    assert_serves(victim)
    deadline = time.monotonic() + ANSWER_DEADLINE_S
    while len(list(descriptors.iterdir())) > before + 5:
        assert time.monotonic() < deadline, "descriptors of closed connections are kept"
    assert victim.running
