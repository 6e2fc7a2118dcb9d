"""The worker that reads: whole batches, checked and counted, their records not decoded.

From the start it reads its partitions over and over; the latency is then the time of one fetch. At the end it reads
what comes; where the batches tell when their messages were due, the latency is from then to now, end to end.
"""

from __future__ import annotations

import time

from chronik.bench.batches import due_times
from chronik.bench.specs import ReadSpec
from chronik.bench.tally import Tally
from chronik.bench.window import Window
from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer, ConsumerSettings
from chronik.client.errors import ClientError
from chronik.client.fetched import FetchedBatches
from chronik.client.offsets import EARLIEST, LATEST, earliest_offsets, end_offsets, partitions_of
from chronik.protocol.errors import KafkaError

POLL_S = 0.1


class Reader:
    def __init__(self, spec: ReadSpec, cluster: Cluster) -> None:
        self._spec = spec
        places = partitions_of(cluster, spec.topic)
        share = [place for index, place in enumerate(places) if index % spec.workers == spec.number]
        self._places = share or [places[spec.number % len(places)]]
        settings = ConsumerSettings(
            # Back at the start, a fetch is under way at the end already; it must not be waited for.
            max_wait_ms=0 if spec.from_start else spec.max_wait_ms,
            partition_max_bytes=spec.fetch_bytes,
            check_crc=spec.check_crc,
            out_of_range=EARLIEST,
        )
        start = EARLIEST if spec.from_start else LATEST
        self._consumer = Consumer(cluster, dict.fromkeys(self._places, start), settings)
        self._starts = earliest_offsets(cluster, self._places)
        self._ends = end_offsets(cluster, self._places)
        self._stamped: bool | None = None

    def run(self, window: Window) -> Tally:
        while window.running(asked_ns := time.monotonic_ns()):
            try:
                found = self._consumer.fetch(POLL_S)
            except (KafkaError, ClientError) as error:
                window.tally.failed(type(error).__name__)
                continue
            now = time.monotonic_ns()
            if found:
                self._take(found, asked_ns, now, window)
        return window.close()

    def close(self) -> None:
        self._consumer.close()

    def _take(self, found: list[FetchedBatches], asked_ns: int, now_ns: int, window: Window) -> None:
        tally = window.tally
        for fetched in found:
            count = sum(info.record_count for info in fetched.batches)
            window.progress.messages += count
            if window.measuring(now_ns):
                tally.messages += count
                tally.message_bytes += len(fetched.data)
            if not self._spec.from_start:
                self._time_batches(fetched, now_ns, window)
            elif fetched.next_offset >= self._ends[fetched.place]:
                self._consumer.seek(fetched.place, self._starts[fetched.place])
        if window.measuring(now_ns):
            tally.operations += 1
            if self._spec.from_start:
                tally.latency.record(now_ns - asked_ns)

    def _time_batches(self, fetched: FetchedBatches, now_ns: int, window: Window) -> None:
        if self._stamped is False:
            return
        for info in fetched.visible():
            due = due_times(fetched.data[info.position : info.end])
            self._stamped = due is not None
            if due is None:
                return
            first_ns, step_ns = due
            if window.measuring(first_ns):
                window.tally.latency.record_series(now_ns - first_ns, step_ns, info.record_count)
