"""How far groups are behind, for the metrics page: committed offset, and lag where the end of the partition is known.

A coordinator knows what its groups have committed; the end of a partition is known where it is led. What is led
elsewhere is asked for there, in the background, only while somebody reads the metrics.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog

from chronik.groups.offset_book import Place
from chronik.health import Reading

if TYPE_CHECKING:
    from chronik.groups.coordinator import GroupCoordinator
    from chronik.replication.manager import ReplicaManager

log = structlog.get_logger()

SERIES_MAX = 20_000
"""Partitions of groups that are shown; a page with more would help nobody."""
REFRESH_S = 5.0
ASK_TIMEOUT_S = 2.0
KIND = "end_offsets"
UNKNOWN = -1

Handler = Callable[[int, bytes], bytes]


class PeerRequests(Protocol):
    """What this needs of the peer transport."""

    def serve(self, kind: str, handler: Handler) -> None: ...

    async def request(self, peer: int, kind: str, payload: bytes, *, timeout_s: float) -> bytes: ...


class LagReadings:
    """The readings of one node's groups."""

    def __init__(self, coordinator: GroupCoordinator, replicas: ReplicaManager, transport: PeerRequests | None) -> None:
        self._coordinator = coordinator
        self._replicas = replicas
        self._transport = transport
        self._remote_ends: dict[Place, int] = {}
        self._refreshed_at = 0.0
        self._task: asyncio.Task[None] | None = None
        if transport is not None:
            transport.serve(KIND, self._answer)

    def readings(self) -> Iterator[Reading]:
        """One number per state of groups, and two per group and partition."""
        states = Counter(
            (group.kind, group.state_name) for shard in self._coordinator.active() for group in shard.groups()
        )
        for (kind, state), count in sorted(states.items()):
            yield Reading("chronik_groups", "Groups coordinated here", count, {"type": kind, "state": state})
        shown = 0
        remote: set[Place] = set()
        for shard in self._coordinator.active():
            for group_id, place, committed in shard.offsets.each():
                if shown >= SERIES_MAX:
                    break
                shown += 1
                labels = {"group": group_id, "topic": place[0], "partition": str(place[1])}
                yield Reading("chronik_group_offset", "Committed offset of a group", committed.offset, labels)
                end = self._end(place)
                if end is None:
                    remote.add(place)
                    end = self._remote_ends.get(place, UNKNOWN)
                if end != UNKNOWN:
                    behind = max(end - committed.offset, 0)
                    yield Reading("chronik_group_lag", "Records a group has not committed yet", behind, labels)
        self._refresh(remote)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, place: Place) -> int | None:
        partition = self._replicas.get(*place)
        return partition.high_watermark if partition is not None and partition.is_leader else None

    def _answer(self, peer: int, payload: bytes) -> bytes:
        asked = msgspec.msgpack.decode(payload, type=list[Place])
        ends = [self._end(place) for place in asked[:SERIES_MAX]]
        return msgspec.msgpack.encode([UNKNOWN if end is None else end for end in ends])

    def _refresh(self, remote: set[Place]) -> None:
        self._remote_ends = {place: end for place, end in self._remote_ends.items() if place in remote}
        if not remote or self._transport is None or monotonic() - self._refreshed_at < REFRESH_S:
            return
        if self._task is None or self._task.done():
            self._refreshed_at = monotonic()
            self._task = asyncio.get_running_loop().create_task(self._ask(remote))

    async def _ask(self, remote: set[Place]) -> None:
        by_leader: dict[int, list[Place]] = {}
        for place in sorted(remote):
            info = self._coordinator.store.image.partition(*place)
            if info is not None and info.leader > 0:
                by_leader.setdefault(info.leader, []).append(place)
        assert self._transport is not None
        for leader, places in by_leader.items():
            payload = msgspec.msgpack.encode(places)
            try:
                answer = await self._transport.request(leader, KIND, payload, timeout_s=ASK_TIMEOUT_S)
                ends = msgspec.msgpack.decode(answer, type=list[int])
            except Exception as error:
                log.debug("the ends of partitions led elsewhere are not known now", leader=leader, reason=str(error))
                continue
            self._remote_ends.update(zip(places, ends, strict=False))
