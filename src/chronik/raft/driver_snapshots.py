"""Snapshots in motion: when one is taken, how a follower fetches one, how a leader hands it out.

Taking: the state machine captures its state on the loop, which is cheap; encoding, writing and syncing happen on the
snapshot thread while the loop goes on. One at a time, one per threshold. Fetching: the follower pulls chunks over the
data connection and goes on where it stopped when the connection is lost; memory holds one chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from chronik.raft.driver_apply import Applier, StateMachine
from chronik.raft.driver_group import Group
from chronik.raft.driver_worker import Worker
from chronik.raft.snapshots import SNAPSHOT_CHUNK_BYTES, SNAPSHOTS_KEPT, SnapshotCorrupt
from chronik.raft.storage import RaftStorage, StorageError
from chronik.raft.transport_frames import PeerError, RemoteError
from chronik.raft.types import SnapshotChunk, SnapshotChunkRequest, SnapshotFetch, SnapshotMeta

log = structlog.get_logger()

FETCH_CHUNK = "raft.snapshot"
CHUNK_TIMEOUT_S = 10.0
FETCH_RETRY_S = 0.2
FETCH_FRUITLESS_MAX = 50
TAKE_AGAIN_AFTER_S = 30.0

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(SnapshotChunkRequest).decode
_decode_chunk = msgspec.msgpack.Decoder(SnapshotChunk).decode


class SnapshotMaker:
    """Takes snapshots of this node's own state machine, and trims the log behind them."""

    def __init__(
        self,
        group: Group,
        storage: RaftStorage,
        state_machine: StateMachine,
        applier: Applier,
        log_worker: Worker,
        snapshot_worker: Worker,
        pinned: Callable[[], set[int]],
    ) -> None:
        self._group = group
        self._storage = storage
        self._state_machine = state_machine
        self._applier = applier
        self._log_worker = log_worker
        self._snapshot_worker = snapshot_worker
        self._pinned = pinned
        self._taking = False
        self._not_before = 0.0
        self._last_index = group.core.log.snapshot.index
        self.taken = 0

    def installed(self, meta: SnapshotMeta) -> None:
        """A leader's snapshot counts as the last one taken."""
        self._last_index = max(self._last_index, meta.index)

    def take_if_due(self) -> None:
        """Takes a snapshot when the threshold is reached and none is being taken."""
        applier, settings = self._applier, self._group.settings
        due = (
            applier.index - self._last_index >= settings.snapshot_entries
            or applier.bytes_since_snapshot >= settings.snapshot_bytes
        )
        # The core counts an entry as applied when it has been told so, a moment later than the applier.
        behind = self._group.core.applied < applier.index or applier.index <= self._last_index
        if not due or self._taking or behind or applier.is_between_slices or self._group.loop.time() < self._not_before:
            return
        meta = self._group.core.snapshot_meta(applier.index)
        encode = self._state_machine.snapshot()
        pinned = self._pinned()
        self._taking = True
        self._last_index = meta.index
        applier.bytes_since_snapshot = 0

        def work() -> tuple[SnapshotMeta, int]:
            written = self._storage.snapshots.write(meta, [encode()])
            oldest = self._storage.snapshots.prune(pinned)
            enough = oldest is not None and len(self._storage.snapshots.kept) >= SNAPSHOTS_KEPT
            return written, oldest.index if oldest is not None and enough else 0

        self._snapshot_worker.submit(work, self._written)

    def _written(self, result: tuple[SnapshotMeta, int] | None, error: BaseException | None) -> None:
        self._taking = False
        if result is None:
            self._not_before = self._group.loop.time() + TAKE_AGAIN_AFTER_S
            self._last_index = self._group.core.log.snapshot.index
            log.error(
                "a snapshot of the metadata could not be written; the log grows until one can",
                reason=str(error),
                again_in_s=TAKE_AGAIN_AFTER_S,
            )
            return
        meta, trim_index = result
        if self._group.out is not None:
            return
        self.taken += 1
        self._group.core.compact(meta, self._group.settings.retained_entries)
        log.info("wrote a snapshot of the metadata", index=meta.index, term=meta.term, bytes=meta.size)
        if trim_index:
            self._log_worker.submit(lambda: self._storage.trim(trim_index), self._trimmed)
        self.take_if_due()

    def _trimmed(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            log.warning("the consensus log could not be trimmed", reason=str(error))


class SnapshotFetcher:
    """Fetches the snapshot that the core asked for last, and serves chunks of this node's own."""

    def __init__(self, group: Group, storage: RaftStorage, snapshot_worker: Worker) -> None:
        self._group = group
        self._storage = storage
        self._worker = snapshot_worker
        self._task: asyncio.Task[None] | None = None
        self._pins: dict[int, float] = {}
        group.transport.serve(FETCH_CHUNK, self._serve)

    # --- a follower --------------------------------------------------------------------------------------------------

    def fetch(self, fetch: SnapshotFetch) -> None:
        """Fetch this one; a transfer that is under way is given up."""
        if self._task is not None:
            self._task.cancel()
        self._task = self._group.loop.create_task(self._run(fetch), name="fetch a snapshot")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, fetch: SnapshotFetch) -> None:
        meta, core = fetch.snapshot, self._group.core
        log.info("fetching a snapshot", source=fetch.source, index=meta.index, bytes=meta.size)
        try:
            await self._transfer(fetch)
        except (PeerError, StorageError, SnapshotCorrupt, OSError, msgspec.DecodeError) as error:
            log.warning("a snapshot could not be fetched; the leader will offer it again", reason=str(error))
            core.snapshot_fetch_failed(meta)
            self._group.touch()
            return
        log.info("fetched a snapshot", source=fetch.source, index=meta.index, bytes=meta.size)
        if not core.snapshot_fetched(meta):
            await self._worker.run(self._storage.snapshots.stop_receiving)
        self._group.touch()

    async def _transfer(self, fetch: SnapshotFetch) -> None:
        meta, snapshots = fetch.snapshot, self._storage.snapshots
        offset = await self._worker.run(lambda: snapshots.receive(meta))
        fruitless = 0
        while offset < meta.size:
            request = SnapshotChunkRequest(meta.index, meta.term, offset, SNAPSHOT_CHUNK_BYTES)
            try:
                answer = await self._group.transport.request(
                    fetch.source, FETCH_CHUNK, _encode(request), channel="data", timeout_s=CHUNK_TIMEOUT_S
                )
            except PeerError as error:
                fruitless += 1
                if fruitless >= FETCH_FRUITLESS_MAX or not error.retriable:
                    raise
                await asyncio.sleep(FETCH_RETRY_S)
                continue
            chunk = _decode_chunk(answer)
            if not chunk.available or not chunk.data:
                raise SnapshotCorrupt(f"node {fetch.source} no longer has the snapshot through entry {meta.index}")
            fruitless = 0
            offset = await self._worker.run(_receive(snapshots.receive_chunk, offset, chunk.data))
        await self._worker.run(lambda: snapshots.finish_receiving(meta))

    # --- a leader ----------------------------------------------------------------------------------------------------

    def pinned(self) -> set[int]:
        """The indexes of snapshots that somebody is fetching from here."""
        now = self._group.loop.time()
        self._pins = {index: until for index, until in self._pins.items() if until > now}
        return set(self._pins)

    async def _serve(self, peer: int, payload: bytes) -> bytes:
        request = _decode_request(payload)
        if request.offset < 0 or request.max_bytes < 1:
            raise RemoteError("bad_request", f"there is no chunk at {request.offset} of {request.max_bytes} bytes")
        self._pins[request.index] = self._group.loop.time() + self._group.settings.snapshot_pinned_s
        snapshots = self._storage.snapshots
        chunk = await self._worker.run(
            lambda: snapshots.read_chunk(request.index, request.term, request.offset, request.max_bytes)
        )
        if not chunk.available:
            self._pins.pop(request.index, None)
        return _encode(chunk)


def _receive(take: Callable[[int, bytes], int], offset: int, data: bytes) -> Callable[[], int]:
    return lambda: take(offset, data)
