"""Topics: create, list, describe, delete, add partitions, delete records.

Functions for many topics return what came of each; functions for one raise its error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from chronik.client.cluster import Cluster
from chronik.client.errors import error_for_code
from chronik.client.metadata import Broker, TopicMetadata, TopicPartition
from chronik.client.offsets import by_topic
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from chronik.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from chronik.protocol.wire import ZERO_UUID

BROKER_DEFAULT = -1
"""Number of partitions, or replication factor, that leaves the choice to the broker."""

UP_TO_HIGH_WATERMARK = -1
"""Offset for `delete_records` that deletes all there is."""

_TIMEOUT_MS = 30_000


class NewTopic(msgspec.Struct, kw_only=True):
    """A topic to create. `assignments` gives the replicas of each partition, instead of the two numbers."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = {}
    assignments: Mapping[int, Sequence[int]] | None = None


class TopicResult(msgspec.Struct, frozen=True):
    """What came of one topic; `error` is None when it was done."""

    name: str
    error: KafkaError | None = None
    topic_id: bytes = ZERO_UUID
    partitions: int = -1
    replication_factor: int = -1


def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int = _TIMEOUT_MS
) -> list[TopicResult]:
    """Create topics in one request. Retriable failures of single topics are tried again, the others reported."""
    wanted = {topic.name: topic for topic in topics}
    request = CreateTopicsRequest(
        topics=[_creatable(topic) for topic in wanted.values()], timeout_ms=timeout_ms, validate_only=validate_only
    )
    outcome = _Outcome(wanted, "creating")

    def check(answer: CreateTopicsResponse) -> None:
        for item in answer.topics:
            error = None
            if item.error_code:
                error = error_for_code(item.error_code, f"creating topic {item.name}", item.error_message)
                if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and outcome.retried:
                    error = KafkaError(error.code, f"{error.message}; an earlier try of this request may have made it")
            outcome.add(TopicResult(item.name, error, item.topic_id, item.num_partitions, item.replication_factor))
        outcome.raise_if_retriable()

    def on_retry(_: Exception) -> None:
        outcome.retried = True
        request.topics = [topic for topic in request.topics if topic.name in outcome.open()]

    with outcome.reporting():
        cluster.call_controller("creating topics", request, CreateTopicsResponse, check=check, on_retry=on_retry)
    for name in wanted:
        cluster.doubt(name)
    return outcome.results()


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> TopicResult:
    """Create one topic, or raise the KafkaError that says why not."""
    topic = NewTopic(name=name, partitions=partitions, replication_factor=replication_factor, configs=configs or {})
    (result,) = create_topics(cluster, [topic], validate_only=validate_only)
    if result.error is not None:
        raise result.error
    return result


def delete_topics(cluster: Cluster, names: Iterable[str], *, timeout_ms: int = _TIMEOUT_MS) -> list[TopicResult]:
    """Delete topics by name; what came of each."""
    outcome = _Outcome(dict.fromkeys(names), "deleting")
    request = DeleteTopicsRequest(timeout_ms=timeout_ms)

    def check(answer: DeleteTopicsResponse) -> None:
        for item in answer.responses:
            name = item.name or ""
            error: KafkaError | None = None
            if item.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                error = _Final(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist; check the name")
            elif item.error_code:
                error = error_for_code(item.error_code, f"deleting topic {name}", item.error_message)
            outcome.add(TopicResult(name, error, item.topic_id))
        outcome.raise_if_retriable()

    def aim(_: Exception | None = None) -> None:
        request.topic_names = outcome.open()
        request.topics = [DeleteTopicState(name=name) for name in outcome.open()]

    aim()
    with outcome.reporting():
        cluster.call_controller("deleting topics", request, DeleteTopicsResponse, check=check, on_retry=aim)
    results = outcome.results()
    for result in results:
        cluster.doubt(result.name)
    return results


def delete_topic(cluster: Cluster, name: str) -> None:
    (result,) = delete_topics(cluster, [name])
    if result.error is not None:
        raise result.error


def create_partitions(cluster: Cluster, topic: str, count: int, *, validate_only: bool = False) -> None:
    """Give a topic more partitions, `count` in all."""
    what = f"giving topic {topic} {count} partitions"

    def check(answer: CreatePartitionsResponse) -> None:
        for item in answer.results:
            if item.error_code:
                raise error_for_code(item.error_code, what, item.error_message)

    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
        timeout_ms=_TIMEOUT_MS,
        validate_only=validate_only,
    )
    cluster.call_controller(what, request, CreatePartitionsResponse, check=check)
    cluster.doubt(topic)


def list_topics(cluster: Cluster, *, include_internal: bool = False) -> list[TopicMetadata]:
    """All topics with their partitions, by name."""
    topics = cluster.refresh(all_topics=True).topics.values()
    return sorted((t for t in topics if include_internal or not t.is_internal), key=lambda topic: topic.name)


def describe_topics(cluster: Cluster, names: Iterable[str]) -> list[TopicMetadata]:
    """The named topics, fresh; KafkaError for the first that does not exist."""
    wanted = list(names)
    for name in wanted:
        cluster.doubt(name)
    cluster.refresh(wanted)
    return [cluster.topic(name) for name in wanted]


def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete all records before an offset, per partition; the new first offsets."""

    def ask(broker: Broker, places: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=index, offset=before[TopicPartition(topic, index)])
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(places).items()
            ],
            timeout_ms=_TIMEOUT_MS,
        )
        answer = cluster.call(broker, request, DeleteRecordsResponse)
        return {
            TopicPartition(topic.name, p.partition_index): error_for_code(
                p.error_code, f"deleting records of {topic.name}-{p.partition_index}"
            )
            if p.error_code
            else p.low_watermark
            for topic in answer.topics
            for p in topic.partitions
        }

    return cluster.on_leaders("deleting records", before, ask)


def _creatable(topic: NewTopic) -> CreatableTopic:
    assignments = topic.assignments or {}
    return CreatableTopic(
        name=topic.name,
        num_partitions=BROKER_DEFAULT if assignments else topic.partitions,
        replication_factor=BROKER_DEFAULT if assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in sorted(assignments.items())
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


class _Final(KafkaError):
    """An error whose code is retriable in general, but is the answer here."""

    @property
    def retriable(self) -> bool:
        return False


class _Outcome:
    """What came of each topic of a request, while single ones are tried again."""

    def __init__(self, names: Iterable[str], doing: str) -> None:
        self._names = list(names)
        self._doing = doing
        self._results: dict[str, TopicResult] = {}
        self.retried = False

    def add(self, result: TopicResult) -> None:
        self._results[result.name] = result

    def open(self) -> list[str]:
        """The topics that are not settled: not answered for, or with an error worth another try."""
        return [name for name in self._names if name not in self._results or self._retriable(name) is not None]

    def raise_if_retriable(self) -> None:
        for name in self._results:
            error = self._retriable(name)
            if error is not None:
                raise error

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Leave errors of single topics to the results; let those of the whole request through."""
        try:
            yield
        except KafkaError as error:
            if error.code not in {result.error.code for result in self._results.values() if result.error}:
                raise

    def results(self) -> list[TopicResult]:
        return [self._results.get(name) or self._unanswered(name) for name in self._names]

    def _retriable(self, name: str) -> KafkaError | None:
        error = self._results[name].error
        return error if error is not None and error.retriable else None

    def _unanswered(self, name: str) -> TopicResult:
        reason = f"{self._doing} topic {name}: the broker did not answer for it"
        return TopicResult(name, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, reason))
