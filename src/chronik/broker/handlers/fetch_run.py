"""One fetch on its way: read what can be read at once, wait for more, read what is cold from disk, and answer.

What lives here: the order in which partitions are read, the byte budget, waiting and waking. What does not: sessions
(broker/fetch_sessions.py), reading itself (replication, storage), and down-conversion (protocol.records.legacy).

A fetch is exclusive: its connection starts no later request before it is answered, as in Kafka. So each connection
holds at most one fetch response in memory besides what its client has not read yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import structlog

from chronik.broker.context import PendingResponse, RequestContext
from chronik.broker.handlers.leader_hints import current_leader, is_about_leadership, is_out_of_touch
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from chronik.protocol.records import parse_batches
from chronik.protocol.records.legacy import downconvert
from chronik.protocol.wire import Records

if TYPE_CHECKING:
    from chronik.broker.fetch_sessions import FetchSession, Wanted
    from chronik.replication.commits import Waiter
    from chronik.replication.partition import Partition

log = structlog.get_logger(__name__)

READ_COMMITTED = 1
FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_BATCHES = 4
FIRST_VERSION_WITH_MAGIC_1 = 2


class _Read:
    """What one partition gave."""

    __slots__ = ("cold", "data", "limit", "partition", "wanted")

    def __init__(self, wanted: Wanted, data: PartitionData, partition: Partition | None) -> None:
        self.wanted = wanted
        self.data = data
        self.partition = partition
        self.limit = 0  # how many bytes it may have
        self.cold = False  # whether they have to be read from disk

    @property
    def topic(self) -> str:
        return self.partition.topic if self.partition is not None else self.wanted.name


class FetchRun:
    """See the module. Use once: `start`."""

    __slots__ = (
        "_budget",
        "_ctx",
        "_incremental",
        "_pending",
        "_reads",
        "_request",
        "_session",
        "_sizes",
        "_task",
        "_timer",
        "_total",
        "_waiters",
        "_waking",
        "_wanted",
    )

    def __init__(
        self,
        request: FetchRequest,
        ctx: RequestContext,
        wanted: list[Wanted],
        session: FetchSession | None,
        incremental: bool,
    ) -> None:
        self._request = request
        self._ctx = ctx
        self._wanted = wanted
        self._session = session
        self._incremental = incremental
        self._reads: list[_Read] = []
        self._total = 0
        self._budget = 0
        self._pending: PendingResponse | None = None
        self._waiters: list[Waiter] = []
        self._sizes: list[tuple[Partition, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._waking: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> FetchResponse | PendingResponse:
        """Answer now if there is enough, an error, or nothing to wait for; else later."""
        enough, cold = self._read_all()
        final = enough or self._request.max_wait_ms <= 0 or not self._wanted
        if final and not cold and not self._converts:
            return self._response()
        pending = self._pending = PendingResponse(exclusive=True)
        pending.on_abandoned = self._stop
        if cold or (self._converts and final):
            self._start_task()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._request.max_wait_ms / 1000, self._timed_out)
            self._measure()
            self._wait()
        return pending

    @property
    def _converts(self) -> bool:
        return self._ctx.api_version < FIRST_VERSION_WITH_BATCHES

    # --- reading ------------------------------------------------------------------------------------------------

    def _read_all(self) -> tuple[bool, bool]:
        """Read every partition as far as the budget goes, up to the first that is not in memory.

        Returns whether to answer now, and whether there is such a cold one.
        """
        services = self._ctx.services
        self._budget = min(self._request.max_bytes, services.fetch_max_bytes, services.fetch_budget())
        self._reads = []
        self._total = 0
        failed = False
        for wanted in self._wanted:
            read = self._read_one(wanted)
            if read.cold:
                return False, True
            self._reads.append(read)
            failed = failed or read.data.error_code != 0 or read.data.diverging_epoch is not None
        return failed or self._total >= self._request.min_bytes, False

    def _read_one(self, wanted: Wanted) -> _Read:
        asked = wanted.asked
        data = PartitionData(partition_index=asked.partition, high_watermark=-1)
        partition: Partition | None = None
        try:
            partition = self._find(wanted)
            partition.check_epoch(asked.current_leader_epoch)
            partition.require_leader()
            if self._converts:
                self._check_down_conversion(partition)
            diverging = partition.compare(asked.fetch_offset, asked.last_fetched_epoch)
            if diverging is not None:
                data.diverging_epoch = EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
                return _Read(wanted, data, partition)
            return self._read_records(_Read(wanted, data, partition), partition)
        except KafkaError as error:
            self._refuse(data, error, partition.topic if partition is not None else wanted.name)
        except Exception as error:
            log.error("a read failed unexpectedly", partition=repr(partition), exc_info=error)
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The read failed; the broker's log says why.")
            self._refuse(data, unknown, wanted.name)
        return _Read(wanted, data, partition)

    def _read_records(self, read: _Read, partition: Partition) -> _Read:
        asked, data = read.wanted.asked, read.data
        first = self._total == 0
        read.limit = max(0, min(asked.partition_max_bytes, self._budget - self._total))
        if read.limit > 0 or first:
            records = partition.read_nowait(
                asked.fetch_offset, read.limit, isolation=self._request.isolation_level, at_least_one=first
            )
            if records is None:
                read.cold = True
                return read
            data.records = records
            self._total += len(records)
        self._describe(data, partition, asked.fetch_offset)
        return read

    async def _read_cold(self, read: _Read) -> None:
        partition, asked, data = read.partition, read.wanted.asked, read.data
        assert partition is not None
        data.records = await partition.read(
            asked.fetch_offset,
            read.limit,
            isolation=self._request.isolation_level,
            at_least_one=self._total == 0,
        )
        self._total += len(data.records)
        self._describe(data, partition, asked.fetch_offset)

    def _describe(self, data: PartitionData, partition: Partition, fetch_offset: int) -> None:
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = partition.last_stable_offset
        data.log_start_offset = partition.log_start_offset
        if self._request.isolation_level != READ_COMMITTED:
            data.aborted_transactions = None
        elif data.records:
            data.aborted_transactions = self._aborted(partition, data, fetch_offset)

    def _aborted(self, partition: Partition, data: PartitionData, fetch_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that touch the records of this answer."""
        aborted = partition.log.aborted_transactions(fetch_offset, data.last_stable_offset)
        if not aborted:
            return []
        batches = parse_batches(data.records, check_crc=False, allow_partial=True)  # type: ignore[arg-type]
        end = batches[-1].next_offset if batches else fetch_offset
        return [
            AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in aborted
            if first_offset < end
        ]

    def _find(self, wanted: Wanted) -> Partition:
        services = self._ctx.services
        name = wanted.name
        if self._ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic = services.store.image.topics_by_id.get(wanted.topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            name = topic.name
        return services.replicas.partition(name, wanted.asked.partition)

    def _check_down_conversion(self, partition: Partition) -> None:
        if not self._ctx.services.configs.topic_settings(partition.topic).message_downconversion_enable:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Topic {partition.topic} is not served in old formats (message.downconversion.enable); "
                "upgrade the consumer.",
            )

    def _refuse(self, data: PartitionData, error: KafkaError, topic: str) -> None:
        self._ctx.outcome = error.code
        data.error_code = error.code
        data.records = b""
        if is_about_leadership(error.code):
            if is_out_of_touch(self._ctx.services):
                # As for producers: this node believes that it leads, and who knows no other would ask it for ever.
                self._ctx.connection.close()
            hint = current_leader(self._ctx.services.store.image, topic, data.partition_index)
            if hint is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=hint[0], leader_epoch=hint[1])

    # --- waiting ------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Ask every partition to wake us once there is more to read."""
        for read in self._reads:
            if read.partition is not None:
                self._waiters.append(read.partition.add_waiter(self._woken))

    def _measure(self) -> None:
        """Note how large the logs were when they were read."""
        self._sizes.clear()
        for read in self._reads:
            if read.partition is not None:
                opened = read.partition.opened_log
                self._sizes.append((read.partition, opened.size_bytes if opened is not None else 0))

    def _woken(self) -> None:
        """Called by the first partition that has more; the reading waits until this loop turn's appends are done."""
        if self._waking is None and self._pending is not None:
            self._waking = asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._waking = None
        if self._pending is None or self._pending.finished:
            return
        if self._may_suffice():
            enough, cold = self._read_all()
            if cold or (enough and self._converts):
                self._start_task()
                return
            if enough:
                self._finish()
                return
            self._measure()
        self._leave()
        self._wait()

    def _may_suffice(self) -> bool:
        """A cheap look at log sizes, so that a fetch that wants a megabyte does not read at every append."""
        if self._request.min_bytes <= 1:
            return True
        grown = 0
        for partition, size in self._sizes:
            opened = partition.opened_log
            if not partition.is_leader or opened is None or opened.size_bytes < size:
                return True
            grown += opened.size_bytes - size
        return self._total + grown >= self._request.min_bytes

    def _timed_out(self) -> None:
        """Time is up: answer with what there is now."""
        if self._pending is None or self._pending.finished:
            return
        self._leave()
        _, cold = self._read_all()
        if cold or self._converts:
            self._start_task()
        else:
            self._finish()

    def _leave(self) -> None:
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    def _stop(self) -> None:
        """The client is gone, or has been answered."""
        self._leave()
        if self._timer is not None:
            self._timer.cancel()
        if self._waking is not None:
            self._waking.cancel()

    # --- what the loop must not do ------------------------------------------------------------------------------

    def _start_task(self) -> None:
        self._stop()
        self._task = asyncio.get_running_loop().create_task(self._finish_off_loop())

    async def _finish_off_loop(self) -> None:
        """Read what is cold, convert for old consumers, answer."""
        for wanted in self._wanted[len(self._reads) :]:
            read = self._read_one(wanted)
            self._reads.append(read)
            if read.cold:
                await self._guarded(read, self._read_cold(read))
        if self._converts:
            for read in self._reads:
                if read.data.records:
                    await self._guarded(read, self._convert(read))
        self._finish()

    async def _guarded(self, read: _Read, work: Awaitable[None]) -> None:
        """What goes wrong with one partition stays with it."""
        try:
            await work
        except KafkaError as error:
            self._refuse(read.data, error, read.topic)
        except Exception as error:
            log.error("a read failed unexpectedly", partition=repr(read.partition), exc_info=error)
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The read failed; the broker's log says why.")
            self._refuse(read.data, unknown, read.topic)

    async def _convert(self, read: _Read) -> None:
        magic = 1 if self._ctx.api_version >= FIRST_VERSION_WITH_MAGIC_1 else 0
        read.data.records = await asyncio.get_running_loop().run_in_executor(
            self._ctx.services.executor, _down_converted, read.data.records, magic, read.wanted.asked.fetch_offset
        )

    # --- answering ----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        pending = self._pending
        self._stop()
        if pending is not None:
            pending.finish(self._response())

    def _response(self) -> FetchResponse:
        session = self._session
        response = FetchResponse(session_id=session.id if session is not None else 0)
        if session is not None and not self._ctx.services.fetch_sessions.is_open(session):
            response.session_id = 0
        topics = response.responses
        last: FetchableTopicResponse | None = None
        sent = 0
        for read in self._reads:
            wanted, data = read.wanted, read.data
            if session is not None:
                news = wanted.is_news(data)
                if self._incremental and not news:
                    continue
                if data.records:
                    session.served(wanted)
            sent += len(data.records) if data.records else 0
            if last is None or last.topic != wanted.name or last.topic_id != wanted.topic_id:
                last = FetchableTopicResponse(topic=wanted.name, topic_id=wanted.topic_id)
                topics.append(last)
            last.partitions.append(data)
            if data.current_leader is not None:
                self._add_endpoint(response, data.current_leader.leader_id)
        self._ctx.services.metrics.fetch_bytes += sent
        return response

    def _add_endpoint(self, response: FetchResponse, node_id: int) -> None:
        broker = self._ctx.services.store.image.brokers.get(node_id)
        if broker is not None and all(endpoint.node_id != node_id for endpoint in response.node_endpoints):
            response.node_endpoints.append(
                NodeEndpoint(node_id=node_id, host=broker.host, port=broker.port, rack=broker.rack)
            )


def _down_converted(records: Records | None, magic: int, first_offset: int) -> Records | None:
    assert records is not None and not isinstance(records, list)
    return downconvert(records, magic, first_offset=first_offset)
