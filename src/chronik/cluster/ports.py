"""What this package needs of consensus and of the peer transport, so that tests can stand in for both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

PeerHandler = Callable[[int, bytes], Awaitable[bytes]]


class Group(Protocol):
    """The Raft group, as this node takes part in it."""

    @property
    def leader_id(self) -> int:
        """The leader this node knows of; 0 while there is none."""
        ...

    def on_leadership(self, callback: Callable[[bool, int], None]) -> object:
        """Calls back with (leads, term) when this node becomes the leader, and when it no longer is."""
        ...

    async def read_barrier(self, timeout_s: float) -> object:
        """Returns when a quorum has confirmed this node's view, and the image here has caught up with it."""
        ...


class PeerLink(Protocol):
    """Requests between nodes. A node can ask itself."""

    async def request(self, peer: int, kind: str, payload: bytes, *, timeout_s: float) -> bytes: ...

    def serve(self, kind: str, handler: PeerHandler) -> None: ...
