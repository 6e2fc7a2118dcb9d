"""The peer port over real sockets: who is let in, what is dropped, and that megabytes never delay a heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable

import pytest
import structlog
from structlog.testing import capture_logs

from chronik.raft import transport, transport_connection, transport_inbound, transport_link
from chronik.raft.transport import PeerTransport
from chronik.raft.transport_frames import (
    PeerBusy,
    PeerDisconnected,
    PeerTimeout,
    PeerUnknown,
    PeerUnreachable,
    RemoteError,
    RequestTooLarge,
)
from chronik.raft.types import Append, Entry, EntryKind, Heartbeat, Message, TimeoutNow
from harness.ports import free_port

DEADLINE_S = 10.0


async def eventually(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - any condition, without the code under test announcing it
            await asyncio.sleep(0.005)
    assert condition(), what


class Nodes:
    """Transports that know each other, closed at the end of the test."""

    def __init__(self) -> None:
        self.all: list[PeerTransport] = []

    async def start(self, node_id: int, *, cluster_id: str | None = None, port: int = 0) -> PeerTransport:
        node = PeerTransport(node_id, "127.0.0.1", port, rng=random.Random(node_id))
        node.identify(bytes([node_id]) * 16, cluster_id)
        await node.start()
        self.all.append(node)
        return node

    async def pair(self) -> tuple[PeerTransport, PeerTransport]:
        one, two = await self.start(1), await self.start(2)
        one.set_peer(2, "127.0.0.1", two.port)
        two.set_peer(1, "127.0.0.1", one.port)
        await eventually(lambda: connected(one, 2) and connected(two, 1), "both connected")
        return one, two


def connected(node: PeerTransport, peer: int) -> bool:
    state = node.peers().get(peer)
    return state is not None and state.connected


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    nodes = Nodes()
    yield nodes
    for node in nodes.all:
        await node.close()


async def test_raft_messages_arrive_in_order(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    received: list[Message] = []
    two.on_message = received.append
    sent: list[Message] = [
        Append(1, 2, 7, i, 7, i, [Entry(7, i + 1, EntryKind.DATA, b"x" * (i * 100))]) for i in range(50)
    ]
    for message in sent:
        assert one.send(2, message)
    await eventually(lambda: len(received) == len(sent), "all arrive")
    assert received == sent


async def test_a_request_is_answered_and_many_are_in_flight_at_once(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    gate = asyncio.Event()

    async def slow(peer: int, payload: bytes) -> bytes:
        await gate.wait()
        return b"slow " + payload

    two.serve("slow", slow)
    two.serve("fast", lambda peer, payload: b"%d says " % peer + payload)
    waiting = [asyncio.ensure_future(one.request(2, "slow", b"%d" % i, timeout_s=5)) for i in range(20)]
    assert await one.request(2, "fast", b"hi", timeout_s=5) == b"1 says hi"
    gate.set()
    assert await asyncio.gather(*waiting) == [b"slow %d" % i for i in range(20)]


async def test_megabytes_come_back_whole_as_a_writable_view_and_leave_as_a_list_of_buffers(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    pieces = [bytes([i]) * 1_000_003 for i in range(5)]
    two.serve("bulk", lambda peer, payload: [memoryview(piece) for piece in pieces])
    answer = await one.request(2, "bulk", b"", channel="data", timeout_s=10)
    assert isinstance(answer, memoryview) and not answer.readonly
    assert answer == b"".join(pieces)
    small = await one.request(2, "bulk", bytes(70_000), channel="data", timeout_s=10)
    assert len(small) == len(answer)


async def test_a_heartbeat_does_not_wait_behind_megabytes_of_data(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    block = bytes(4 * 1024 * 1024)
    two.serve("bulk", lambda peer, payload: [block] * 8)
    two.serve("ping", lambda peer, payload: b"pong")
    received: list[Message] = []
    two.on_message = received.append
    await one.request(2, "bulk", b"", channel="data", timeout_s=20)
    data = one._peers[2].links["data"]._connection
    assert data is not None and data._transport is not None
    data._transport.pause_reading()  # the data is stuck on its way
    bulk = [asyncio.ensure_future(one.request(2, "bulk", b"", channel="data", timeout_s=60)) for _ in range(4)]
    for round_ in range(20):
        assert await one.request(2, "ping", b"", timeout_s=5) == b"pong"
        assert one.send(2, Heartbeat(1, 2, 1, bytes(16), 0, round_))
    await eventually(lambda: len(received) == 20, "heartbeats arrive")
    assert not any(task.done() for task in bulk)
    data._transport.resume_reading()
    assert [len(await task) for task in bulk] == [8 * len(block)] * 4


async def test_what_a_handler_raises_reaches_the_caller_typed(nodes: Nodes) -> None:
    one, two = await nodes.pair()

    def refuse(peer: int, payload: bytes) -> bytes:
        raise RemoteError("not_leader", "ask node 3", retriable=True, detail=b"3")

    async def fail(peer: int, payload: bytes) -> bytes:
        raise KeyError("a mistake")

    two.serve("refuse", refuse)
    two.serve("fail", fail)
    with pytest.raises(RemoteError, match="ask node 3") as refused:
        await one.request(2, "refuse", b"", timeout_s=5)
    assert (refused.value.code, refused.value.retriable, refused.value.detail) == ("not_leader", True, b"3")
    with pytest.raises(RemoteError, match="KeyError"):
        await one.request(2, "fail", b"", timeout_s=5)
    with pytest.raises(RemoteError, match="does not serve 'nothing'"):
        await one.request(2, "nothing", b"", timeout_s=5)


async def test_a_request_times_out_and_the_handler_is_told_to_stop(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    cancelled = asyncio.Event()

    async def never(peer: int, payload: bytes) -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return b""

    two.serve("never", never)
    with pytest.raises(PeerTimeout) as timeout:
        await one.request(2, "never", b"", timeout_s=0.05)
    assert timeout.value.sent and timeout.value.retriable
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_requests_in_flight_fail_when_the_connection_drops_and_the_handlers_are_cancelled(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    served, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(peer: int, payload: bytes) -> bytes:
        served.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    two.serve("hang", hang)
    request = asyncio.ensure_future(one.request(2, "hang", b"", timeout_s=30))
    await asyncio.wait_for(served.wait(), 5)
    await two.close()
    with pytest.raises(PeerDisconnected):
        await request
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_a_peer_that_comes_back_is_reconnected_and_waiting_requests_proceed(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    port = two.port
    await two.close()
    await eventually(lambda: not connected(one, 2), "the loss is noticed")
    assert not one.send(2, TimeoutNow(1, 2, 1))
    waiting = asyncio.ensure_future(one.request(2, "echo", b"patience", timeout_s=10))
    again = await nodes.start(2, port=port)
    again.serve("echo", lambda peer, payload: payload)
    assert await waiting == b"patience"


async def test_a_peer_that_moved_is_found_at_its_new_address(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    told: list[tuple[int, int]] = []
    one.on_peer_address = lambda node_id, host, port, directory_id: told.append((node_id, port))
    await two.close()
    moved = await nodes.start(2)
    moved.serve("echo", lambda peer, payload: payload)
    moved.set_peer(1, "127.0.0.1", one.port)
    await eventually(lambda: told, "its hello names the new address")
    assert told[0] == (2, moved.port)
    one.set_peer(2, "127.0.0.1", moved.port)
    assert await one.request(2, "echo", b"x", timeout_s=5) == b"x"


async def test_a_node_that_cannot_be_reached_or_is_not_known_is_a_clear_retriable_error(nodes: Nodes) -> None:
    one = await nodes.start(1)
    with pytest.raises(PeerUnknown, match="no address is known for node 9"):
        await one.request(9, "echo", b"", timeout_s=1)
    one.set_peer(2, "127.0.0.1", free_port())
    with pytest.raises(PeerUnreachable, match="node 2 cannot be reached: cannot connect") as error:
        await one.request(2, "echo", b"", timeout_s=0.3)
    assert error.value.retriable and not error.value.sent
    one.remove_peer(2)
    with pytest.raises(PeerUnknown):
        await one.request(2, "echo", b"", timeout_s=1)


async def test_a_stranger_of_another_cluster_is_refused_and_both_sides_say_why_once(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    structlog.reset_defaults()
    monkeypatch.setattr(transport_link, "REFUSED_RETRY_S", 0.01)
    attempts: list[str] = []
    refuse = transport_inbound.Inbound.refuse

    def counted(inbound: transport_inbound.Inbound, reason: str) -> None:
        attempts.append(reason)
        refuse(inbound, reason)

    monkeypatch.setattr(transport_inbound.Inbound, "refuse", counted)
    one = await nodes.start(1, cluster_id="alpha")
    two = await nodes.start(2, cluster_id="beta")
    with capture_logs() as lines:
        two.set_peer(1, "127.0.0.1", one.port)
        await eventually(lambda: len(attempts) > 5, "it keeps trying")
    assert "refused this node" in (two.peers()[1].problem or "")
    refusals = [line for line in lines if "belongs to cluster" in str(line)]
    assert sorted(line["event"][:7] for line in refusals) == ["refused", "the nod"]
    assert not connected(two, 1)


async def test_an_unset_cluster_id_matches_any_until_it_is_set(nodes: Nodes) -> None:
    one = await nodes.start(1)
    two = await nodes.start(2, cluster_id="beta")
    two.set_peer(1, "127.0.0.1", one.port)
    await eventually(lambda: connected(two, 1), "connected while one has no cluster")
    one.set_cluster_id("beta")
    assert connected(two, 1)
    three = await nodes.start(3)
    three.set_peer(2, "127.0.0.1", two.port)
    await eventually(lambda: connected(three, 2), "connected")
    three.set_cluster_id("gamma")
    await eventually(lambda: not connected(three, 2), "cut off once it turns out to be a stranger")
    four = await nodes.start(4)
    two.set_peer(4, "127.0.0.1", four.port)
    await eventually(lambda: connected(two, 4), "connected")
    four.set_cluster_id("delta")
    await eventually(
        lambda: "belongs to cluster" in (two.peers()[4].problem or ""), "the other way round, and told why"
    )


async def test_a_second_node_with_the_same_id_is_refused_while_the_first_is_there(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    twin = await nodes.start(2)
    twin.identify(b"t" * 16, None)
    twin.set_peer(1, "127.0.0.1", one.port)
    await eventually(lambda: "with another data folder" in (twin.peers()[1].problem or ""), "told why")
    assert connected(two, 1)
    await two.close()
    twin._peers[1].links["control"].nudge()
    await eventually(lambda: connected(twin, 1), "let in once the first is gone")


async def test_an_address_that_belongs_to_another_node_is_refused(nodes: Nodes) -> None:
    one, two = await nodes.start(1), await nodes.start(2)
    one.set_peer(3, "127.0.0.1", two.port)
    await eventually(lambda: "node 3 was expected here" in (one.peers()[3].problem or ""), "told so")
    twin = await nodes.start(2)
    twin.set_peer(4, "127.0.0.1", two.port)
    await eventually(lambda: "expected" in (twin.peers()[4].problem or ""), "told so")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">I", 0),
        struct.pack(">I", 2**31 - 1),
        struct.pack(">IBB", 2, 1, 5),
        struct.pack(">IBB", 2, 200, 1),
        struct.pack(">IBB", 2, 1, 99),
        struct.pack(">IBB", 12, 1, 1) + b"not msgpac",
        struct.pack(">IBB", 5000, 1, 1) + bytes(4998),
    ],
)
async def test_garbage_from_a_stranger_is_cut_off_at_once(nodes: Nodes, garbage: bytes) -> None:
    one = await nodes.start(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
    writer.write(garbage)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    assert not one._inbound


async def test_half_a_frame_for_ever_is_cut_off(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HANDSHAKE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(transport, "CHECK_EVERY_S", 0.02)
    one = await nodes.start(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
    writer.write(struct.pack(">IB", 100, 1))
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_strangers_beyond_the_limit_are_turned_away(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "STRANGERS_MAX", 5)
    one = await nodes.start(1)
    idle = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(5)]
    reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    for _, other in [*idle, (reader, writer)]:
        other.close()


async def test_nobody_speaks_in_the_name_of_another_node(nodes: Nodes) -> None:
    one, two = await nodes.pair()
    received: list[Message] = []
    two.on_message = received.append
    one.send(2, Heartbeat(3, 2, 1, bytes(16), 0))
    await eventually(lambda: not connected(one, 2), "cut off")
    assert received == []


async def test_raft_messages_are_dropped_not_hoarded_when_the_peer_does_not_read(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_connection, "MESSAGE_QUEUE_MAX", 10)
    one, two = await nodes.pair()
    for inbound in two._inbound:
        inbound.connection._transport.pause_reading()  # type: ignore[union-attr]
    message = Append(1, 2, 1, 0, 0, 0, [Entry(1, 1, EntryKind.DATA, bytes(1_000_000))])
    accepted = 0
    for _ in range(200):
        accepted += one.send(2, message)
        await asyncio.sleep(0)
    assert accepted < 40
    assert one.messages_dropped == 200 - accepted
    connection = one._peers[2].links["control"]._connection
    assert connection is not None and connection.unsent_bytes < 40_000_000


async def test_requests_beyond_the_limit_fail_at_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_link, "REQUESTS_IN_FLIGHT_MAX", 3)
    one, two = await nodes.pair()

    async def never(peer: int, payload: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    two.serve("never", never)
    waiting = [asyncio.ensure_future(one.request(2, "never", b"", timeout_s=30)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(PeerBusy, match="3 requests to node 2"):
        await one.request(2, "never", b"", timeout_s=30)
    with pytest.raises(RequestTooLarge):
        monkeypatch.setattr(transport_link, "REQUESTS_IN_FLIGHT_MAX", 30)
        await one.request(2, "never", bytes(9 * 1024 * 1024), timeout_s=1)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_server_that_is_overloaded_says_so(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_inbound, "SERVED_AT_ONCE_MAX", 2)
    one, two = await nodes.pair()
    gate = asyncio.Event()

    async def wait(peer: int, payload: bytes) -> bytes:
        await gate.wait()
        return b"done"

    two.serve("wait", wait)
    requests = [asyncio.ensure_future(one.request(2, "wait", b"", timeout_s=5)) for _ in range(4)]
    await eventually(lambda: sum(task.done() for task in requests) == 2, "two are refused")
    gate.set()
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert sorted(str(answer) for answer in answers) == sorted(
        ["b'done'", "b'done'", "2 requests are being served: try again", "2 requests are being served: try again"]
    )


async def test_a_silent_peer_is_asked_for_a_sign_of_life_and_then_given_up(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CHECK_EVERY_S", 0.02)
    monkeypatch.setattr(transport_link, "PING_AFTER_S", 0.05)
    one, two = await nodes.pair()
    link = one._peers[2].links["control"]
    heard = link.last_received
    await eventually(lambda: link.last_received > heard + 0.1, "pings are answered")
    assert one.peers()[2].reachable
    monkeypatch.setattr(transport_link, "SILENCE_MAX_S", 0.2)
    for inbound in two._inbound:
        inbound.connection._transport.pause_reading()  # type: ignore[union-attr]
    await eventually(lambda: "nothing was heard" in (one.peers()[2].problem or "") or not connected(one, 2), "given up")


async def test_an_address_can_be_asked_without_knowing_who_is_there(nodes: Nodes) -> None:
    one, two = await nodes.start(1), await nodes.start(2)
    two.serve("who", lambda peer, payload: b"two, asked by %d" % peer)
    assert await one.request_address("127.0.0.1", two.port, "who", b"", 5) == b"two, asked by 1"
    with pytest.raises(OSError):
        await one.request_address("127.0.0.1", free_port(), "who", b"", 5)


async def test_a_node_may_ask_itself(nodes: Nodes) -> None:
    one = await nodes.start(1)
    one.serve("echo", lambda peer, payload: [payload, b"!"])
    assert await one.request(1, "echo", b"me", timeout_s=1) == b"me!"


async def test_a_thousand_connects_and_disconnects_leave_nothing_behind(nodes: Nodes) -> None:
    one, _ = await nodes.pair()
    before = len(asyncio.all_tasks())
    for _ in range(1000):
        _, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.close()
    await eventually(lambda: len(one._inbound) == 1, "only the peer is left")
    assert len(asyncio.all_tasks()) == before
