"""The peer port: Raft messages, requests and answers between the nodes of a cluster, on loopback or over a network.

Every node dials every other it knows: one `control` connection (Raft, heartbeats, forwarding), kept up always, and one
`data` connection (replication fetches, snapshots), made when first needed. A connection is one or the other for all its
life, so that a heartbeat never waits behind a megabyte. See `transport_link.py` for the outgoing side,
`transport_inbound.py` for the incoming one, `transport_frames.py` for what is on the wire.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable
from typing import Literal, cast, overload

import msgspec
import structlog

from chronik.raft.transport_frames import (
    CONTROL_FRAME_BYTES_MAX,
    Channel,
    FrameKind,
    Hello,
    Payload,
    PeerUnknown,
    RemoteError,
    small_frame,
)
from chronik.raft.transport_identity import Identity
from chronik.raft.transport_inbound import Handler, Inbound, as_remote_error
from chronik.raft.transport_link import HANDSHAKE_TIMEOUT_S, PING_AFTER_S, Link
from chronik.raft.types import Message, encode_message

log = structlog.get_logger()

INBOUND_CONNECTIONS_MAX = 1024
STRANGERS_MAX = 256
CHECK_EVERY_S = 1.0
HEARD_WITHIN_S = 3 * PING_AFTER_S
WILDCARDS = ("", "0.0.0.0", "::")
"""Addresses to listen on that nobody can connect to from elsewhere; without an advertised one peers are told none."""


class PeerState(msgspec.Struct, frozen=True):
    """What the transport knows of a peer. `heard_ago_s` is None if nothing was heard since this node started."""

    node_id: int
    host: str
    port: int
    connected: bool
    heard_ago_s: float | None
    directory_id: bytes | None
    problem: str | None

    @property
    def reachable(self) -> bool:
        return self.connected and self.heard_ago_s is not None and self.heard_ago_s < HEARD_WITHIN_S


class _Peer:
    """The links to one peer, and what was last heard of it."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.links: dict[Channel, Link] = {}
        self.last_inbound = 0.0
        self.directory_id: bytes | None = None


class PeerTransport:
    """All connections of this node to the others. Lives on the event loop; `start` and `close` bracket its use."""

    def __init__(
        self,
        node_id: int,
        host: str,
        port: int,
        *,
        advertised_host: str | None = None,
        advertised_port: int | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Listens on `host:port` (0 picks a free one) and tells peers `advertised_host:advertised_port`."""
        self.node_id = node_id
        self._host = host
        self._port = port
        self._advertised_port = advertised_port
        advertised_host = advertised_host or ("" if host in WILDCARDS else host)
        self.identity = Identity(node_id, advertised_host, advertised_port or port)
        self._rng = rng or random.Random()
        self._handlers: dict[str, Handler] = {}
        self._peers: dict[int, _Peer] = {}
        self._inbound: set[Inbound] = set()
        self._server: asyncio.Server | None = None
        self._check: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.on_message: Callable[[Message], None] | None = None
        self.on_peer_address: Callable[[int, str, int, bytes], None] | None = None
        """A peer said hello from an address that was not known: (node id, host, port, directory id)."""
        self.on_connection: Callable[[int, bool], None] | None = None
        """The control connection to a peer came up, or was lost."""
        self.messages_dropped = 0

    # --- life ----------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    @property
    def address(self) -> tuple[str, int]:
        """Where peers are told to find this node."""
        return self.identity.host, self.identity.port

    def identify(self, directory_id: bytes, cluster_id: str | None) -> None:
        """Who this node is; needed before `start`."""
        self.identity.directory_id = directory_id
        self.identity.cluster_id = cluster_id

    async def start(self) -> None:
        """Listens, and begins to dial the peers known so far."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self._host, self._port)
        if self._port == 0:
            self._port = int(self._server.sockets[0].getsockname()[1])
            if self._advertised_port is None:
                self.identity.port = self._port
        for peer_id in self._peers:
            self._link(peer_id, "control")
        self._check = loop.call_later(CHECK_EVERY_S, self._check_connections)

    async def close(self) -> None:
        """Closes everything, at once."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        if self._server is not None:
            self._server.close()
        links = [link for peer in self._peers.values() for link in peer.links.values()]
        self._peers.clear()
        for inbound in list(self._inbound):
            inbound.connection.abort()
        await asyncio.gather(*(link.close() for link in links), *self._closing, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    @property
    def _running(self) -> bool:
        return self._check is not None

    def set_cluster_id(self, cluster_id: str) -> None:
        """The cluster has an id now; who turns out to belong to another one is cut off."""
        self.identity.cluster_id = cluster_id
        for inbound in list(self._inbound):
            hello = inbound.hello
            if hello is not None and hello.cluster_id not in ("", cluster_id):
                inbound.refuse(f"node {hello.node_id} belongs to cluster {hello.cluster_id}, this is {cluster_id}")
        for peer_id, peer in list(self._peers.items()):
            for channel, link in list(peer.links.items()):
                if link.peer is not None and link.peer.cluster_id not in ("", cluster_id):
                    self._close_link(peer.links.pop(channel))
                    self._link(peer_id, channel)

    # --- peers ---------------------------------------------------------------------------------------------------

    def set_peer(self, node_id: int, host: str, port: int) -> None:
        """The node is at this address, from now on. Connections to another address are closed."""
        if node_id == self.node_id:
            return
        peer = self._peers.get(node_id)
        if peer is not None and (peer.host, peer.port) == (host, port):
            return
        if peer is None:
            self._peers[node_id] = _Peer(host, port)
        else:
            peer.host, peer.port = host, port
            for link in peer.links.values():
                self._close_link(link)
            peer.links.clear()
        if self._running:
            self._link(node_id, "control")

    def remove_peer(self, node_id: int) -> None:
        """The node is none of ours any more."""
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            for link in peer.links.values():
                self._close_link(link)

    def peers(self) -> dict[int, PeerState]:
        """What is known of every peer, now."""
        if not self._running:
            return {}
        now = asyncio.get_running_loop().time()
        return {node_id: self._state_of(node_id, peer, now) for node_id, peer in self._peers.items()}

    def _state_of(self, node_id: int, peer: _Peer, now: float) -> PeerState:
        control = peer.links.get("control")
        heard = max([peer.last_inbound, *(link.last_received for link in peer.links.values())])
        return PeerState(
            node_id=node_id,
            host=peer.host,
            port=peer.port,
            connected=control is not None and control.is_ready,
            heard_ago_s=now - heard if heard else None,
            directory_id=peer.directory_id,
            problem=control.last_problem if control is not None else None,
        )

    def _link(self, node_id: int, channel: Channel) -> Link:
        peer = self._peers[node_id]
        link = peer.links.get(channel)
        if link is None:
            link = Link(
                self.identity, node_id, peer.host, peer.port, channel, rng=self._rng, on_change=self._link_changed
            )
            peer.links[channel] = link
            link.start()
        return link

    def _link_changed(self, link: Link) -> None:
        peer = self._peers.get(link.node_id)
        if peer is None or peer.links.get(link.channel) is not link:
            return
        if link.is_ready and link.peer is not None:
            peer.directory_id = link.peer.directory_id
        if link.channel == "control" and self.on_connection is not None:
            self.on_connection(link.node_id, link.is_ready)

    def _close_link(self, link: Link) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # --- talking -------------------------------------------------------------------------------------------------

    def send(self, peer_id: int, message: Message) -> bool:
        """Sends a Raft message, or drops it when there is no connection or too much waits: Raft sends it again."""
        peer = self._peers.get(peer_id)
        link = peer.links.get("control") if peer is not None else None
        body = encode_message(message) if link is not None and link.is_ready else b""
        if link is None or not body or len(body) + 2 > CONTROL_FRAME_BYTES_MAX:
            self.messages_dropped += 1
            return False
        sent = link.send_or_drop(small_frame(FrameKind.RAFT, body))
        self.messages_dropped += not sent
        return sent

    def serve(self, kind: str, handler: Handler) -> None:
        """Answers requests of this kind: `handler(peer_id, payload)` returns the payload of the answer or an awaitable
        of it; what it raises reaches the caller as RemoteError (raise one to say no in a typed way)."""
        if kind in self._handlers:
            raise ValueError(f"'{kind}' is served already")
        self._handlers[kind] = handler

    @overload
    async def request(
        self,
        peer: int,
        kind: str,
        payload: Payload,
        *,
        channel: Literal["control"] = "control",
        timeout_s: float,
        connect_s: float | None = None,
    ) -> bytes: ...

    @overload
    async def request(
        self, peer: int, kind: str, payload: Payload, *, channel: str, timeout_s: float, connect_s: float | None = None
    ) -> bytes | memoryview: ...

    async def request(
        self,
        peer: int,
        kind: str,
        payload: Payload,
        *,
        channel: str = "control",
        timeout_s: float,
        connect_s: float | None = None,
    ) -> bytes | memoryview:
        """The answer of another node, within the time allowed; raises `PeerError`.

        While there is no connection it waits for one: until the timeout, or `connect_s`, if that is shorter.
        On `control` the answer is bytes. On `data` it is a writable view of a buffer that belongs to the caller.
        """
        if channel not in ("control", "data"):
            raise ValueError(f"there is no channel '{channel}', only control and data")
        if peer == self.node_id:
            return await self._request_self(kind, payload, timeout_s)
        if peer not in self._peers or not self._running:
            raise PeerUnknown(f"no address is known for node {peer}")
        return await self._link(peer, cast(Channel, channel)).request(kind, payload, timeout_s, connect_s)

    async def request_address(self, host: str, port: int, kind: str, payload: Payload, timeout_s: float) -> bytes:
        """Asks whoever answers at an address, over a control connection of its own. Raises PeerError or OSError."""
        link = Link(self.identity, 0, host, port, "control", rng=self._rng)
        try:
            async with asyncio.timeout(timeout_s):
                await link.connect()
                return bytes(await link.request(kind, payload, timeout_s))
        finally:
            await link.close()

    async def _request_self(self, kind: str, payload: Payload, timeout_s: float) -> bytes:
        handler = self._handlers.get(kind)
        if handler is None:
            raise RemoteError("unknown_kind", f"node {self.node_id} does not serve '{kind}'", retriable=True)
        try:
            async with asyncio.timeout(timeout_s):
                result = handler(self.node_id, _joined(payload))
                return _joined(await result if inspect.isawaitable(result) else result)
        except TimeoutError:
            raise RemoteError("timeout", f"'{kind}' took over {timeout_s:.1f} s", retriable=True) from None
        except Exception as error:
            raise as_remote_error(kind, error) from error

    # --- listening -----------------------------------------------------------------------------------------------

    def _accept(self) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        inbound = Inbound(
            self.identity,
            self._handlers,
            objection=self._impostor,
            on_hello=self._said_hello,
            on_message=self._message_received,
            on_closed=self._inbound.discard,
            clock=loop.time,
        )
        strangers = sum(1 for other in self._inbound if other.hello is None)
        self._inbound.add(inbound)
        if len(self._inbound) > INBOUND_CONNECTIONS_MAX or strangers >= STRANGERS_MAX:
            self.identity.log_once("crowd", "too many connections on the peer port; new ones are cut off")
            inbound.connection.unwanted = True
        return inbound.connection

    def _impostor(self, hello: Hello) -> str | None:
        """Two nodes with one id would push each other out for ever: the one that is here stays while it is heard."""
        now = asyncio.get_running_loop().time()
        for other in self._inbound:
            known = other.hello
            if known is None or known.node_id != hello.node_id or known.directory_id == hello.directory_id:
                continue
            if other.connection.is_open and now - other.connection.last_received < HEARD_WITHIN_S:
                return (
                    f"node {hello.node_id} is connected with another data folder ({known.directory_id.hex()}): "
                    f"stop one of the two, or give it another id"
                )
        return None

    def _said_hello(self, inbound: Inbound, hello: Hello) -> None:
        for other in list(self._inbound):
            same = other is not inbound and (other.node_id, other.channel) == (hello.node_id, hello.channel)
            if same and hello.target != 0 and other.hello is not None and other.hello.target != 0:
                other.connection.abort()
        peer = self._peers.get(hello.node_id)
        if peer is not None:
            peer.last_inbound = asyncio.get_running_loop().time()
            peer.directory_id = hello.directory_id
            for link in peer.links.values():
                link.nudge()
        known = peer is not None and (peer.host, peer.port) == (hello.host, hello.port)
        if not known and hello.host and hello.port and self.on_peer_address is not None:
            self.on_peer_address(hello.node_id, hello.host, hello.port, hello.directory_id)

    def _message_received(self, message: Message) -> None:
        peer = self._peers.get(message.source)
        if peer is not None:
            peer.last_inbound = asyncio.get_running_loop().time()
        if self.on_message is not None:
            self.on_message(message)

    def _check_connections(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for inbound in list(self._inbound):
            if inbound.is_overdue(now, HANDSHAKE_TIMEOUT_S):
                self.identity.log_once(
                    f"overdue {inbound.connection.address.rpartition(':')[0]}",
                    "cut off a connection on the peer port that sent nothing useful in time",
                    address=inbound.connection.address,
                )
                inbound.connection.abort()
        for peer in self._peers.values():
            for link in peer.links.values():
                link.check(now)
        self._check = loop.call_later(CHECK_EVERY_S, self._check_connections)


def _joined(payload: Payload) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    return b"".join(payload)
