"""Reading a partition of an internal topic into the state that is kept in it, one partition after the other, a little
per turn of the loop.

Rules:
1. A shard is active only when everything that was read is also committed: what this node answers from it can then not
   be lost any more, whoever leads next.
2. Whatever is appended while a shard is loading (markers of transactions are) is read too: when it becomes active,
   nothing is in the log that it does not know.
3. Nothing is read twice into a shard: a load that failed goes on where it stopped. From the start again, the marker of
   an earlier transaction would end a later one of its producer that was read before the failure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import structlog

from chronik.protocol.errors import KafkaError
from chronik.protocol.records import parse_batches, read_records
from chronik.protocol.records.control import read_end_transaction_marker

if TYPE_CHECKING:
    from chronik.protocol.records import BatchInfo
    from chronik.replication.partition import Partition

log = structlog.get_logger()

CHUNK_BYTES = 64 * 1024
TURN_RECORDS = 300
"""So many records are taken in before others get their turn on the loop: a few milliseconds."""
RETRY_S = 0.5
LOADER = 0
"""A replica id that is nobody's: it reads to the end of the log."""


class Status(Enum):
    """Whether a shard answers for what is kept in its partition."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class Shard(Protocol):
    """State that is kept in one partition."""

    status: Status

    @property
    def partition(self) -> Partition: ...

    def replay(self, key: bytes | None, value: bytes | None, log_offset: int, producer_id: int | None) -> None:
        """Takes in one record; `producer_id` when it belongs to a transaction."""
        ...

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """Takes in the end of a transaction."""
        ...

    def resume(self) -> None:
        """Everything is read: the shard becomes active."""
        ...

    def loaded(self) -> dict[str, int]:
        """What loading brought, for the log."""
        ...


class Loader:
    """Loads shards in the order in which they were given."""

    def __init__(self) -> None:
        self._queue: deque[Shard] = deque()
        self._reached: dict[Shard, int] = {}
        """Up to where the shards that are not loaded yet were read (Rule 3)."""
        self._task: asyncio.Task[None] | None = None

    def load(self, shard: Shard) -> None:
        """An empty log is loaded at once; others wait for their turn."""
        partition = shard.partition
        if partition.end_offset == partition.log_start_offset:
            shard.resume()
            return
        self._queue.append(shard)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._queue:
            shard = self._queue.popleft()
            try:
                if shard.status is Status.LOADING:
                    await self._load(shard)
            except KafkaError as error:
                if shard.status is Status.LOADING:
                    log.error(
                        "a partition cannot be loaded; trying again",
                        topic=shard.partition.topic,
                        partition=shard.partition.index,
                        reason=error.message,
                    )
                    self._queue.append(shard)
                    await asyncio.sleep(RETRY_S)
                    continue
            except Exception:
                log.exception(
                    "a partition cannot be loaded", topic=shard.partition.topic, partition=shard.partition.index
                )
            self._reached.pop(shard, None)

    async def _load(self, shard: Shard) -> None:
        started = monotonic()
        partition = shard.partition
        while shard.status is Status.LOADING:
            end = partition.end_offset
            await self._read(shard, end)
            await self._until_committed(shard, end)
            if partition.end_offset == end:
                break
        if shard.status is not Status.LOADING:
            return
        shard.resume()
        log.info(
            "coordinating what is in a partition",
            topic=partition.topic,
            partition=partition.index,
            records=end - partition.log_start_offset,
            milliseconds=int((monotonic() - started) * 1000),
            **shard.loaded(),
        )

    async def _read(self, shard: Shard, end: int) -> None:
        partition = shard.partition
        position = max(self._reached.get(shard, 0), partition.log_start_offset)
        in_turn = 0
        while position < end and shard.status is Status.LOADING:
            data = partition.read_nowait(position, CHUNK_BYTES, replica_id=LOADER)
            if data is None:
                data = await partition.read(position, CHUNK_BYTES, replica_id=LOADER)
            if not data:
                break
            for batch in parse_batches(data, check_crc=False):
                _replay(shard, memoryview(data)[batch.position : batch.position + batch.size], batch, position)
                position = self._reached[shard] = batch.last_offset + 1
                in_turn += batch.record_count
                if in_turn >= TURN_RECORDS:
                    await asyncio.sleep(0)
                    in_turn = 0

    @staticmethod
    async def _until_committed(shard: Shard, end: int) -> None:
        partition = shard.partition
        committed = partition.committed(end)
        if committed is None:
            return
        try:
            await committed
        except KafkaError:
            if not (partition.is_leader and partition.high_watermark >= end):
                raise


def _replay(shard: Shard, data: memoryview, batch: BatchInfo, position: int) -> None:
    if not batch.record_count:
        return  # compaction has emptied it
    if batch.is_control:
        marker = read_end_transaction_marker(data)
        if marker is not None:
            shard.replay_marker(batch.producer_id, marker.committed)
        return
    producer_id = batch.producer_id if batch.is_transactional else None
    for record in read_records(data):
        if record.offset >= position:
            shard.replay(record.key, record.value, record.offset, producer_id)
