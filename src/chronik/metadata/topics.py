"""Applying what creates, deletes and grows topics; and which names a topic may have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chronik.metadata.commands import AddPartitions, CreateTopic, DeleteTopic
from chronik.metadata.delta import Delta
from chronik.metadata.model import (
    NO_LEADER,
    ZERO_ID,
    PartitionInfo,
    ResourceType,
    Result,
    TopicInfo,
    done,
    intern_ids,
    refused,
)
from chronik.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from chronik.metadata.image import MetadataImage

MAX_TOPIC_NAME = 249
DELETED_TOPICS_REMEMBERED = 10_000
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


def name_problem(name: str) -> str | None:
    """Why a topic cannot have this name, in Kafka's words, or None."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > MAX_TOPIC_NAME:
        return (
            f"Topic name is invalid: the length of '{name[:60]}…' is longer than "
            f"the max allowed length {MAX_TOPIC_NAME}"
        )
    if not _LEGAL_NAME.match(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def metric_name(name: str) -> str | None:
    """Names that differ only in '.' and '_' are one name in metrics, so only one of them may exist.
    None for a name that has neither, and so collides with nothing."""
    return name.replace(".", "_") if "." in name or "_" in name else None


def create_topic(image: MetadataImage, command: CreateTopic, index: int, delta: Delta) -> Result:
    existing = image.topics.get(command.name)
    if existing is not None:
        if existing.topic_id == command.topic_id:
            return done(existing)
        return refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' already exists.")
    problem = name_problem(command.name)
    if problem is not None:
        return refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    metric = metric_name(command.name)
    collision = image.names_by_metric.get(metric) if metric is not None else None
    if collision is not None:
        return refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{command.name}' collides with existing topic: {collision}"
        )
    if len(command.topic_id) != 16 or command.topic_id == ZERO_ID or command.topic_id in image.topics_by_id:
        return refused(ErrorCode.INVALID_REQUEST, f"Topic '{command.name}' was given an id that cannot be used.")
    if command.topic_id in image.deleted_topics:
        return refused(ErrorCode.UNKNOWN_TOPIC_ID, f"Topic '{command.name}' with this id was deleted again.")
    bad = _assignment_problem(image, command.assignments)
    if bad is not None:
        return bad
    topic = TopicInfo(
        command.name,
        command.topic_id,
        tuple(_new_partition(image, replicas) for replicas in command.assignments),
        command.configs,
    )
    if metric is not None:
        image.names_by_metric[metric] = command.name
    image.partition_count += len(topic.partitions)
    image.put_topic(topic, index)
    delta.topic_created(topic)
    return done(topic)


def delete_topic(image: MetadataImage, command: DeleteTopic, index: int, delta: Delta) -> Result:
    topic = image.topics_by_id.pop(command.topic_id, None)
    if topic is None:
        return refused(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    del image.topics[topic.name]
    metric = metric_name(topic.name)
    if metric is not None:
        image.names_by_metric.pop(metric, None)
    image.partition_count -= len(topic.partitions)
    image.version = index
    image.deleted_topics[topic.topic_id] = topic.name
    if len(image.deleted_topics) > DELETED_TOPICS_REMEMBERED:
        del image.deleted_topics[next(iter(image.deleted_topics))]
    delta.topic_deleted(topic)
    delta.configs_changed.discard((ResourceType.TOPIC, topic.name))
    return done(topic)


def add_partitions(image: MetadataImage, command: AddPartitions, index: int, delta: Delta) -> Result:
    topic = image.topics_by_id.get(command.topic_id)
    if topic is None:
        return refused(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    count = len(topic.partitions)
    last = command.first + len(command.assignments)
    if command.first != count:
        if 0 <= command.first < count and last == count and _same_replicas(topic, command):
            return done(topic)  # the same proposal, applied before
        return refused(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{topic.name}' currently has {count} partitions, which is not what this change was made for.",
        )
    bad = _assignment_problem(image, command.assignments)
    if bad is not None:
        return bad
    added = tuple(_new_partition(image, replicas) for replicas in command.assignments)
    grown = TopicInfo(topic.name, topic.topic_id, topic.partitions + added, topic.configs)
    image.partition_count += len(added)
    image.put_topic(grown, index)
    for partition in range(count, last):
        delta.partition_changed(topic.topic_id, partition)
    return done(grown)


def _same_replicas(topic: TopicInfo, command: AddPartitions) -> bool:
    return tuple(partition.replicas for partition in topic.partitions[command.first :]) == command.assignments


def _assignment_problem(image: MetadataImage, assignments: tuple[tuple[int, ...], ...]) -> Result | None:
    if not assignments:
        return refused(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    for partition, replicas in enumerate(assignments):
        if not replicas:
            return refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {partition} was given an empty replica list."
            )
        if len(set(replicas)) != len(replicas):
            return refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {partition} was given a broker twice: {list(replicas)}.",
            )
        for replica in replicas:
            if replica not in image.brokers:
                return refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Partition {partition} was given broker {replica}, which is not registered.",
                )
    return None


def _new_partition(image: MetadataImage, replicas: tuple[int, ...]) -> PartitionInfo:
    """A partition without data: whoever is alive is in sync. If nobody is, everybody will be."""
    brokers = image.brokers
    alive = tuple(replica for replica in replicas if brokers[replica].alive)
    online = next((replica for replica in alive if brokers[replica].online), None)
    leader = online if online is not None else alive[0] if alive else NO_LEADER
    shared = intern_ids(replicas)
    return PartitionInfo(leader, 0, 0, shared, intern_ids(alive) if alive else shared)
