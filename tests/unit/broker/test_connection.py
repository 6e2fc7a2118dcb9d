"""A connection frames its input, answers in order, and stays within its limits."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import AsyncIterator, Callable

import pytest
import structlog

from chronik.broker.connection import Connection
from chronik.broker.limits import SCRATCH_BYTES, BrokerLimits
from chronik.broker.listener import Listener
from chronik.broker.responses import Slot
from unit.broker.wire_client import WireClient, eventually


class ScriptedDispatcher:
    """Answers by the first letter of a frame: e(cho), w(ait), x (exclusive wait), n(othing), b(ig), k(eep)."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.waiting: list[tuple[Slot, bytes]] = []
        self.kept: list[memoryview] = []
        self.ownership: list[bool] = []
        self.abandoned = 0
        self.big = 1 << 20
        self.before: Callable[[], None] | None = None

    def dispatch(self, connection: Connection, frame: memoryview, owned: bool) -> None:
        if self.before is not None:
            self.before()
        content = bytes(frame[:64]) if len(frame) > 4096 else bytes(frame)
        self.started.append(content)
        self.ownership.append(owned)
        kind = content[:1]
        if kind == b"e":
            connection.respond(framed(bytes(frame)))
        elif kind in (b"w", b"x"):
            slot = connection.reserve(exclusive=kind == b"x")
            slot.on_abandoned = self._count_abandoned
            self.waiting.append((slot, content))
        elif kind == b"b":
            connection.respond(framed(b"b" * self.big))
        elif kind == b"k":
            frame[:1] = b"K"  # the buffer is writable: record batches are stamped in place
            self.kept.append(frame)
            connection.respond(framed(content))
        elif kind == b"c":
            connection.refuse("closed a connection: a test asked for it")

    def finish(self, index: int = 0) -> None:
        slot, content = self.waiting.pop(index)
        slot.fill(framed(content))

    def _count_abandoned(self) -> None:
        self.abandoned += 1


def framed(payload: bytes) -> list[bytes]:
    return [struct.pack(">i", len(payload)), payload]


class Served:
    """A listener on an ephemeral port, its dispatcher, and the clients that a test opens."""

    def __init__(self, listener: Listener, dispatcher: ScriptedDispatcher, address: tuple[str, int]) -> None:
        self.listener = listener
        self.dispatcher = dispatcher
        self.address = address

    async def connect(self) -> WireClient:
        return await WireClient.connect(self.address)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., object]]:
    opened: list[Listener] = []

    async def start(**limits: object) -> Served:
        dispatcher = ScriptedDispatcher()
        listener = Listener(dispatcher, limits=BrokerLimits(**limits))  # type: ignore[arg-type]
        opened.append(listener)
        return Served(listener, dispatcher, await listener.start("127.0.0.1", 0))

    yield start
    for listener in opened:
        await listener.close()


async def test_frames_that_arrive_together_are_answered_one_by_one_in_order(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_raw(b"".join(b"".join(framed(b"echo-%04d" % i)) for i in range(500)))
        assert [await client.read_frame() for _ in range(500)] == [b"echo-%04d" % i for i in range(500)]


async def test_a_frame_that_arrives_byte_by_byte_is_put_together(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        for byte in b"".join(framed(b"echo-in-pieces")):
            client.send_raw(bytes([byte]))
            await asyncio.sleep(0)
            await eventually(lambda: served.listener.metrics.bytes_in > 0, "a byte arrives")
        assert await client.read_frame() == b"echo-in-pieces"


@pytest.mark.parametrize("size", [SCRATCH_BYTES - 4, SCRATCH_BYTES - 3, SCRATCH_BYTES, 3 * SCRATCH_BYTES + 1, 5 << 20])
async def test_a_large_frame_comes_through_whole_and_its_buffer_is_given_back(serve, size: int) -> None:
    served = await serve()
    payload = b"e" + bytes(range(256)) * (size // 256) + b"x" * ((size - 1) % 256)
    payload = payload[:size]
    async with await served.connect() as client:
        client.send_frame(payload)
        client.send_frame(b"echo-after")
        assert await client.read_frame() == payload
        assert await client.read_frame() == b"echo-after"
        assert served.listener.memory.used == 0


async def test_a_fast_answer_waits_for_the_slow_one_before_it(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_frame(b"wait-for-it")
        client.send_frame(b"echo-fast")
        await eventually(lambda: len(served.dispatcher.started) == 2, "both requests start")
        served.dispatcher.finish()
        assert await client.read_frame() == b"wait-for-it"
        assert await client.read_frame() == b"echo-fast"


async def test_answers_keep_their_order_when_they_finish_in_reverse(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        for i in range(5):
            client.send_frame(b"wait-%04d" % i)
        await eventually(lambda: len(served.dispatcher.waiting) == 5, "all requests start")
        for _ in range(5):
            served.dispatcher.finish(-1)
        assert [await client.read_frame() for _ in range(5)] == [b"wait-%04d" % i for i in range(5)]


async def test_an_exclusive_request_holds_back_the_next_until_it_is_answered(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_frame(b"xclusive")
        client.send_frame(b"echo-next")
        await eventually(lambda: len(served.dispatcher.started) == 1, "the first request starts")
        await asyncio.sleep(0.02)
        assert served.dispatcher.started == [b"xclusive"]
        served.dispatcher.finish()
        assert await client.read_frame() == b"xclusive"
        assert await client.read_frame() == b"echo-next"


async def test_a_large_frame_behind_an_exclusive_request_waits_and_is_then_handled(serve) -> None:
    served = await serve()
    payload = b"echo" + bytes(1 << 20)
    async with await served.connect() as client:
        client.send_frame(b"xclusive")
        client.send_frame(payload)
        client.send_frame(b"echo-next")
        await eventually(lambda: len(served.dispatcher.started) == 1, "the first request starts")
        await eventually(lambda: served.listener.memory.used >= 1 << 20, "the large frame arrives")
        served.dispatcher.finish()
        assert await client.read_frame() == b"xclusive"
        assert await client.read_frame() == payload
        assert await client.read_frame() == b"echo-next"
        await eventually(lambda: served.listener.memory.used == 0, "all request memory is given back")


async def test_a_request_without_an_answer_does_not_disturb_the_order(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_frame(b"nothing-1")
        client.send_frame(b"wait-2222")
        client.send_frame(b"nothing-3")
        client.send_frame(b"echo-4444")
        await eventually(lambda: len(served.dispatcher.started) == 4, "all requests start")
        served.dispatcher.finish()
        assert await client.read_frame() == b"wait-2222"
        assert await client.read_frame() == b"echo-4444"


async def test_a_slot_that_is_filled_with_nothing_lets_the_next_answer_pass(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_frame(b"wait-none")
        client.send_frame(b"echo-next")
        await eventually(lambda: len(served.dispatcher.started) == 2, "both requests start")
        served.dispatcher.waiting.pop()[0].fill(None)
        assert await client.read_frame() == b"echo-next"


async def test_no_more_requests_start_than_may_be_in_flight(serve) -> None:
    served = await serve(requests_in_flight_max=3)
    async with await served.connect() as client:
        for i in range(6):
            client.send_frame(b"wait-%04d" % i)
        await eventually(lambda: len(served.dispatcher.started) == 3, "three requests start")
        await asyncio.sleep(0.02)
        assert len(served.dispatcher.started) == 3
        served.dispatcher.finish()
        await eventually(lambda: len(served.dispatcher.started) == 4, "one more starts when one is answered")
        for _ in range(5):
            await eventually(lambda: bool(served.dispatcher.waiting), "a request waits")
            served.dispatcher.finish()
        assert [await client.read_frame() for _ in range(6)] == [b"wait-%04d" % i for i in range(6)]


@pytest.mark.parametrize("length", [-1, 0, 7, 2**31 - 1, -(2**31), 100 * 1024 * 1024 + 1])
async def test_an_absurd_frame_length_closes_the_connection_with_a_line_that_says_why(serve, length: int) -> None:
    served = await serve()
    with structlog.testing.capture_logs() as lines:
        async with await served.connect() as client:
            client.send_raw(struct.pack(">i", length) + b"xxxx")
            assert await client.closed_by_peer()
    assert [line["frame_bytes"] for line in lines if "length of a frame" in line["event"]] == [length]
    assert served.listener.memory.used == 0


async def test_an_absurd_length_is_refused_also_when_its_prefix_arrives_in_pieces(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_raw(b"\x7f\xff")
        await eventually(lambda: served.listener.metrics.bytes_in == 2, "the first half arrives")
        client.send_raw(b"\xff\xff")
        assert await client.closed_by_peer()


async def test_garbage_in_a_loop_is_logged_a_few_times_only(serve) -> None:
    served = await serve()
    with structlog.testing.capture_logs() as lines:
        for _ in range(30):
            async with await served.connect() as client:
                client.send_raw(b"GET / HTTP/1.1\r\n\r\n")
                assert await client.closed_by_peer()
    assert len([line for line in lines if "length of a frame" in line["event"]]) == 5
    assert served.listener.refusals.total == 30


async def test_half_a_frame_for_ever_is_given_up(serve) -> None:
    served = await serve(frame_stall_s=0.1)
    with structlog.testing.capture_logs() as lines:
        async with await served.connect() as client:
            client.send_raw(struct.pack(">i", 1 << 20) + b"half")
            assert await client.closed_by_peer()
    assert any("not continued in time" in line["event"] for line in lines)
    await eventually(lambda: served.listener.memory.used == 0, "its memory is given back")


async def test_a_claimed_length_costs_no_more_than_what_was_really_sent(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_raw(struct.pack(">i", 100 << 20) + b"z" * 1000)
        await eventually(lambda: served.listener.memory.used > 0, "the frame begins")
        assert served.listener.memory.used <= 8 * 1024


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(serve) -> None:
    served = await serve(connection_idle_s=0.15, frame_stall_s=60.0)
    idle = await served.connect()
    busy = await served.connect()
    busy.send_frame(b"wait-long")
    assert await idle.closed_by_peer()
    served.dispatcher.finish()
    assert await busy.read_frame() == b"wait-long"
    await busy.close()
    await idle.close()


async def test_without_an_idle_limit_no_connection_is_closed_for_idleness(serve) -> None:
    served = await serve(connection_idle_s=-0.001, frame_stall_s=0.02)
    idle = await served.connect()
    await asyncio.sleep(0.1)
    idle.send_frame(b"echo-alive")
    assert await idle.read_frame() == b"echo-alive"
    await idle.close()


async def test_connections_over_the_limit_are_refused_and_those_within_go_on(serve) -> None:
    served = await serve(connections_max=2)
    first, second = await served.connect(), await served.connect()
    await eventually(lambda: served.listener.metrics.connections == 2, "two connections are taken in")
    third = await served.connect()
    assert await third.closed_by_peer()
    first.send_frame(b"echo-still")
    assert await first.read_frame() == b"echo-still"
    await second.close()
    await eventually(lambda: served.listener.metrics.connections == 1, "the place is free again")
    fourth = await served.connect()
    fourth.send_frame(b"echo-four")
    assert await fourth.read_frame() == b"echo-four"
    for client in (first, third, fourth):
        await client.close()


async def test_connections_of_one_address_over_its_limit_are_refused(serve) -> None:
    served = await serve(connections_per_ip_max=1)
    first = await served.connect()
    await eventually(lambda: served.listener.metrics.connections == 1, "one connection is taken in")
    second = await served.connect()
    assert await second.closed_by_peer()
    await first.close()
    await second.close()


async def test_a_reader_that_does_not_read_stops_its_own_requests_and_nobody_elses(serve) -> None:
    served = await serve(write_high_water_bytes=1 << 16, write_low_water_bytes=1 << 14)
    served.dispatcher.big = 4 << 20
    slow, good = await served.connect(), await served.connect()
    for _ in range(50):
        slow.send_frame(b"big-answer")
    await eventually(lambda: served.listener.responses.used > 0, "the slow reader's responses pile up")
    before = len(served.dispatcher.started)
    assert before < 10
    for i in range(20):
        good.send_frame(b"echo-%04d" % i)
        assert await good.read_frame() == b"echo-%04d" % i
    assert served.listener.responses.used < 16 << 20
    for _ in range(50):
        assert len(await slow.read_frame()) == 4 << 20
    await eventually(lambda: served.listener.responses.used == 0, "the account is settled when all is read")
    await slow.close()
    await good.close()


async def test_a_reader_that_never_reads_is_closed_after_the_idle_time(serve) -> None:
    served = await serve(
        write_high_water_bytes=1 << 16, write_low_water_bytes=1 << 14, connection_idle_s=0.2, frame_stall_s=60.0
    )
    served.dispatcher.big = 32 << 20
    slow = await served.connect()
    slow.send_frame(b"big-answer")
    await eventually(lambda: served.listener.metrics.connections_expired == 1, "the connection is given up")
    await eventually(lambda: served.listener.responses.used == 0, "its responses are dropped")
    await slow.close()


async def test_views_of_a_frame_in_the_shared_buffer_are_told_to_be_borrowed(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_frame(b"keep-small")
        assert await client.read_frame() == b"keep-small"
        client.send_frame(b"keep" + bytes(1 << 20))
        await client.read_frame()
    assert served.dispatcher.ownership == [False, True]
    assert bytes(served.dispatcher.kept[1][:4]) == b"Keep"


async def test_a_held_back_frame_keeps_its_bytes_while_others_use_the_shared_buffer(serve) -> None:
    served = await serve()
    held, other = await served.connect(), await served.connect()
    held.send_raw(b"".join(framed(b"xclusive") + framed(b"keep-me-as-i-am") + framed(b"echo-last")))
    await eventually(lambda: len(served.dispatcher.started) == 1, "the exclusive request starts")
    for _ in range(10):
        other.send_frame(b"echo" + b"#" * 1000)
        await other.read_frame()
    served.dispatcher.finish()
    assert [await held.read_frame() for _ in range(3)] == [b"xclusive", b"keep-me-as-i-am", b"echo-last"]
    other.send_frame(b"echo" + b"#" * 1000)
    await other.read_frame()
    assert bytes(served.dispatcher.kept[0]) == b"Keep-me-as-i-am"
    await held.close()
    await other.close()


async def test_requests_of_a_lost_connection_are_told_that_nobody_waits(serve) -> None:
    served = await serve()
    client = await served.connect()
    client.send_frame(b"wait-lost")
    await eventually(lambda: len(served.dispatcher.waiting) == 1, "the request starts")
    await client.close()
    await eventually(lambda: served.dispatcher.abandoned == 1, "the request is abandoned")
    served.dispatcher.finish()
    await eventually(lambda: served.listener.metrics.connections == 0, "the connection is gone")


async def test_a_refused_request_is_answered_by_closing_after_the_answers_before_it(serve) -> None:
    served = await serve()
    async with await served.connect() as client:
        client.send_frame(b"wait-first")
        client.send_frame(b"close-it")
        client.send_frame(b"echo-never")
        await eventually(lambda: len(served.dispatcher.started) == 2, "two requests start")
        served.dispatcher.finish()
        assert await client.read_frame() == b"wait-first"
        assert await client.closed_by_peer()
    assert b"echo-never" not in served.dispatcher.started


async def test_half_received_frames_cannot_use_up_all_memory_and_every_frame_gets_through(serve) -> None:
    served = await serve(request_memory_bytes_max=1 << 20)
    clients = [await served.connect() for _ in range(6)]
    payload = b"echo" + b"." * (900 * 1024)
    half = len(payload) // 2
    for client in clients:
        client.send_raw(struct.pack(">i", len(payload)) + payload[:half])
    await eventually(lambda: served.listener.memory.waits > 0, "somebody waits for memory")
    assert served.listener.memory.used <= (1 << 20) + len(payload)
    for client in clients:
        client.send_raw(payload[half:])
    for client in clients:
        assert await client.read_frame() == payload
    await eventually(lambda: served.listener.memory.used == 0, "all memory is given back")
    for client in clients:
        await client.close()


async def test_a_connection_lost_while_it_waits_for_memory_leaves_no_trace(serve) -> None:
    served = await serve(request_memory_bytes_max=100 * 1024)
    clients = [await served.connect() for _ in range(4)]
    for client in clients:
        client.send_raw(struct.pack(">i", 200 * 1024) + b"e" * (80 * 1024))
    await eventually(lambda: served.listener.memory.waits >= 2, "connections wait for memory")
    for client in clients:
        await client.close()
    await eventually(lambda: served.listener.metrics.connections == 0, "all connections are gone", deadline_s=10)
    assert served.listener.memory.used == 0


async def test_a_connection_that_floods_gives_others_their_turn(serve) -> None:
    served = await serve(turn_budget_s=0.001)
    served.dispatcher.before = lambda: sum(range(2000))
    flood, good = await served.connect(), await served.connect()
    flood.send_raw(b"".join(framed(b"echo-flood")) * 2000)
    good.send_frame(b"echo-good")
    assert await good.read_frame() == b"echo-good"
    assert served.listener.turn.deferrals > 0
    for _ in range(2000):
        assert await flood.read_frame() == b"echo-flood"
    await flood.close()
    await good.close()


@pytest.mark.parametrize("size", [10, 400_000])
async def test_client_work_ends_after_its_share_of_a_loop_turn(serve, size: int) -> None:
    served = await serve(turn_budget_s=0.004)
    finished_turns: list[int] = []

    def burn() -> None:
        end = time.perf_counter() + 0.003
        while time.perf_counter() < end:
            pass

    def tick() -> None:
        finished_turns.append(len(served.dispatcher.started))
        if len(served.dispatcher.started) < 40:
            asyncio.get_running_loop().call_later(0, tick)

    served.dispatcher.before = burn
    clients = [await served.connect() for _ in range(4)]
    tick()
    for client in clients:
        client.send_raw(b"".join(framed(b"echo" + bytes(size))) * 10)
    for client in clients:
        for _ in range(10):
            await client.read_frame()
    per_turn = [after - before for before, after in itertools.pairwise(finished_turns)]
    assert max(per_turn) <= 4, "timers run in between"
    for client in clients:
        await client.close()


async def test_closing_the_listener_lets_started_requests_finish(serve) -> None:
    served = await serve()
    client = await served.connect()
    client.send_frame(b"wait-last")
    await eventually(lambda: len(served.dispatcher.waiting) == 1, "the request starts")
    closing = asyncio.create_task(served.listener.close(grace_s=5.0))
    await asyncio.sleep(0)
    served.dispatcher.finish()
    assert await client.read_frame() == b"wait-last"
    assert await client.closed_by_peer()
    await closing
    await client.close()
