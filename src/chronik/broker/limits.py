"""The limits of the Kafka edge: named numbers, the memory account of requests, and the work allowed per loop turn.

What lives here: every bound that protects the node from its clients, and the two small objects that keep account of
them across connections. What does not: the decision what to do when a bound is hit (connection.py, listener.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import msgspec

KIB = 1024
MIB = 1024 * KIB

SCRATCH_BYTES = 256 * KIB
"""Size of the receive buffer that all connections of a loop share; a frame that fits is handled without a copy."""

FRAME_BUFFER_FIRST_BYTES = 4 * KIB
"""First size of the buffer of a frame that did not arrive in one read."""

FRAME_BUFFER_GROWTH = 4
"""A frame's buffer holds at most this many times the bytes that the client has really sent."""

CORK_BYTES_MAX = 64 * KIB
"""Responses to the requests of one read leave together, up to this size."""

FETCH_RESPONSE_FLOOR_BYTES = 64 * KIB
"""What a fetch may always return, however much memory unread responses hold."""


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one node grants to its clients. Kafka's name of the setting, where it has one, is beside each."""

    frame_bytes_max: int = 100 * MIB  # socket.request.max.bytes
    connections_max: int = 50_000  # max.connections
    connections_per_ip_max: int = 50_000  # max.connections.per.ip
    connection_idle_s: float = 600.0  # connections.max.idle.ms; negative: never closed for idleness
    frame_stall_s: float = 30.0  # a started frame that gets no byte for so long is given up
    requests_in_flight_max: int = 64  # per connection: requests whose responses have not been written
    response_backlog_bytes_max: int = 8 * MIB  # per connection: finished responses that wait behind a slow one
    request_memory_bytes_max: int = 512 * MIB  # all connections: queued.max.request.bytes
    response_memory_bytes_max: int = 512 * MIB  # all connections: responses that clients have not read yet
    fetch_response_bytes_max: int = 16 * MIB  # one fetch response, under what the client and fetch.max.bytes allow
    write_high_water_bytes: int = 2 * MIB  # above this a connection's further requests wait for its reader
    write_low_water_bytes: int = 512 * KIB
    frames_per_turn_max: int = 128  # of one connection, before others get their turn
    turn_budget_s: float = 0.012  # of all connections together, before the loop may look after timers and peers
    accept_backlog: int = 1024  # connections the kernel holds; all of them may be accepted in one turn


class MemoryWaiter(Protocol):
    """Somebody who waits for request memory."""

    def memory_granted(self) -> None: ...


class RequestMemory:
    """Bytes held for requests that are arriving or being worked on, over all connections.

    One holder at a time may overdraw the limit: were all memory held by half-received frames, nobody could finish
    otherwise. So the real bound is the limit plus one frame. Whoever must wait is served in order.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.waits = 0
        self._overdrawn_by: MemoryWaiter | None = None
        self._waiting: deque[tuple[MemoryWaiter, int]] = deque()

    def acquire(self, holder: MemoryWaiter, size: int) -> bool:
        """Take `size` bytes, or join the queue: then `memory_granted` is called once they have been taken."""
        if self.used + size <= self.limit and not self._waiting:
            self.used += size
            return True
        if self._overdrawn_by is None or self._overdrawn_by is holder:
            self._overdrawn_by = holder
            self.used += size
            return True
        self.waits += 1
        self._waiting.append((holder, size))
        return False

    def charge(self, size: int) -> None:
        """Take bytes that are already held (a small tail of a shared buffer); never waits."""
        self.used += size

    def release(self, holder: MemoryWaiter, size: int) -> None:
        """Give back what `holder` took for a frame that is finished with."""
        self.used -= size
        if self._overdrawn_by is holder:
            self._overdrawn_by = None
        self._grant()

    def forget(self, holder: MemoryWaiter) -> None:
        """Drop a holder that is gone from the queue."""
        if any(waiter is holder for waiter, _ in self._waiting):
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not holder)
        if self._overdrawn_by is holder:
            self._overdrawn_by = None
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            holder, size = self._waiting[0]
            if self.used + size > self.limit:
                if self._overdrawn_by is not None:
                    return
                self._overdrawn_by = holder
            self._waiting.popleft()
            self.used += size
            holder.memory_granted()


class ResponseMemory:
    """Bytes of responses that clients have not read yet, over all connections.

    It never refuses: it shrinks what the next fetch may return, down to a floor, so that a thousand readers that do not
    read cost a thousand floors and not a thousand full responses.
    """

    def __init__(self, limit: int, fetch_max: int) -> None:
        self.limit = limit
        self.fetch_max = fetch_max
        self.used = 0

    def fetch_budget(self) -> int:
        """How many bytes one fetch response may hold now."""
        free_share = (self.limit - self.used) // 8
        return max(FETCH_RESPONSE_FLOOR_BYTES, min(self.fetch_max, free_share))


class TurnBudget:
    """How long client work may run in one turn of the event loop.

    Asking the loop when it comes round costs a callback a turn, which with one small request a turn is felt, so nobody
    asks while there is little work: half of the budget first counts from some client work in this turn or an earlier
    one. When that is used up, the loop is asked, and the other half counts. Work beyond that queues here and runs in
    the next turn, after timers and what else is ready.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], seconds: float) -> None:
        self._call_soon = call_soon
        self._half_s = seconds / 2
        self._ends = 0.0
        self._closing = False  # whether the loop was asked, so that the budget is of this turn
        self._queue: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self.deferrals = 0

    def spent(self) -> bool:
        """True when clients have had their share of this turn."""
        now = perf_counter()
        if now < self._ends:
            return False
        if self._closing:
            return True
        if self._ends:
            self._closing = True
            self._call_soon(self._close)
        self._ends = now + self._half_s
        return False

    def _close(self) -> None:
        self._closing = False
        self._ends = 0.0

    def defer(self, work: Callable[[], None]) -> None:
        """Run `work` in a later turn, in order with what else was deferred."""
        self.deferrals += 1
        self._queue.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        for _ in range(len(self._queue)):
            if self.spent():
                break
            self._queue.popleft()()
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)
