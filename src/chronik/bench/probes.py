"""Threads that try one thing again and again, and remember when it worked: the longest pause is a failover's gap.

A probe retries at once after a failure (pauses of milliseconds), so that what it measures is the cluster and not the
patience of a client.
"""

from __future__ import annotations

import threading
import time
import uuid
from abc import ABC, abstractmethod
from itertools import pairwise
from types import TracebackType

from chronik.client.admin.topics import create_topic
from chronik.client.cluster import Cluster, ClusterSettings
from chronik.client.connection import ConnectionSettings
from chronik.client.errors import ClientError, raise_for_code
from chronik.client.metadata import TopicPartition
from chronik.client.retry import RetryPolicy
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from chronik.protocol.records import Record, build_batch

RETRY_PAUSE_S = 0.005
ANSWER_TIMEOUT_S = 1.0
"""How long an answer is waited for before trying elsewhere: a node that hangs costs this much."""

METADATA_PAUSE_S = 0.02
NEWEST_WITH_NAMES = 12
STOP_DEADLINE_S = 30.0


class Probe(ABC):
    """Runs `attempt` in a thread until closed. Use as a context."""

    def __init__(self, bootstrap: str, what: str) -> None:
        settings = ClusterSettings(
            connection=ConnectionSettings(connect_timeout_s=ANSWER_TIMEOUT_S, request_timeout_s=ANSWER_TIMEOUT_S),
            retry=RetryPolicy(timeout_s=0.0, unknown_topic_s=0.0, first_contact_s=0.0),
        )
        self.cluster = Cluster(bootstrap, settings)
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._successes: list[float] = []
        self._last_failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join(STOP_DEADLINE_S)
        self.cluster.close()

    def wait_success_after(self, moment: float, deadline_s: float) -> float:
        """When the first attempt succeeded that ended after a moment (monotonic); TimeoutError when none does."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: bool(self._successes) and self._successes[-1] > moment, timeout=deadline_s
            ):
                raise TimeoutError(f"{self._thread.name} did not succeed within {deadline_s:g} s: {self._last_failure}")
            return next(at for at in self._successes if at > moment)

    def longest_gap_s(self, since: float) -> float:
        """The longest time without a success, from the last success before a moment on."""
        with self._changed:
            before = [at for at in self._successes if at <= since]
            times = [*before[-1:], *(at for at in self._successes if at > since)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    @abstractmethod
    def attempt(self) -> None:
        """Do the thing once; KafkaError or ClientError when it did not work."""

    @abstractmethod
    def forget(self) -> None:
        """Called after a failure: what was known may be wrong."""

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.attempt()
            except (KafkaError, ClientError) as error:
                self._last_failure = error
                self.forget()
                self._stopping.wait(RETRY_PAUSE_S)
                continue
            with self._changed:
                self._successes.append(time.monotonic())
                self._changed.notify_all()


class WriteProbe(Probe):
    """Writes a small record to one partition with acks=all, one at a time."""

    def __init__(self, bootstrap: str, place: TopicPartition) -> None:
        super().__init__(bootstrap, f"writing to {place}")
        self._place = place

    def attempt(self) -> None:
        batch = build_batch([Record(0, time.time_ns() // 1_000_000, None, b"probe", [])])
        data = PartitionProduceData(index=self._place.partition, records=batch)
        request = ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=self._place.topic, partition_data=[data])]
        )
        if not self.cluster.knows(self._place.topic):
            self.cluster.refresh([self._place.topic])
        leader = self.cluster.metadata.leader(self._place)
        answer = self.cluster.call(leader, request, ProduceResponse, newest=NEWEST_WITH_NAMES)
        raise_for_code(answer.responses[0].partition_responses[0].error_code, "writing")

    def forget(self) -> None:
        self.cluster.doubt(self._place.topic)


class MetadataProbe(Probe):
    """Creates topics of one partition, one after the other, at any broker that takes it."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        super().__init__(bootstrap, "creating topics")
        self._prefix = prefix

    def attempt(self) -> None:
        create_topic(self.cluster, f"{self._prefix}{uuid.uuid4().hex[:12]}", partitions=1, replication_factor=1)
        self._stopping.wait(METADATA_PAUSE_S)

    def forget(self) -> None:
        """Nothing is kept between attempts that the next one does not ask for anew."""
