"""Making topics and partitions: checks, defaults and placement, and the proposal. Used by every way to create a topic.

What lives here: from a wish (name, number of partitions, replicas or an explicit assignment, configs) to a metadata
command. What does not: where replicas go (cluster.placement), which configs are valid (metadata.configs), the wire
(handlers). Messages follow Kafka's wording where tools and people know it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from chronik.cluster.placement import Assignments, explicit, place_in
from chronik.metadata.commands import MAX_PARTITIONS_PER_COMMAND, CreateTopic
from chronik.metadata.configs import validate_topic_configs
from chronik.metadata.store import as_kafka_error
from chronik.metadata.topics import metric_name, name_problem
from chronik.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from chronik.broker.context import Services
    from chronik.metadata.image import MetadataImage

log = structlog.get_logger(__name__)

USE_DEFAULT = -1
METADATA_TOPIC = "__cluster_metadata"


class TopicWish(msgspec.Struct, frozen=True):
    """A topic somebody wants. `assignments` by partition index excludes the two numbers."""

    name: str
    num_partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Mapping[int, Sequence[int]] = {}
    configs: Mapping[str, str | None] = {}


def plan_topic(services: Services, wish: TopicWish) -> CreateTopic:
    """The command that creates the topic; raises KafkaError as Kafka would answer. Changes nothing."""
    image = services.store.image
    _check_name(image, wish.name)
    validate_topic_configs(wish.configs)
    configs = {name: value for name, value in wish.configs.items() if value is not None}
    if wish.assignments:
        assignments = _explicit(image, wish)
    else:
        assignments = _placed(services, wish)
    return CreateTopic(wish.name, os.urandom(16), assignments, configs)


def _check_name(image: MetadataImage, name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    metric = metric_name(name)
    collision = image.names_by_metric.get(metric) if metric is not None else None
    if collision is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {collision}")


def _placed(services: Services, wish: TopicWish) -> Assignments:
    partitions, factor = wish.num_partitions, wish.replication_factor
    if factor < USE_DEFAULT or factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if partitions < USE_DEFAULT or partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if partitions == USE_DEFAULT:
        partitions = services.configs.broker_int("num.partitions")
    if factor == USE_DEFAULT:
        factor = services.configs.default_replication_factor()
    check_partition_count(partitions)
    return place(services, wish.name, partitions, factor)


def check_partition_count(count: int) -> None:
    """Refuse more partitions than one command may carry."""
    if count > MAX_PARTITIONS_PER_COMMAND:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"At most {MAX_PARTITIONS_PER_COMMAND} partitions can be created at once, not {count}.",
        )


def place(services: Services, topic: str, partitions: int, factor: int) -> Assignments:
    """Replicas for new partitions, or KafkaError(INVALID_REPLICATION_FACTOR)."""
    placement = place_in(services.store.image, partitions, factor, services.placement_cursor)
    if placement.warning is not None:
        log.warning("placed a topic's replicas as well as the cluster allows", topic=topic, reason=placement.warning)
    return placement.assignments


def _explicit(image: MetadataImage, wish: TopicWish) -> Assignments:
    if wish.replication_factor != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if wish.num_partitions != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    check_partition_count(len(wish.assignments))
    return explicit(image, wish.assignments)


async def create_missing_topic(services: Services, name: str, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic with the broker's defaults, unless somebody was faster. Returns when it is readable here."""
    if not services.store.image.online_brokers():
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no broker is online yet that could lead a new topic")
    try:
        command = plan_topic(services, TopicWish(name, configs=configs or {}))
        result = await services.store.propose(command)
        result.raise_for_error()
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    except Exception as error:
        raise as_kafka_error(error) from error
