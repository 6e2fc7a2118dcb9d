"""A cluster in one process without sockets, disks or Raft: stores that share a log, requests that are function calls.

Which node leads the group is up to the test (`elect`). Nodes can be cut off from each other, paused and restarted.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable

from chronik.cluster.controller import Controller
from chronik.cluster.registration import BrokerRegistration
from chronik.cluster.settings import Timings
from chronik.metadata.commands import RegisterBroker
from chronik.metadata.configs import ConfigView
from chronik.metadata.store import MetadataStore
from harness.metadata_double import SharedLog, registration

FAST = Timings(
    beat_s=0.02,
    session_s=0.15,
    lease_s=0.12,
    tick_s=0.01,
    retry_s=0.005,
    retry_max_s=0.02,
    propose_s=1.0,
    rebalance_every_s=0.2,
)
_lives = itertools.count(1)


class ClusterDouble:
    """The nodes, who leads them, and who can reach whom."""

    def __init__(self) -> None:
        self.log = SharedLog()
        self.leader_id = 0
        self.nodes: dict[int, NodeDouble] = {}
        self.cut: set[int] = set()

    def elect(self, node_id: int) -> None:
        """Makes a node the leader of the group (0: none)."""
        before, self.leader_id = self.leader_id, node_id
        if before in self.nodes and before != node_id:
            self.nodes[before].group.tell(False)
        if node_id in self.nodes:
            self.nodes[node_id].group.tell(True)

    def add(self, node_id: int, *, static: dict[str, str] | None = None, **fields: object) -> NodeDouble:
        node = NodeDouble(self, node_id, static or {}, fields)
        self.nodes[node_id] = node
        return node

    async def stop(self) -> None:
        for node in list(self.nodes.values()):
            await node.kill()


class GroupDouble:
    """Raft as one node sees it."""

    def __init__(self, cluster: ClusterDouble, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._callbacks: list[Callable[[bool, int], None]] = []
        self.confirmed = True

    @property
    def leader_id(self) -> int:
        return 0 if self._node_id in self._cluster.cut else self._cluster.leader_id

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        self._callbacks.append(callback)
        if self._cluster.leader_id == self._node_id:
            callback(True, 1)

    def tell(self, leads: bool) -> None:
        for callback in self._callbacks:
            callback(leads, 1)

    async def read_barrier(self, timeout_s: float) -> None:
        if not self.confirmed:
            raise TimeoutError("no quorum confirms this leader")


class PeersDouble:
    """Requests between nodes, as calls on the same loop."""

    def __init__(self, cluster: ClusterDouble, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self.handlers: dict[str, Callable[[int, bytes], Awaitable[bytes]]] = {}

    def serve(self, kind: str, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None:
        self.handlers[kind] = handler

    async def request(self, peer: int, kind: str, payload: bytes, *, timeout_s: float) -> bytes:
        target = self._cluster.nodes.get(peer)
        if target is None or {peer, self._node_id} & self._cluster.cut:
            raise ConnectionError(f"node {peer} cannot be reached")
        await asyncio.sleep(0)
        answer = target.peers.handlers[kind](self._node_id, payload)
        async with asyncio.timeout(timeout_s):
            return await answer if inspect.isawaitable(answer) else answer


class NodeDouble:
    """One process of a node: store, controller, registration, and the lease it holds."""

    def __init__(self, cluster: ClusterDouble, node_id: int, static: dict[str, str], fields: dict[str, object]) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.life = next(_lives) % 250
        self.fields = fields
        self.store = cluster.log.join(MetadataStore())
        self.view = ConfigView(self.store.image, node_id, static)
        self.group = GroupDouble(cluster, node_id)
        self.peers = PeersDouble(cluster, node_id)
        self.lease_until = 0.0
        self.superseded: list[str] = []
        self.controller = Controller(node_id, self.store, self.group, self.peers, self.view, timings=FAST)
        self.registration = BrokerRegistration(
            node_id,
            self.store,
            self.group,
            self.peers,
            describe=self.describe,
            renew_lease=self._renew,
            revoke_lease=self._revoke,
            on_superseded=self.superseded.append,
            timings=FAST,
        )

    def describe(self) -> RegisterBroker:
        return registration(self.node_id, self.life, **self.fields)

    def start(self) -> NodeDouble:
        self.controller.start()
        self.registration.start()
        return self

    async def kill(self) -> None:
        """As kill -9 would: nothing is said to anybody."""
        self.cluster.nodes.pop(self.node_id, None)
        self.cluster.log.leave(self.store)
        await self.controller.stop()
        await self.registration.stop()

    def _renew(self, until: float) -> None:
        self.lease_until = max(self.lease_until, until)

    def _revoke(self) -> None:
        self.lease_until = 0.0
