"""A network between nodes that can be cut: every node is reached by its peers through a proxy that knows who dials.

A node binds its own peer port and is known to the others by the port of its proxy. The proxy reads who dials from the
handshake. What is cut is held back, not lost, as TCP does it: it arrives late, when the cut is healed, and so do
connections that were begun meanwhile. Clients do not pass through here.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from chronik.raft.transport_frames import HANDSHAKE_FRAME_BYTES_MAX, HEADER, Hello
from harness.ports import free_port

PIECE_BYTES = 64 * 1024
CALL_DEADLINE_S = 10.0
_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class FaultProxy:
    """All proxies of a cluster, on a thread of their own. Rules are by direction: (from node, to node)."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open: defaultdict[tuple[int, int], asyncio.Event] = defaultdict(_opened)
        self._delay_s: dict[tuple[int, int], float] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="fault proxy")
        self._thread.start()

    # --- what tests do -------------------------------------------------------------------------------------------

    def front(self, node_id: int, port: int) -> int:
        """Listens in front of a node's peer port; returns where."""
        front = free_port()

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._carry(node_id, port, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        self._call(asyncio.start_server(serve, "127.0.0.1", front))
        return front

    def cut_one_way(self, source: int, target: int) -> None:
        """Nothing of what one node sends reaches the other; the other direction is as before."""
        self._on_loop(lambda: self._open[source, target].clear())

    def cut(self, one: int, other: int) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def isolate(self, node_id: int, others: Iterable[int]) -> None:
        for other in others:
            self.cut(node_id, other)

    def mute(self, node_id: int, others: Iterable[int]) -> None:
        """The node hears everybody, and nobody hears it."""
        for other in others:
            self.cut_one_way(node_id, other)

    def deafen(self, node_id: int, others: Iterable[int]) -> None:
        """Everybody hears the node, and it hears nobody."""
        for other in others:
            self.cut_one_way(other, node_id)

    def delay(self, one: int, other: int, delay_s: float) -> None:
        """Everything between two nodes takes this much longer, in each direction."""
        self._on_loop(lambda: self._delay_s.update({(one, other): delay_s, (other, one): delay_s}))

    def heal(self) -> None:
        """Everything flows again."""

        def opened() -> None:
            self._delay_s.clear()
            for gate in self._open.values():
                gate.set()

        self._on_loop(opened)

    def close(self) -> None:
        async def end() -> None:
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_DEADLINE_S)

    # --- on the thread -------------------------------------------------------------------------------------------

    def _on_loop(self, change: Any) -> None:
        async def run() -> None:
            change()

        self._call(run())

    def _call(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_DEADLINE_S)

    async def _carry(self, target: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        pumps: list[asyncio.Task[None]] = []
        try:
            header = await reader.readexactly(HEADER.size)
            length = HEADER.unpack(header)[0] - 2
            assert 0 < length <= HANDSHAKE_FRAME_BYTES_MAX
            body = await reader.readexactly(length)
            source = _decode_hello(body).node_id
            await self._open[source, target].wait()
            node_reader, node_writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(node_writer)
            node_writer.write(header + body)
            pumps = [
                self._loop.create_task(self._pump(reader, node_writer, (source, target))),
                self._loop.create_task(self._pump(node_reader, writer, (target, source))),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.IncompleteReadError):
            pass  # one of the two nodes is down or hung up: the other sees the connection close, as without a proxy
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for each in writers:
                each.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: tuple[int, int]
    ) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._open[direction].wait()
            if direction in self._delay_s:
                await asyncio.sleep(self._delay_s[direction])
            writer.write(piece)
            await writer.drain()


def _opened() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
