"""The follower's side of fetching: one fetcher per leader node, for all partitions that this node follows there.

A fetcher has at most one long poll under way, which brings data, and at most one report, which carries news the leader
must not wait for: that more is synced, that partitions came or went. What comes back is appended, or tells where to cut
the log (`replica_state`, rule 6), or that the leader will not have us, and then it is tried again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from chronik.replication import wire
from chronik.replication.following import Followed
from chronik.replication.wire import Added, Buffer, FetchRequest, FetchResponse, Progress

if TYPE_CHECKING:
    from chronik.replication.manager import ReplicaManager
    from chronik.replication.partition import Partition
    from chronik.replication.replica import Replica

ANSWER_TIMEOUT_S = 4.0  # beyond the wait a leader was asked for
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
SLOT_RETRY_S = 0.1

log = structlog.get_logger()

Item = TypeVar("Item")
Answer = bytes | list[Buffer]
Handler = Callable[[int, bytes], Answer | Awaitable[Answer]]


class DataTransport(Protocol):
    """What replication needs of the connections between nodes."""

    async def request(
        self, peer: int, kind: str, payload: bytes, *, channel: str, timeout_s: float
    ) -> bytes | bytearray | memoryview: ...

    def serve(self, kind: str, handler: Handler) -> None: ...


class LeaderFetcher:
    """Fetches from one leader."""

    def __init__(self, leader: int, replicas: ReplicaManager, transport: DataTransport) -> None:
        self.leader = leader
        self._replicas = replicas
        self._transport = transport
        self._slots: dict[int, Followed] = {}
        self._next_slot = 0
        self._session = 0
        self._sequence = 0
        self._added: dict[Followed, None] = {}
        self._progress: dict[Followed, None] = {}
        self._removed: dict[int, None] = {}
        self._resting: dict[Followed, None] = {}
        self._rest: asyncio.TimerHandle | None = None
        self._poller: asyncio.Task[None] | None = None
        self._reporter: asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[None] | None = None
        self._polling = False

    # what to fetch

    def follow(self, followed: Followed) -> None:
        """Starts, or starts over, with a partition in a leader epoch."""
        self._forget_slot(followed)
        self._resting.pop(followed, None)
        self._next_slot += 1
        followed.slot = self._next_slot
        self._slots[followed.slot] = followed
        self._added[followed] = None
        self._news()

    def leave(self, followed: Followed) -> None:
        """Stops fetching a partition; whatever is still on its way here is ignored."""
        self._forget_slot(followed)
        self._resting.pop(followed, None)
        self._news()

    def synced(self, followed: Followed) -> None:
        """More of a log is synced."""
        if followed.slot in self._slots and followed not in self._added:
            self._progress[followed] = None
            self._news()

    def stop(self) -> None:
        self._removed.clear()
        self._end_session()
        if self._farewell is not None:
            self._farewell.cancel()
        if self._rest is not None:
            self._rest.cancel()

    def _end_session(self) -> None:
        """Nothing is followed there any more. The leader is told, once: it may be a dead node."""
        for task in (self._poller, self._reporter):
            if task is not None:
                task.cancel()
        self._poller = self._reporter = None
        if self._removed:
            self._farewell = asyncio.get_running_loop().create_task(self._say_farewell(), name="leave a leader")

    def _forget_slot(self, followed: Followed) -> None:
        if self._slots.pop(followed.slot, None) is None:
            return
        if followed in self._added:
            del self._added[followed]
        else:
            self._removed[followed.slot] = None
        self._progress.pop(followed, None)

    def _news(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._slots:
            self._end_session()
        elif self._poller is None or self._poller.done():
            self._start_session()
            self._poller = loop.create_task(self._poll_for_ever(), name=f"fetch from node {self.leader}")
        elif self._polling and (self._reporter is None or self._reporter.done()):
            self._reporter = loop.create_task(self._report(), name=f"report to node {self.leader}")

    # talking

    def _start_session(self) -> None:
        """From the beginning: every partition is named again."""
        self._session = self._replicas.next_session()
        self._sequence = 0
        self._removed.clear()
        self._progress.clear()
        self._added = dict.fromkeys(self._slots.values())

    def _request(self, max_wait_ms: int) -> FetchRequest:
        added = [self._name(followed) for followed in _take(self._added, wire.MAX_ADDED_PER_REQUEST)]
        progress = [
            Progress(
                followed.slot,
                followed.partition.end_offset,
                followed.partition.synced_offset,
                followed.partition.log_start_offset,
            )
            for followed in _take(self._progress, wire.MAX_PROGRESS_PER_REQUEST)
        ]
        removed = _take(self._removed, wire.MAX_PROGRESS_PER_REQUEST)
        more = self._added or self._progress or self._removed
        request = FetchRequest(
            self._session,
            self._sequence,
            self._replicas.registration,
            0 if more else max_wait_ms,
            wire.MAX_RESPONSE_BYTES,
            added,
            progress,
            removed,
        )
        self._sequence += 1
        return request

    @staticmethod
    def _name(followed: Followed) -> Added:
        partition = followed.partition
        return Added(
            followed.slot,
            partition.topic_id,
            partition.index,
            followed.leader_epoch,
            partition.end_offset,
            partition.synced_offset,
            partition.comparable_epoch,
            partition.log_start_offset,
        )

    async def _poll_for_ever(self) -> None:
        pause_s = RETRY_FIRST_S
        while self._slots:
            session = self._session
            try:
                response, records = await self._poll()
            except Exception as error:
                self._replicas.metrics.fetch_errors += 1
                log.info("fetching failed and is tried again", leader=self.leader, error=str(error), pause_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                self._start_session()
                continue
            if session != self._session:
                continue
            if response.session_error:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                self._start_session()
                continue
            pause_s = RETRY_FIRST_S
            self._take_in(response, records)

    async def _poll(self) -> tuple[FetchResponse, list[memoryview]]:
        request = self._request(wire.MAX_WAIT_MS)
        self._polling = True
        try:
            answer = await self._transport.request(
                self.leader,
                wire.FETCH,
                wire.encode_request(request),
                channel="data",
                timeout_s=request.max_wait_ms / 1000 + ANSWER_TIMEOUT_S,
            )
        finally:
            self._polling = False
        self._replicas.metrics.fetches += 1
        return wire.decode_response(answer)

    async def _report(self) -> None:
        """Sends what the leader should know while the poll waits there. A failure shows at the poll, too."""
        while self._polling and (self._added or self._progress or self._removed):
            session = self._session
            request = self._request(0)
            try:
                answer = await self._transport.request(
                    self.leader,
                    wire.REPORT,
                    wire.encode_request(request),
                    channel="data",
                    timeout_s=ANSWER_TIMEOUT_S,
                )
                refused = wire.decode_response(answer)[0].session_error
            except Exception as error:
                log.info("a report to the leader failed", leader=self.leader, error=str(error))
                refused = True
            if refused and session == self._session:
                self._restart()
                return

    async def _say_farewell(self) -> None:
        payload = wire.encode_request(self._request(0))
        try:
            await self._transport.request(self.leader, wire.REPORT, payload, channel="data", timeout_s=ANSWER_TIMEOUT_S)
        except Exception as error:
            log.debug("a leader was not told that it is no longer followed", leader=self.leader, error=str(error))

    def _restart(self) -> None:
        """The session is broken: the poll that waits in it must not be waited for."""
        if self._poller is not None:
            self._poller.cancel()
        self._start_session()
        self._poller = asyncio.get_running_loop().create_task(
            self._poll_after(RETRY_FIRST_S), name=f"fetch from node {self.leader}"
        )

    async def _poll_after(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        await self._poll_for_ever()

    # taking in answers

    def _take_in(self, response: FetchResponse, records: list[memoryview]) -> None:
        for result, data in zip(response.results, records, strict=True):
            followed = self._slots.get(result.slot)
            if followed is None or followed in self._added:
                continue
            verdict = followed.take_in(result, data)
            if len(data):
                self._replicas.metrics.bytes_fetched += len(data)
            if verdict in (Followed.GROWN, Followed.SHORTENED):
                self._progress[followed] = None
            elif verdict == Followed.START_OVER:
                self.follow(followed)
            elif verdict == Followed.REST:
                self._rest_for_a_while(followed)

    def _rest_for_a_while(self, followed: Followed) -> None:
        """The leader will not have this partition, or the disk will not: try again after a pause."""
        self._forget_slot(followed)
        self._resting[followed] = None
        if self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(SLOT_RETRY_S, self._rested)

    def _rested(self) -> None:
        self._rest = None
        resting, self._resting = self._resting, {}
        for followed in resting:
            self.follow(followed)


class Fetchers:
    """All fetchers of a node."""

    def __init__(self, replicas: ReplicaManager, transport: DataTransport) -> None:
        self._replicas = replicas
        self._transport = transport
        self._by_leader: dict[int, LeaderFetcher] = {}
        self._followed: dict[Replica, Followed] = {}

    def follow(self, partition: Partition) -> None:
        """Fetches from the leader that metadata names now, in its epoch."""
        current = self._followed.get(partition)
        if current is not None:
            if (current.leader, current.leader_epoch) == (partition.leader_id, partition.leader_epoch):
                return
            self.leave(partition)
        fetcher = self._by_leader.get(partition.leader_id)
        if fetcher is None:
            fetcher = LeaderFetcher(partition.leader_id, self._replicas, self._transport)
            self._by_leader[partition.leader_id] = fetcher
        followed = Followed(partition, partition.leader_id, partition.leader_epoch, self._replicas.metrics)
        self._followed[partition] = followed
        fetcher.follow(followed)

    def leave(self, partition: Partition) -> None:
        followed = self._followed.pop(partition, None)
        if followed is not None:
            self._by_leader[followed.leader].leave(followed)

    def synced(self, replica: Replica) -> None:
        followed = self._followed.get(replica)
        if followed is not None:
            self._by_leader[followed.leader].synced(followed)

    def stop(self) -> None:
        for fetcher in self._by_leader.values():
            fetcher.stop()
        self._by_leader.clear()
        self._followed.clear()


def _take(waiting: dict[Item, None], limit: int) -> list[Item]:
    """Removes and returns the first few of an ordered set."""
    taken = list(waiting) if len(waiting) <= limit else [item for item, _ in zip(waiting, range(limit), strict=False)]
    if len(taken) == len(waiting):
        waiting.clear()
    else:
        for item in taken:
            del waiting[item]
    return taken
