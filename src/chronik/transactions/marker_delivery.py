"""Markers on their way from the coordinator to the leaders of the partitions of a transaction.

What is decided is carried out: delivery goes on, with bounded pauses, until every partition has its marker or is gone,
or this node no longer coordinates. Markers for one node that are wanted in the same turn of the loop share a request.
All requests to a node use one connection, in order, and it handles them as they arrive: an attempt that was given up
cannot overtake a later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import structlog

from chronik.metadata.model import NO_LEADER
from chronik.protocol.codec import decode, encode
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from chronik.transactions.state import Place, Transaction

if TYPE_CHECKING:
    from chronik.metadata.store import MetadataStore
    from chronik.transactions.marker_writer import MarkerWriter

log = structlog.get_logger()

MARKERS = "txn_markers"
"""The request between nodes: WriteTxnMarkers as Kafka encodes it."""
WIRE_VERSION = 2
REQUEST_TIMEOUT_S = 6.0
PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 1.0
MARKERS_PER_REQUEST_MAX = 1000
BARRIER_TIMEOUT_S = 3.0


class Peers(Protocol):
    """Requests to other nodes, as the transport makes them."""

    async def request(self, peer: int, kind: str, payload: bytes, *, timeout_s: float) -> bytes | memoryview: ...

    def serve(self, kind: str, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None: ...


class MarkerDelivery:
    """Carries the decisions of this node's coordinator to all partitions."""

    def __init__(self, node_id: int, store: MetadataStore, peers: Peers, writer: MarkerWriter) -> None:
        self._node_id = node_id
        self._store = store
        self._peers = peers
        self._writer = writer
        self._outboxes: dict[int, _Outbox] = {}
        self.retries = 0
        peers.serve(MARKERS, self._serve)

    async def deliver(self, txn: Transaction, coordinator_epoch: Callable[[], int]) -> None:
        """Returns when no partition of the prepared transaction lacks its marker."""
        left = set(txn.partitions)
        pause = PAUSE_FIRST_S
        while left:
            codes = await self._attempt(txn, left, coordinator_epoch())
            failed: dict[Place, ErrorCode] = {}
            for place, code in codes.items():
                if code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
                    left.discard(place)
                    if code:
                        log.warning(
                            "a partition needs no marker any more: its log has a newer epoch of the producer",
                            transactional_id=txn.transactional_id,
                            topic=place[0],
                            partition=place[1],
                        )
                else:
                    failed[place] = code
            if left:
                self.retries += 1
                if pause >= PAUSE_MAX_S:
                    place, code = next(iter(failed.items()))
                    log.warning(
                        "markers of a transaction cannot be written yet; trying again",
                        transactional_id=txn.transactional_id,
                        partitions=len(left),
                        first=f"{place[0]}-{place[1]}",
                        error=code.name,
                    )
                await asyncio.sleep(pause)
                pause = min(pause * 2, PAUSE_MAX_S)

    async def _attempt(self, txn: Transaction, places: set[Place], coordinator_epoch: int) -> dict[Place, ErrorCode]:
        """One try for every place."""
        codes: dict[Place, ErrorCode] = {}
        by_node: dict[int, list[Place]] = {}
        image = self._store.image
        for place in sorted(places):
            info = image.partition(*place)
            if info is None:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif info.leader == NO_LEADER:
                codes[place] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                by_node.setdefault(info.leader, []).append(place)
        if any(code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for code in codes.values()):
            await self._forgive_deleted(codes)
        answers = await asyncio.gather(
            *(self._send(node, _marker(txn, here, coordinator_epoch), here) for node, here in by_node.items())
        )
        for answer in answers:
            codes.update(answer)
        return codes

    async def _forgive_deleted(self, codes: dict[Place, ErrorCode]) -> None:
        """A partition that is gone needs no marker; one that is only not known here yet does."""
        try:
            await self._store.read_barrier(BARRIER_TIMEOUT_S)
        except Exception as error:
            log.info("cannot tell yet whether a topic was deleted", reason=str(error))
            return
        for place, code in codes.items():
            if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._store.image.partition(*place) is None:
                codes[place] = ErrorCode.NONE

    async def _send(self, node: int, marker: WritableTxnMarker, places: list[Place]) -> dict[Place, ErrorCode]:
        if node == self._node_id:
            (result,) = await self._writer.write([marker])
        else:
            outbox = self._outboxes.get(node)
            if outbox is None:
                outbox = self._outboxes[node] = _Outbox(node, self._peers)
            try:
                result = await outbox.send(marker)
            except KafkaError as error:
                return dict.fromkeys(places, error.code)
        codes = dict.fromkeys(places, ErrorCode.UNKNOWN_SERVER_ERROR)
        for topic in result.topics:
            for answer in topic.partitions:
                codes[topic.name, answer.partition_index] = ErrorCode(answer.error_code)
        return codes

    def _serve(self, peer: int, payload: bytes) -> Awaitable[bytes]:
        """Another node's markers: appended before this returns, answered when they are committed."""
        request = decode(WriteTxnMarkersRequest, WIRE_VERSION, payload)
        return self._answer(self._writer.write(request.markers))

    @staticmethod
    async def _answer(written: asyncio.Future[list[WritableTxnMarkerResult]]) -> bytes:
        return encode(WriteTxnMarkersResponse(markers=await written), WIRE_VERSION)


class _Outbox:
    """Markers for one other node, gathered per turn of the loop."""

    def __init__(self, node: int, peers: Peers) -> None:
        self._node = node
        self._peers = peers
        self._queue: list[tuple[WritableTxnMarker, asyncio.Future[WritableTxnMarkerResult]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, marker: WritableTxnMarker) -> asyncio.Future[WritableTxnMarkerResult]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[WritableTxnMarkerResult] = loop.create_future()
        if not self._queue:
            loop.call_soon(self._flush)
        self._queue.append((marker, done))
        return done

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        for first in range(0, len(queue), MARKERS_PER_REQUEST_MAX):
            part = queue[first : first + MARKERS_PER_REQUEST_MAX]
            task = asyncio.get_running_loop().create_task(self._request(part))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request(self, part: list[tuple[WritableTxnMarker, asyncio.Future[WritableTxnMarkerResult]]]) -> None:
        request = WriteTxnMarkersRequest(markers=[marker for marker, _ in part])
        try:
            payload = await self._peers.request(
                self._node, MARKERS, encode(request, WIRE_VERSION), timeout_s=REQUEST_TIMEOUT_S
            )
            results = decode(WriteTxnMarkersResponse, WIRE_VERSION, payload).markers
            if len(results) != len(part):
                raise ValueError(f"{len(results)} answers to {len(part)} markers")
        except Exception as error:
            log.info("another node did not take markers", node=self._node, markers=len(part), reason=str(error))
            for _, done in part:
                if not done.done():
                    done.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)))
            return
        for (_, done), result in zip(part, results, strict=True):
            if not done.done():
                done.set_result(result)


def _marker(txn: Transaction, places: list[Place], coordinator_epoch: int) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        transaction_result=txn.commits,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()],
        coordinator_epoch=coordinator_epoch,
        transaction_version=txn.client_version,
    )
