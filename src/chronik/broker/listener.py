"""The Kafka port of a node: accepts connections within limits, watches over idle ones, and closes them all at the end.

What lives here: who may connect, how long a silent connection lives, and what the connections of one loop share. What
does not: framing (connection.py) and the meaning of requests (router.py).
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl as tls
from contextlib import suppress

import structlog

from chronik.broker.connection import Connection, Dispatcher
from chronik.broker.frames import Scratch
from chronik.broker.limits import BrokerLimits, RequestMemory, ResponseMemory, TurnBudget
from chronik.broker.metrics import BrokerMetrics
from chronik.broker.refusals import Refusals

log = structlog.get_logger(__name__)

SWEEPS_PER_IDLE_PERIOD = 10
SWEEP_INTERVAL_S_MAX = 5.0
SWEEP_INTERVAL_S_MIN = 0.02


class Listener:
    """Listens on one address. Several listeners of a node may share a dispatcher and metrics."""

    def __init__(
        self, dispatcher: Dispatcher, *, limits: BrokerLimits | None = None, metrics: BrokerMetrics | None = None
    ) -> None:
        self.dispatcher = dispatcher
        self.limits = limits or BrokerLimits()
        self.metrics = metrics or BrokerMetrics()
        self.refusals = Refusals()
        self._idle_s = self.limits.connection_idle_s if self.limits.connection_idle_s >= 0 else math.inf
        self.memory = RequestMemory(self.limits.request_memory_bytes_max)
        self.responses = ResponseMemory(self.limits.response_memory_bytes_max, self.limits.fetch_response_bytes_max)
        self.scratch = Scratch()
        self.connections: set[Connection] = set()
        self._per_ip: dict[str, int] = {}
        self._all_gone = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.loop_time = loop.time
        self.turn = TurnBudget(loop.call_soon, self.limits.turn_budget_s)
        self.debug = log.is_enabled_for(10)

    async def start(self, host: str, port: int, *, ssl: tls.SSLContext | None = None) -> tuple[str, int]:
        """Bind and accept. Returns the address that was bound; raises OSError when it cannot be."""
        self._server = await self._loop.create_server(
            lambda: Connection(self), host, port, backlog=self.limits.accept_backlog, ssl=ssl, reuse_address=True
        )
        self._schedule_sweep()
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def close(self, grace_s: float = 0.0) -> None:
        """Accept no more; let started requests finish for up to `grace_s`; then close every connection."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        self._all_gone.clear()
        if self.connections and grace_s > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), grace_s)
        for connection in list(self.connections):
            connection.abort()

    def admit(self, connection: Connection) -> bool:
        """Take a new connection in, or refuse it for a limit."""
        host = connection.peer_host
        from_host = self._per_ip.get(host, 0)
        if len(self.connections) >= self.limits.connections_max:
            return self._turn_away(connection, "refused a connection: max.connections is reached")
        if from_host >= self.limits.connections_per_ip_max:
            return self._turn_away(connection, "refused a connection: max.connections.per.ip is reached")
        self._per_ip[host] = from_host + 1
        self.connections.add(connection)
        self.metrics.connections += 1
        self.metrics.connections_accepted += 1
        self._keep_alive(connection)
        if self.debug:
            log.debug("accepted a connection", client=connection.peer)
        return True

    def departed(self, connection: Connection) -> None:
        """A connection is gone."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self.metrics.connections -= 1
        host = connection.peer_host
        left = self._per_ip[host] - 1
        if left:
            self._per_ip[host] = left
        else:
            del self._per_ip[host]
        if not self.connections:
            self._all_gone.set()
        if self.debug:
            log.debug("a connection is closed", client=connection.peer)

    def _turn_away(self, connection: Connection, reason: str) -> bool:
        self.metrics.connections_refused += 1
        self.refusals.say(reason, client=connection.peer, connections=len(self.connections))
        return False

    def _keep_alive(self, connection: Connection) -> None:
        raw = connection.socket
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _schedule_sweep(self) -> None:
        shortest = min(self._idle_s, self.limits.frame_stall_s)
        interval = min(SWEEP_INTERVAL_S_MAX, max(SWEEP_INTERVAL_S_MIN, shortest / SWEEPS_PER_IDLE_PERIOD))
        self._sweep_timer = self._loop.call_later(interval, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were silent for too long, and those that stopped in the middle of a frame."""
        now = self._loop.time()
        idle_before = now - self._idle_s
        stalled_before = now - self.limits.frame_stall_s
        for connection in list(self.connections):
            if connection.last_active < stalled_before and connection.frame_started:
                self.metrics.connections_expired += 1
                connection.refuse("closed a connection: a frame was begun and not continued in time")
                connection.abort()
            elif connection.last_active < idle_before and (not connection.in_flight or connection.waits_for_reader):
                self.metrics.connections_expired += 1
                if connection.waits_for_reader:
                    connection.refuse("closed a connection: the client has not read its responses for too long")
                    connection.abort()
                else:
                    connection.close()
        self._schedule_sweep()
