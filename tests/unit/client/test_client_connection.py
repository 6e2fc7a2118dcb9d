"""One connection: negotiation, frames, limits and what it says when something is wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from chronik.client import Connection, ConnectionFailed, ConnectionSettings, RequestTimedOut, UnsupportedByBroker
from chronik.protocol.api import APIS, ApiKey
from chronik.protocol.codec import encode_response
from chronik.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from harness.fake_cluster import FakeCluster
from harness.ports import free_port

SHORT = ConnectionSettings(connect_timeout_s=1.0, request_timeout_s=0.3)


def connect(fake: FakeCluster) -> Connection:
    return Connection("127.0.0.1", fake.nodes[1].port, SHORT)


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that hands its one connection to `serve`, on a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            wire, _ = server.accept()
            with wire:
                serve(wire)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5)


def answer_versions(wire: socket.socket, correlation_id: int = 1) -> None:
    wire.recv(65536)
    keys = [ApiVersion(api_key=api.key, min_version=0, max_version=api.max_version) for api in APIS.values()]
    version = APIS[ApiKey.API_VERSIONS].max_version
    wire.sendall(b"".join(encode_response(ApiVersionsResponse(api_keys=keys), version, correlation_id)))


def test_the_newest_version_that_both_sides_speak_is_used(fake: FakeCluster) -> None:
    fake.offer(ApiKey.METADATA, 0, 9)
    with connect(fake) as connection:
        assert connection.version_of(ApiKey.METADATA) == 9
        assert connection.version_of(ApiKey.METADATA, newest=4) == 4
        connection.call(MetadataRequest(topics=[]), MetadataResponse)
    assert fake.versions_used(ApiKey.METADATA) == {9}


@pytest.mark.parametrize("newest", [0, 2, 3])
def test_a_broker_that_does_not_know_our_first_question_is_asked_again_in_its_own_version(
    fake: FakeCluster, newest: int
) -> None:
    fake.offer(ApiKey.API_VERSIONS, 0, newest)
    with connect(fake) as connection:
        assert connection.version_of(ApiKey.API_VERSIONS) == newest
        assert connection.call(MetadataRequest(topics=[]), MetadataResponse).cluster_id == "fake"


def test_an_api_that_is_not_offered_or_too_new_is_named(fake: FakeCluster) -> None:
    del fake.offered[ApiKey.DESCRIBE_QUORUM]
    fake.offer(ApiKey.FETCH, 30, 31)
    with connect(fake) as connection:
        assert not connection.offers(ApiKey.DESCRIBE_QUORUM)
        with pytest.raises(UnsupportedByBroker, match="DescribeQuorum"):
            connection.version_of(ApiKey.DESCRIBE_QUORUM)
        with pytest.raises(UnsupportedByBroker, match="v30 to v31"):
            connection.version_of(ApiKey.FETCH)


def test_requests_sent_ahead_are_answered_in_order(fake: FakeCluster) -> None:
    fake.create("a")
    fake.create("b")
    with connect(fake) as connection:
        for name in ("a", "b", "a"):
            connection.send(MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
        assert connection.in_flight == 3
        names = [connection.receive(MetadataResponse).topics[0].name for _ in range(3)]
        assert names == ["a", "b", "a"]
        assert connection.in_flight == 0


def test_a_call_in_the_middle_of_unanswered_requests_is_refused(fake: FakeCluster) -> None:
    with connect(fake) as connection:
        connection.send(MetadataRequest(topics=[]))
        with pytest.raises(ConnectionFailed, match="not received"):
            connection.call(MetadataRequest(topics=[]), MetadataResponse)


def test_the_number_of_requests_under_way_is_limited(fake: FakeCluster) -> None:
    with Connection("127.0.0.1", fake.nodes[1].port, ConnectionSettings(max_in_flight=2)) as connection:
        connection.send(MetadataRequest(topics=[]))
        connection.send(MetadataRequest(topics=[]))
        with pytest.raises(ConnectionFailed, match="receive some first"):
            connection.send(MetadataRequest(topics=[]))


def test_a_refused_connection_says_where_to() -> None:
    port = free_port()
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}"):
        Connection("127.0.0.1", port, SHORT)


def test_a_connection_closed_by_the_broker_is_closed_here_too(fake: FakeCluster) -> None:
    fake.hang_up(ApiKey.METADATA)
    with connect(fake) as connection:
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert connection.closed
        with pytest.raises(ConnectionFailed, match="is closed"):
            connection.send(MetadataRequest(topics=[]))


def test_a_silent_broker_times_out_and_the_connection_is_given_up() -> None:
    done = threading.Event()

    def serve(wire: socket.socket) -> None:
        answer_versions(wire)
        done.wait(5)

    with listener(serve) as port:
        connection = Connection("127.0.0.1", port, SHORT)
        with pytest.raises(RequestTimedOut, match=r"0\.3 s"):
            connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert connection.closed
        done.set()


def test_half_an_answer_times_out_as_well() -> None:
    done = threading.Event()

    def serve(wire: socket.socket) -> None:
        answer_versions(wire)
        wire.recv(65536)
        wire.sendall(b"\x00\x00\x00\x20\x00\x00")
        done.wait(5)

    with listener(serve) as port:
        connection = Connection("127.0.0.1", port, SHORT)
        with pytest.raises(RequestTimedOut):
            connection.call(MetadataRequest(topics=[]), MetadataResponse)
        done.set()


@pytest.mark.parametrize("prefix", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"HTTP"])
def test_an_absurd_frame_length_is_refused_before_anything_is_allocated(prefix: bytes) -> None:
    with listener(lambda wire: wire.sendall(prefix + b"/1.1 400 Bad Request")) as port:
        with pytest.raises(ConnectionFailed, match="frame of"):
            Connection("127.0.0.1", port, SHORT)


def test_an_answer_to_another_request_is_refused() -> None:
    def serve(wire: socket.socket) -> None:
        answer_versions(wire)
        wire.recv(65536)
        version = APIS[ApiKey.METADATA].max_version
        wire.sendall(b"".join(encode_response(MetadataResponse(), version, 99)))

    with listener(serve) as port:
        connection = Connection("127.0.0.1", port, SHORT)
        with pytest.raises(ConnectionFailed, match="99"):
            connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert connection.closed


def test_an_answer_that_does_not_decode_is_refused() -> None:
    def serve(wire: socket.socket) -> None:
        answer_versions(wire)
        wire.recv(65536)
        wire.sendall(b"\x00\x00\x00\x08\x00\x00\x00\x02\x00\xff\xff\xff")

    with listener(serve) as port:
        connection = Connection("127.0.0.1", port, SHORT)
        with pytest.raises(ConnectionFailed, match="do not decode"):
            connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert connection.closed
