"""Applying what sets configs, names the cluster, raises features and hands out producer ids.

Config values are not judged here: definitions differ between versions of Chronik, the image must not. The proposer
validates; this resolves the operations against what is set at that moment, so that concurrent appends all count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.metadata.commands import (
    AllocateProducerIds,
    ConfigChange,
    ConfigOperation,
    SetClusterId,
    SetConfig,
    SetFeatureLevel,
)
from chronik.metadata.delta import Delta
from chronik.metadata.model import (
    CLUSTER_LEVEL,
    UNSET_EPOCH,
    ResourceType,
    Result,
    TopicInfo,
    done,
    refused,
)
from chronik.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from chronik.metadata.image import MetadataImage

PRODUCER_ID_LIMIT = 2**63 - 1


def resolve_changes(current: dict[str, str], changes: list[ConfigChange], *, replace: bool) -> dict[str, str]:
    """What is set after the operations. Pure: proposers use it to see, and validate, what they would bring about."""
    after = {} if replace else dict(current)
    for change in changes:
        if change.operation == ConfigOperation.SET and change.value is not None:
            after[change.name] = change.value
        elif change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            after[change.name] = _edit_list(after.get(change.name, change.default), change)
        else:
            after.pop(change.name, None)
    return after


def _edit_list(text: str, change: ConfigChange) -> str:
    items = [item for item in text.split(",") if item]
    named = [item.strip() for item in (change.value or "").split(",") if item.strip()]
    if change.operation == ConfigOperation.APPEND:
        items.extend(item for item in dict.fromkeys(named) if item not in items)
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def set_config(image: MetadataImage, command: SetConfig, index: int, delta: Delta) -> Result:
    key = (command.resource_type, command.resource_name)
    current = image.config_overrides(*key)
    after = resolve_changes(current, command.changes, replace=command.replace)
    if command.resource_type == ResourceType.TOPIC:
        topic = image.topics.get(command.resource_name)
        if topic is None:
            return refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{command.resource_name}' does not exist.")
        if after == current:
            return done(after)
        image.put_topic(TopicInfo(topic.name, topic.topic_id, topic.partitions, after), index)
    elif after == current:
        return done(after)
    else:
        image.put_configs(key, after, index)
    image.configs_version = image.version = index
    delta.configs_changed.add(key)
    return done(after)


def allocate_producer_ids(image: MetadataImage, command: AllocateProducerIds, index: int, delta: Delta) -> Result:
    """Its value is the block: (first id, how many)."""
    broker = image.brokers.get(command.node_id)
    if command.broker_epoch != UNSET_EPOCH and (broker is None or broker.epoch != command.broker_epoch):
        return refused(ErrorCode.STALE_BROKER_EPOCH, f"Broker {command.node_id} has registered again.")
    if not 0 < command.count <= PRODUCER_ID_LIMIT - image.producer_id_next:
        return refused(ErrorCode.INVALID_REQUEST, f"A block of {command.count} producer ids cannot be given.")
    first = image.producer_id_next
    image.producer_id_next = first + command.count
    image.version = index
    return done((first, command.count))


def set_cluster_id(image: MetadataImage, command: SetClusterId, index: int, delta: Delta) -> Result:
    """Its value is the id that holds, whoever set it."""
    if image.cluster_id is None and command.cluster_id:
        image.cluster_id = command.cluster_id
        image.version = index
        delta.features_changed = True
        return done(image.cluster_id)
    if image.cluster_id == command.cluster_id and command.cluster_id:
        return done(image.cluster_id)
    return refused(
        ErrorCode.INCONSISTENT_CLUSTER_ID, f"The cluster id is '{image.cluster_id}' already.", image.cluster_id
    )


def set_feature_level(image: MetadataImage, command: SetFeatureLevel, index: int, delta: Delta) -> Result:
    name, level = command.name, command.level
    current = image.features.get(name, 0)
    if level == current:
        return done(level)
    if level < current and (name == CLUSTER_LEVEL or not command.downgrade):
        return refused(
            ErrorCode.INVALID_UPDATE_VERSION, f"Feature {name} is at level {current} and cannot go down to {level}."
        )
    for broker in image.brokers.values():
        lowest, highest = broker.features.get(name, (0, 0))
        if level and not lowest <= level <= highest:
            return refused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Broker {broker.node_id} supports {name} from {lowest} to {highest}, not {level}; upgrade it first.",
            )
    if level > 0:
        image.features[name] = level
    else:
        image.features.pop(name, None)
    image.version = index
    delta.features_changed = True
    return done(level)
