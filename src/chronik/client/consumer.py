"""Reading assigned partitions: raw batches as they lie in the log, or decoded records.

A `Consumer` reads from the leaders of its partitions over connections of its own, with one fetch under way per leader,
sent ahead while the caller works on what came before. It follows leaders that change. Groups, their assignments and
commits are not part of it; `admin.groups` reads and sets committed offsets. Belongs to one thread.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from chronik.client.cluster import Cluster
from chronik.client.connection import Connection
from chronik.client.errors import (
    ClientError,
    ConnectionFailed,
    NoBrokerReachable,
    OffsetOutOfRange,
    RequestTimedOut,
    error_for_code,
)
from chronik.client.fetched import ConsumerRecord, FetchedBatches
from chronik.client.metadata import Broker, TopicPartition
from chronik.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from chronik.client.retry import Attempts
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from chronik.protocol.records import parse_batches
from chronik.protocol.wire import ZERO_UUID

log = logging.getLogger(__name__)

_NEWEST_WITH_TOPIC_NAMES = 12


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 64 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024
    check_crc: bool = True
    out_of_range: int | None = None
    """Where to go on when an offset is gone: EARLIEST or LATEST; None raises `OffsetOutOfRange`."""


class _UnderWay(msgspec.Struct):
    """A fetch that was sent to a leader and not answered yet."""

    offsets: dict[TopicPartition, int]
    names: dict[bytes, str]
    sent_at: float


class Consumer:
    """Reads partitions from given offsets on, for as long as it is asked.

    A position may be EARLIEST or LATEST; it is looked up when the consumer is made.
    """

    def __init__(
        self, cluster: Cluster, positions: Mapping[TopicPartition, int], settings: ConsumerSettings | None = None
    ) -> None:
        self.cluster = cluster
        self.settings = settings or ConsumerSettings()
        self._positions = {TopicPartition(*place): offset for place, offset in positions.items()}
        if not self._positions:
            raise ValueError("a consumer needs at least one partition to read")
        relative = {place: offset for place, offset in self._positions.items() if offset < 0}
        if relative:
            found = list_offsets(cluster, relative, isolation=self.settings.isolation)
            self._positions.update({place: at.offset for place, at in found.items()})
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Broker, Connection] = {}
        self._under_way: dict[Broker, _UnderWay] = {}
        self._attempts: dict[TopicPartition, Attempts] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._errors: deque[Exception] = deque()
        self._turn = 0

    def close(self) -> None:
        """Close the connections. What was under way is given up; positions stay as they are."""
        for broker in list(self._connections):
            self._disconnect(broker)
        self._selector.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def position(self, place: TopicPartition) -> int:
        """The offset that is read next."""
        return self._positions[place]

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Read from another offset next."""
        if place not in self._positions:
            raise ValueError(f"{place} is not among the partitions of this consumer")
        self._positions[place] = offset

    def poll(self, timeout_s: float = 1.0) -> list[ConsumerRecord]:
        """The next records, or none when nothing came within `timeout_s`. Aborted ones are left out if asked to.

        A fetch may hold nothing to see (markers, aborted records); then the wait goes on.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.fetch(max(deadline - time.monotonic(), 0.0))
            records = [record for fetched in found for record in fetched.records()]
            if records or not found:
                return records

    def fetch(self, timeout_s: float = 1.0) -> list[FetchedBatches]:
        """The next batches of whichever partitions have some, or none when nothing came within `timeout_s`.

        Raises `OffsetOutOfRange` where an offset is gone, KafkaError or ClientError where a partition cannot be read
        in spite of retries. What other partitions brought is returned first.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if self._errors:
                raise self._errors.popleft()
            self._send_fetches()
            found = self._receive_ready(deadline)
            if found:
                self._send_fetches()
                return found
            if not self._errors and time.monotonic() >= deadline:
                return []

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send_fetches(self) -> None:
        """Send a fetch to every leader that has none under way, for the partitions that are not waiting."""
        now = time.monotonic()
        busy = {place for fetch in self._under_way.values() for place in fetch.offsets}
        idle = [place for place in self._positions if place not in busy and self._not_before.get(place, 0.0) <= now]
        for broker, places in self._leaders(idle).items():
            if broker not in self._under_way:
                try:
                    self._send_fetch(broker, places)
                except ConnectionFailed as error:
                    self._lost(broker, places, error)

    def _leaders(self, places: list[TopicPartition]) -> dict[Broker, list[TopicPartition]]:
        """Places by leader. Asks the cluster at most once; places without a leader wait for their next try."""
        grouped: dict[Broker, list[TopicPartition]] = {}
        missing = {place.topic for place in places if not self.cluster.knows(place.topic)}
        if missing:
            try:
                self.cluster.refresh(missing)
            except (KafkaError, ConnectionFailed, NoBrokerReachable) as error:
                for place in places:
                    self._failed(place, error)
                return {}
        for place in places:
            try:
                grouped.setdefault(self.cluster.metadata.leader(place), []).append(place)
            except KafkaError as error:
                self._failed(place, error)
        return grouped

    def _send_fetch(self, broker: Broker, places: list[TopicPartition]) -> None:
        connection = self._connections.get(broker)
        if connection is None:
            connection = self._connections[broker] = self.cluster.connect(broker)
            self._selector.register(connection, selectors.EVENT_READ, broker)
        self._turn += 1
        first = self._turn % len(places)  # brokers fill an answer in this order: every partition gets to be first
        topics: dict[str, FetchTopic] = {}
        for place in [*places[first:], *places[:first]]:
            known = self.cluster.metadata.topic(place.topic)
            topic = topics.get(place.topic)
            if topic is None:
                topic = topics[place.topic] = FetchTopic(topic=place.topic, topic_id=known.topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=place.partition,
                    current_leader_epoch=known.partitions[place.partition].leader_epoch,
                    fetch_offset=self._positions[place],
                    partition_max_bytes=self.settings.partition_max_bytes,
                )
            )
        request = FetchRequest(
            max_wait_ms=self.settings.max_wait_ms,
            min_bytes=self.settings.min_bytes,
            max_bytes=self.settings.max_bytes,
            isolation_level=self.settings.isolation,
            topics=list(topics.values()),
        )
        ids_known = all(topic.topic_id != ZERO_UUID for topic in topics.values())
        connection.send(request, newest=None if ids_known else _NEWEST_WITH_TOPIC_NAMES)
        self._under_way[broker] = _UnderWay(
            {place: self._positions[place] for place in places},
            {topic.topic_id: name for name, topic in topics.items()},
            time.monotonic(),
        )

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _receive_ready(self, deadline: float) -> list[FetchedBatches]:
        """Wait until an answer comes, a waiting partition may be tried again, or the deadline passes."""
        now = time.monotonic()
        until = min([deadline, *(at for at in self._not_before.values() if at > now)])
        found: list[FetchedBatches] = []
        for key, _ in self._selector.select(max(until - now, 0.0)):
            broker: Broker = key.data
            fetch = self._under_way.pop(broker, None)
            if fetch is None:  # readable without a question: the broker closed an idle connection
                self._disconnect(broker)
                continue
            try:
                answer = self._connections[broker].receive(FetchResponse)
            except ConnectionFailed as error:
                self._lost(broker, list(fetch.offsets), error)
                continue
            found += self._take(fetch, answer)
        self._give_up_on_silent()
        return found

    def _take(self, fetch: _UnderWay, answer: FetchResponse) -> list[FetchedBatches]:
        found: list[FetchedBatches] = []
        if answer.error_code:
            for place in fetch.offsets:
                self._failed(place, error_for_code(answer.error_code, f"reading {place}"))
        for topic in answer.responses:
            name = topic.topic or fetch.names.get(topic.topic_id, "")
            for data in topic.partitions:
                place = TopicPartition(name, data.partition_index)
                asked = fetch.offsets.get(place)
                if asked is None or self._positions[place] != asked:
                    continue  # not asked for, or the position moved by seek
                try:
                    fetched = self._read(place, asked, data)
                except (KafkaError, ClientError) as error:
                    self._failed(place, error)
                    continue
                self._attempts.pop(place, None)
                self._not_before.pop(place, None)
                if fetched is not None:
                    self._positions[place] = fetched.next_offset
                    found.append(fetched)
        return found

    def _read(self, place: TopicPartition, offset: int, data: PartitionData) -> FetchedBatches | None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(place, offset)
            return None
        if data.error_code:
            raise error_for_code(data.error_code, f"reading {place} from offset {offset}")
        records = data.records
        if not records:
            return None
        view = memoryview(records)  # type: ignore[arg-type]  # decoded records are one buffer, never a list
        batches = parse_batches(view, check_crc=self.settings.check_crc, allow_partial=True)
        if not batches:
            raise ClientError(
                f"the batch of {place} at offset {offset} is larger than partition_max_bytes "
                f"({self.settings.partition_max_bytes}); raise it"
            )
        batches = [info for info in batches if info.last_offset >= offset]
        if not batches:
            return None
        aborted = [(t.producer_id, t.first_offset) for t in data.aborted_transactions or ()]
        return FetchedBatches(
            place,
            offset,
            view,
            batches,
            aborted,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
        )

    # -- when things go wrong -----------------------------------------------------------------------------------------

    def _out_of_range(self, place: TopicPartition, offset: int) -> None:
        if self.settings.out_of_range is not None:
            found = list_offsets(self.cluster, {place: self.settings.out_of_range}, isolation=self.settings.isolation)
            self._positions[place] = found[place].offset
            log.warning("offset %d of %s is gone, going on at %d", offset, place, found[place].offset)
            return
        earliest = list_offsets(self.cluster, {place: EARLIEST})[place].offset
        latest = list_offsets(self.cluster, {place: LATEST})[place].offset
        raise OffsetOutOfRange(place.topic, place.partition, offset, earliest, latest)

    def _failed(self, place: TopicPartition, error: Exception) -> None:
        """Have a partition wait before its next try, or keep the error for the caller when that is of no use."""
        self.cluster.doubt(place.topic)
        attempts = self._attempts.get(place)
        if attempts is None:
            attempts = self._attempts[place] = Attempts(f"reading {place}", self.cluster.settings.retry)
        try:
            self._not_before[place] = time.monotonic() + attempts.pause_after(error)
        except (KafkaError, ClientError) as final:
            self._errors.append(final)
            # A caller that catches the error and goes on finds the partition waiting, not hammering.
            self._not_before[place] = time.monotonic() + self.cluster.settings.retry.longest_pause_s
            del self._attempts[place]

    def _lost(self, broker: Broker, places: Iterable[TopicPartition], error: Exception) -> None:
        self._disconnect(broker)
        for place in places:
            self._failed(place, error)

    def _disconnect(self, broker: Broker) -> None:
        self._under_way.pop(broker, None)
        connection = self._connections.pop(broker, None)
        if connection is None:
            return
        for fd, key in list(self._selector.get_map().items()):
            if key.data == broker:
                self._selector.unregister(fd)
        connection.close()

    def _give_up_on_silent(self) -> None:
        limit_s = self.settings.max_wait_ms / 1000 + self.cluster.settings.connection.request_timeout_s
        now = time.monotonic()
        for broker, fetch in list(self._under_way.items()):
            if now - fetch.sent_at > limit_s:
                error = RequestTimedOut(f"broker {broker.node_id} did not answer a fetch within {limit_s:g} s")
                self._lost(broker, list(fetch.offsets), error)


def fetch_range(
    cluster: Cluster,
    place: TopicPartition,
    start: int,
    end: int,
    settings: ConsumerSettings | None = None,
    *,
    idle_timeout_s: float = 30.0,
) -> Iterator[FetchedBatches]:
    """All batches of a partition that hold offsets from `start` up to, not including, `end`.

    The last batch may reach beyond `end`. Raises ClientError when nothing comes for `idle_timeout_s` before `end` is
    reached, `OffsetOutOfRange` when the beginning of the range is gone.
    """
    if start >= end:
        return
    with Consumer(cluster, {place: start}, settings) as consumer:
        while consumer.position(place) < end:
            found = consumer.fetch(idle_timeout_s)
            if not found:
                raise ClientError(
                    f"{place} was to be read up to offset {end}, but nothing came after {consumer.position(place)} "
                    f"within {idle_timeout_s:g} s; check that offset {end} exists and can be read (open transactions "
                    "hold it back from READ_COMMITTED readers)"
                )
            for fetched in found:
                if fetched.batches[0].base_offset < end:
                    yield fetched
