"""A crowd of connections in one process: each sends its request, waits for the answer, and sends the next.

The requests are encoded before the clock starts and answers are only measured and checked for their size, so that the
client costs the same however many connections there are.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence

from chronik.bench.histogram import Histogram
from side_by_side.java_tools import ToolFailed

CONNECT_S = 10.0
SILENCE_S = 30.0
"""How long nobody may be answered before the measurement is given up."""

RECEIVE_BYTES = 1024 * 1024
_LENGTH = struct.Struct(">i")


class Member:
    """One connection and the requests that it sends in turn."""

    def __init__(self, address: tuple[str, int], frames: Sequence[bytes]) -> None:
        self.socket = socket.create_connection(address, CONNECT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = frames
        self._turn = 0
        self._size = 0
        self._left = 0  # bytes of the answer that are still to come
        self._head = b""
        self.sent_ns = 0

    def ask(self) -> None:
        frame = self._frames[self._turn]
        self._turn = (self._turn + 1) % len(self._frames)
        self.sent_ns = time.monotonic_ns()
        self.socket.sendall(frame)

    def take(self, room: bytearray) -> int:
        """Read what came; the size of the answer once it is whole, else 0."""
        count = self.socket.recv_into(room)
        if not count:
            raise ToolFailed("the broker closed a connection")
        if self._left == 0:
            self._head += room[:count]
            if len(self._head) < _LENGTH.size:
                return 0
            self._size = _LENGTH.unpack_from(self._head)[0] + _LENGTH.size
            self._left = self._size - len(self._head)
            self._head = b""
        else:
            self._left -= count
        return self._size if self._left == 0 else 0


def run(address: tuple[str, int], requests: Sequence[Sequence[bytes]], warmup_s: float, duration_s: float) -> Outcome:
    """One connection per entry of `requests`; counts the answers that came in after the warm-up."""
    members = [Member(address, frames) for frames in requests]
    outcome = Outcome()
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.socket, selectors.EVENT_READ, member)
            member.ask()
        room = bytearray(RECEIVE_BYTES)
        began = time.monotonic_ns()
        measure_from = began + round(warmup_s * 1e9)
        end = measure_from + round(duration_s * 1e9)
        while (now := time.monotonic_ns()) < end:
            ready = selector.select(SILENCE_S)
            if not ready:
                raise ToolFailed(f"nobody was answered for {SILENCE_S:g} s")
            for key, _ in ready:
                member = key.data
                size = member.take(room)
                if size:
                    now = time.monotonic_ns()
                    if now >= measure_from:
                        outcome.answers += 1
                        outcome.answer_bytes += size
                        outcome.latency.record(now - member.sent_ns)
                    member.ask()
    for member in members:
        member.socket.close()
    outcome.seconds = duration_s
    return outcome


class Outcome:
    def __init__(self) -> None:
        self.answers = 0
        self.answer_bytes = 0
        self.seconds = 0.0
        self.latency = Histogram()
