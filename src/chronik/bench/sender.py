"""The worker that writes: batches made in advance, several requests under way per broker, answers timed.

A latency counts to when the acknowledgement was read: with a rate, from when a message was due (see `arrivals`);
without one, from when its batch was handed to the connection. Batches go to the partitions in turn. A batch that fails
is counted and not sent again: this is a meter, not a producer.
"""

from __future__ import annotations

import selectors
import time
from collections import deque

from chronik.bench.arrivals import Arrivals, AsFastAsPossible, AtRate, Due
from chronik.bench.batches import BatchMaker
from chronik.bench.specs import SendSpec
from chronik.bench.tally import Tally
from chronik.bench.window import Window
from chronik.client.cluster import Cluster
from chronik.client.connection import Connection
from chronik.client.errors import ClientError, ConnectionFailed, error_for_code, raise_for_code
from chronik.client.metadata import TopicPartition
from chronik.client.retry import retry
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from chronik.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.records import Compression

DRAIN_S = 60.0
"""How long answers are waited for after the end; what is not answered by then is an error."""

REFRESH_PAUSE_S = 0.05
PRODUCE_TIMEOUT_MS = 30_000
NEWEST_WITH_NAMES = 12
MAX_SEQUENCE = 2**31 - 1

_NS_PER_S = 1e9


class Link:
    """A connection to a leader and the batches under way on it, oldest first."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.under_way: deque[Due] = deque()


class Sender:
    def __init__(self, spec: SendSpec, cluster: Cluster) -> None:
        self._spec = spec
        self._cluster = cluster
        self._maker = BatchMaker(
            spec.message_bytes,
            spec.batch_bytes,
            compression=Compression[spec.compression.upper()],
            seed=spec.number + 1,
        )
        count = len(cluster.topic(spec.topic).partitions)
        self._places = [TopicPartition(spec.topic, index) for index in range(count)]
        self._turn = spec.number % count
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, Link] = {}
        self._routes: list[Link | None] = [None] * count
        self._sequences = [0] * count
        self._producer_id, self._producer_epoch = -1, -1
        if spec.idempotent:  # a broker that has just started may have to fetch producer ids first
            retry("getting a producer id", cluster.settings.retry, self._new_producer_id)
        retry(f"finding the leaders of {spec.topic}", cluster.settings.retry, self._route_all)

    def run(self, window: Window) -> Tally:
        spec, tally = self._spec, window.tally
        arrivals: Arrivals = AsFastAsPossible(self._maker.max_records)
        if spec.rate is not None:
            linger_ns = round(spec.linger_ms * 1e6)
            arrivals = AtRate(spec.rate, window.start_ns, self._maker.max_records, linger_ns)
        while window.running(now := time.monotonic_ns()):
            link = self._routes[self._turn]
            if link is None:
                self._reroute(window)
                continue
            due = arrivals.take(now) if len(link.under_way) < spec.in_flight else None
            if due is not None:
                self._send(link, due, window)
                if spec.rate is not None:
                    self._receive(window, 0.0)
            else:
                until = window.end_ns if len(link.under_way) >= spec.in_flight else arrivals.next_at_ns()
                self._receive(window, (min(until, window.end_ns) - now) / _NS_PER_S)
            if spec.total is not None and window.progress.messages >= spec.total:
                break
        measured = window.close()
        self._drain(window)
        late = arrivals.untaken(window.end_ns)
        if late is not None:
            tally.unsent += late.count
            tally.latency.record_series(window.end_ns - late.first_ns, late.step_ns, late.count)
        return measured

    def close(self) -> None:
        for link in self._links.values():
            link.connection.close()
        self._selector.close()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, link: Link, due: Due, window: Window) -> None:
        place = self._places[self._turn]
        spec = self._spec
        sequence = -1
        if spec.idempotent:
            sequence = self._sequences[self._turn]
            self._sequences[self._turn] = (sequence + due.count) % (MAX_SEQUENCE + 1)
        self._turn = (self._turn + 1) % len(self._places)
        batch = self._maker.make(
            due.count,
            time.time_ns() // 1_000_000,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
            due_ns=due.first_ns if spec.stamp else None,
            step_ns=due.step_ns,
        )
        data = PartitionProduceData(index=place.partition, records=batch)
        request = ProduceRequest(
            acks=spec.acks,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=place.topic, partition_data=[data])],
        )
        try:
            link.connection.send(request, newest=NEWEST_WITH_NAMES, expect_answer=spec.acks != 0)
        except ConnectionFailed as error:
            window.tally.failed(_kind(error), due.count)
            self._drop(link, window)
            return
        if spec.acks == 0:
            self._count(due, time.monotonic_ns(), window, timed=False)
        else:
            link.under_way.append(due if spec.rate is not None else Due(due.count, link.connection.sent_ns, 0))

    # -- answers ------------------------------------------------------------------------------------------------------

    def _receive(self, window: Window, timeout_s: float) -> None:
        for key, _ in self._selector.select(max(timeout_s, 0.0)):
            link: Link = key.data
            if not link.under_way:
                self._drop(link, window)  # readable without a question: the broker closed it
                continue
            try:
                answer = link.connection.receive(ProduceResponse)
            except ConnectionFailed as error:
                window.tally.failed(_kind(error), link.under_way.popleft().count)
                self._drop(link, window)
                continue
            due = link.under_way.popleft()
            code = answer.responses[0].partition_responses[0].error_code
            if code:
                self._refused(code, due, window)
            else:
                self._count(due, link.connection.received_ns, window, timed=True)

    def _count(self, due: Due, now_ns: int, window: Window, *, timed: bool) -> None:
        window.progress.messages += due.count
        if window.measuring(now_ns):
            window.tally.messages += due.count
            window.tally.message_bytes += due.count * self._spec.message_bytes
            window.tally.operations += 1
        if timed and window.measuring(due.first_ns):
            window.tally.latency.record_series(now_ns - due.first_ns, due.step_ns, due.count)

    def _refused(self, code: int, due: Due, window: Window) -> None:
        window.tally.failed(error_for_code(code, "writing").code.name, due.count)
        self._cluster.doubt(self._spec.topic)
        self._routes = [None] * len(self._places)

    def _drop(self, link: Link, window: Window) -> None:
        """Forget a broken connection; what was under way on it has failed."""
        for due in link.under_way:
            window.tally.failed("connection lost", due.count)
        link.under_way.clear()
        self._links = {node: known for node, known in self._links.items() if known is not link}
        self._selector = _without(self._selector, self._links)
        link.connection.close()
        self._cluster.doubt(self._spec.topic)
        self._routes = [None] * len(self._places)

    def _drain(self, window: Window) -> None:
        deadline = time.monotonic() + DRAIN_S
        while any(link.under_way for link in self._links.values()) and time.monotonic() < deadline:
            self._receive(window, deadline - time.monotonic())
        for link in self._links.values():
            for due in link.under_way:
                window.tally.failed("not answered", due.count)
            link.under_way.clear()

    # -- where to -----------------------------------------------------------------------------------------------------

    def _reroute(self, window: Window) -> None:
        """Find the leaders again after a failure; while there are none, answers are taken in and time passes."""
        try:
            if self._spec.idempotent:
                while any(link.under_way for link in self._links.values()):
                    self._receive(window, DRAIN_S)
                self._new_producer_id()  # sequences of what failed are lost, and the broker would wait for them
                self._sequences = [0] * len(self._places)
            self._route_all()
        except (ClientError, KafkaError):
            self._receive(window, REFRESH_PAUSE_S)
            if not self._links:
                time.sleep(REFRESH_PAUSE_S)

    def _route_all(self) -> None:
        self._cluster.refresh([self._spec.topic])
        routes: list[Link | None] = []
        for place in self._places:
            broker = self._cluster.metadata.leader(place)
            link = self._links.get(broker.node_id)
            if link is None:
                link = self._links[broker.node_id] = Link(self._cluster.connect(broker))
                self._selector.register(link.connection, selectors.EVENT_READ, link)
            routes.append(link)
        self._routes = routes

    def _new_producer_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = self._cluster.call_any(request, InitProducerIdResponse)
        raise_for_code(answer.error_code, "getting a producer id")
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch


def _without(old: selectors.BaseSelector, links: dict[int, Link]) -> selectors.DefaultSelector:
    """A selector of the connections that are left; one that broke cannot be taken out, its descriptor is gone."""
    old.close()
    fresh = selectors.DefaultSelector()
    for link in links.values():
        fresh.register(link.connection, selectors.EVENT_READ, link)
    return fresh


def _kind(error: Exception) -> str:
    return type(error).__name__
