"""The router answers everything with its correlation id or closes the connection, and never leaves a client hanging."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType

import pytest
import structlog

from chronik.broker.context import PendingResponse, RequestContext
from chronik.broker.table import SERVED_APIS, ServedApi
from chronik.protocol.api import APIS, ApiKey, request_class, response_class
from chronik.protocol.codec import encode, encode_request
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chronik.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from chronik.protocol.messages.metadata import MetadataRequest
from chronik.protocol.messages.produce import ProduceRequest
from unit.broker.serving import KafkaClient, ServedNode
from unit.broker.wire_client import eventually

StartNode = Callable[..., Awaitable[ServedNode]]


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_exactly_what_is_served(node: ServedNode, version: int) -> None:
    client = await node.connect()
    request = ApiVersionsRequest(client_software_name="tests", client_software_version="1.0")
    response: ApiVersionsResponse = await client.ask(request, version)
    assert response.error_code == 0
    assert {key.api_key for key in response.api_keys} == {served.key for served in SERVED_APIS if served.needs is None}
    for key in response.api_keys:
        assert (key.min_version, key.max_version) == (0, APIS[key.api_key].max_version)
    if version >= 3:
        assert {feature.name for feature in response.finalized_features} >= {"group.version", "transaction.version"}


@pytest.mark.parametrize("version", [5, 99, -1, 32767])
async def test_api_versions_at_an_unknown_version_is_answered_in_version_0(node: ServedNode, version: int) -> None:
    client = await node.connect()
    with structlog.testing.capture_logs():
        client.send_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 4711, 1) + b"c\x00\x05names\x00")
        frame = await client.read_frame()
    correlation_id, error, count, key, low, high = struct.unpack(">ihihhh", frame)
    assert (correlation_id, error, count) == (4711, ErrorCode.UNSUPPORTED_VERSION, 1)
    assert (key, low, high) == (ApiKey.API_VERSIONS, 0, 4)
    assert (await client.ask(ApiVersionsRequest(), 0)).error_code == 0


async def test_a_software_name_that_is_none_is_refused(node: ServedNode) -> None:
    client = await node.connect()
    request = ApiVersionsRequest(client_software_name="-bad name-", client_software_version="1")
    assert (await client.ask(request, 3)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("api_key", "version"), [(ApiKey.PRODUCE, 99), (ApiKey.METADATA, -1), (999, 0), (-1, 0), (ApiKey.JOIN_GROUP, 0)]
)
async def test_an_api_or_version_that_is_not_served_closes_the_connection_with_one_line(
    start_node: StartNode, api_key: int, version: int
) -> None:
    node = await start_node(table=tuple(served for served in SERVED_APIS if served.needs is None))
    client = await node.connect()
    with structlog.testing.capture_logs() as lines:
        client.send_frame(struct.pack(">hhih", api_key, version, 1, -1) + b"body")
        assert await client.closed_by_peer()
    (line,) = [line for line in lines if "does not speak" in line["event"]]
    assert (line["api_key"], line["version"]) == (api_key, version)
    assert node.services.metrics.requests_unsupported == 1


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 3, 9, 1, 500),
        struct.pack(">hhih", 3, 9, 1, 1) + b"\xff\x00",
        struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
        struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">ih", 1, 400) + b"short",
        struct.pack(">hhih", 0, 9, 1, -1) + b"\x00" + b"\xff" * 20,
    ],
)
async def test_a_request_that_cannot_be_decoded_closes_the_connection_with_one_line(
    node: ServedNode, frame: bytes
) -> None:
    client = await node.connect()
    with structlog.testing.capture_logs() as lines:
        client.send_frame(frame)
        assert await client.closed_by_peer()
    assert len([line for line in lines if "cannot be decoded" in line["event"]]) == 1
    assert node.services.metrics.requests_malformed == 1


async def test_every_served_api_and_version_answers_an_empty_request_with_its_correlation_id(node: ServedNode) -> None:
    client = await node.connect()
    client.client_id = "everyone"
    for served in SERVED_APIS:
        if served.needs is not None:
            continue
        api = APIS[served.key]
        for version in range(api.min_version, api.max_version + 1):
            request = request_class(served.key)()
            if served.key == ApiKey.PRODUCE:
                request.acks = 1  # type: ignore[attr-defined]
            await client.ask(request, version)
    assert node.services.metrics.handler_failures == 0


async def test_mutated_requests_never_hang_or_harm_the_node(node: ServedNode) -> None:
    await node.create_topic("t")
    dice = random.Random(20_240_229)
    witness = await node.connect()
    with structlog.testing.capture_logs() as lines:
        for served in [served for served in SERVED_APIS if served.needs is None] * 3:
            version = dice.randint(0, APIS[served.key].max_version)
            frame = bytearray(b"".join(encode_request(request_class(served.key)(), version, 7, "fuzz"))[4:])
            for _ in range(dice.randint(1, 4)):
                frame[dice.randrange(8, len(frame))] = dice.randrange(256)
            if dice.random() < 0.3:
                del frame[dice.randrange(8, len(frame)) :]
            client = await node.connect()
            client.send_frame(bytes(frame))
            client.send_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 8, -1))
            answered = []
            try:
                while answered[-1:] != [8]:
                    answered.append(int.from_bytes((await client.read_frame())[:4], "big"))
            except (EOFError, ConnectionError):
                continue  # closed, which is an answer too
            assert answered in ([7, 8], [8]), f"{served} v{version}: {frame.hex()}"
            assert answered == [7, 8] or served.key == ApiKey.PRODUCE, f"{served} v{version}: {frame.hex()}"
    assert [line for line in lines if line["log_level"] == "error"] == []
    assert (await witness.ask(MetadataRequest(topics=[]), 9)).brokers


async def test_a_request_that_fails_as_a_whole_is_counted_under_its_error(node: ServedNode) -> None:
    client = await node.connect()
    await client.ask(ProduceRequest(acks=7), 9)
    assert node.services.metrics.apis[ApiKey.PRODUCE].outcomes == {ErrorCode.INVALID_REQUIRED_ACKS: 1}


# --- handlers of a made-up module behind a real API ------------------------------------------------------------------

DESCRIBE = (ServedApi(ApiKey.DESCRIBE_CLUSTER, "made_up"),)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("chronik.broker.handlers.made_up")
    module.describe_cluster_failed = lambda request, error: DescribeClusterResponse(  # type: ignore[attr-defined]
        error_code=error.code, error_message=error.message
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


async def ask(client: KafkaClient) -> DescribeClusterResponse:
    response: DescribeClusterResponse = await client.ask(DescribeClusterRequest(), 0)
    return response


async def test_a_handler_that_raises_is_answered_in_the_form_of_its_api_and_logged(
    start_node: StartNode, made_up: ModuleType
) -> None:
    def broken(request: object, ctx: RequestContext) -> None:
        raise ZeroDivisionError("a mistake")

    made_up.describe_cluster = broken  # type: ignore[attr-defined]
    node = await start_node(table=DESCRIBE)
    client = await node.connect()
    with structlog.testing.capture_logs() as lines:
        assert (await ask(client)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len([line for line in lines if line["log_level"] == "error"]) == 1
    assert node.services.metrics.apis[ApiKey.DESCRIBE_CLUSTER].outcomes == {ErrorCode.UNKNOWN_SERVER_ERROR: 1}


async def test_a_coroutine_that_raises_is_answered_too(start_node: StartNode, made_up: ModuleType) -> None:
    async def refusing(request: object, ctx: RequestContext) -> None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "not today")

    made_up.describe_cluster = refusing  # type: ignore[attr-defined]
    node = await start_node(table=DESCRIBE)
    response = await ask(await node.connect())
    assert (response.error_code, response.error_message) == (ErrorCode.POLICY_VIOLATION, "not today")


async def test_a_response_that_cannot_be_encoded_becomes_an_error(start_node: StartNode, made_up: ModuleType) -> None:
    made_up.describe_cluster = lambda request, ctx: DescribeClusterResponse(controller_id="one")  # type: ignore[attr-defined,arg-type]
    node = await start_node(table=DESCRIBE)
    with structlog.testing.capture_logs():
        assert (await ask(await node.connect())).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_an_answer_may_come_later_and_even_before_it_is_waited_for(
    start_node: StartNode, made_up: ModuleType
) -> None:
    waiting: list[PendingResponse] = []

    def later(request: object, ctx: RequestContext) -> PendingResponse:
        pending = PendingResponse()
        if ctx.correlation_id == 0:
            pending.finish(DescribeClusterResponse(cluster_id="at once"))
        else:
            waiting.append(pending)
        return pending

    made_up.describe_cluster = later  # type: ignore[attr-defined]
    node = await start_node(table=DESCRIBE)
    client = await node.connect()
    assert (await ask(client)).cluster_id == "at once"
    first, second = client.send(DescribeClusterRequest(), 0), client.send(DescribeClusterRequest(), 0)
    await eventually(lambda: len(waiting) == 2, "both requests start")
    waiting[1].finish(DescribeClusterResponse(cluster_id="second"))
    waiting[0].finish(DescribeClusterResponse(cluster_id="first"))
    waiting[0].finish(DescribeClusterResponse(cluster_id="again, which is ignored"))
    assert (await client.receive(DescribeClusterResponse, 0, first)).cluster_id == "first"
    assert (await client.receive(DescribeClusterResponse, 0, second)).cluster_id == "second"


async def test_a_coordinator_that_is_not_there_keeps_its_apis_unadvertised(start_node: StartNode) -> None:
    table = (ServedApi(ApiKey.API_VERSIONS, "api_versions"), ServedApi(ApiKey.HEARTBEAT, "made_up", "groups"))
    node = await start_node(table=table)
    assert [key for key, _, _ in node.services.apis] == [ApiKey.API_VERSIONS]


def test_every_line_of_the_table_has_its_handler_and_its_failure() -> None:
    from importlib import import_module

    for served in SERVED_APIS:
        module = import_module(f"chronik.broker.handlers.{served.module}")
        name = served.key.name.lower()
        assert callable(getattr(module, name))
        failed = getattr(module, f"{name}_failed")
        request = request_class(served.key)()
        response = failed(request, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if served.key == ApiKey.PRODUCE:
            continue
        assert isinstance(response, response_class(served.key))
        for version in range(APIS[served.key].max_version + 1):
            encode(response, version)
