"""The state machine: everything the cluster knows, and how one command at a time changes it.

`apply` is deterministic (it draws on the image and the command alone), total (no command raises; one that no longer
makes sense changes nothing and says why) and cheap (it replaces the entries it touches and copies nothing else).
Readers on the event loop see a consistent image between two applies, and may keep any value they took from it. A
command that looks at every topic can be applied in slices: the image stays as it was until the last of them.
The rules for each family of commands are in `brokers`, `topics`, `partitions` and `settings`; bytes are in `snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar, cast

from chronik.metadata import brokers, commands, partitions, settings, topics
from chronik.metadata.delta import Delta
from chronik.metadata.model import (
    CLUSTER_LEVEL,
    NO_LEADER,
    BrokerInfo,
    NodeInfo,
    PartitionInfo,
    ResourceType,
    Result,
    TopicInfo,
    done,
)

FIRST_FEATURES = {CLUSTER_LEVEL: 1, "group.version": 1, "transaction.version": 2}
"""What a cluster starts with. Part of the state machine: never changed, only raised by commands."""

T = TypeVar("T")


def at_once(slices: Generator[None, None, T]) -> T:
    """Does in one go what could be done in slices."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return cast("T", end.value)


class MetadataImage:
    """The one truth. Written only by `apply` and by `snapshot.restore`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Back to what a new cluster knows: nothing."""
        self.version = 0
        self.applied_index = 0
        self.cluster_id: str | None = None
        self.producer_id_next = 0
        self.features: dict[str, int] = dict(FIRST_FEATURES)
        self.brokers: dict[int, BrokerInfo] = {}
        self.nodes: dict[int, NodeInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.topics_by_id: dict[bytes, TopicInfo] = {}
        self.deleted_topics: dict[bytes, str] = {}
        self.configs: dict[tuple[ResourceType, str], dict[str, str]] = {}
        self.names_by_metric: dict[str, str] = {}
        self.partition_count = 0
        self.brokers_version = 0
        self.configs_version = 0
        self.broker_configs_version = 0

    def become(self, other: MetadataImage) -> None:
        """Takes over everything that the other image holds; the other is not used any more."""
        vars(self).update(vars(other))

    def detached(self) -> MetadataImage:
        """The image as it is now, apart from the living one, for work that is too long for the event loop."""
        copy = MetadataImage()
        for name, value in vars(self).items():
            setattr(copy, name, dict(value) if isinstance(value, dict) else value)
        return copy

    @property
    def feature_level(self) -> int:
        return self.features.get(CLUSTER_LEVEL, 1)

    def apply(self, command: commands.Command, index: int, delta: Delta | None = None) -> Result:
        """Applies the command of log entry `index`, notes in `delta` what it touched, and tells what came of it."""
        return at_once(self.apply_in_slices(command, index, Delta() if delta is None else delta))

    def apply_in_slices(self, command: commands.Command, index: int, delta: Delta) -> Generator[None, None, Result]:
        """The same with pauses, in which nothing else may be applied; of the commands of a batch, each is whole."""
        if type(command) is commands.Batch:
            results = []
            for inner in command.commands:
                results.append((yield from self._apply_one(inner, index, delta)))
            result = done(results)
        else:
            result = yield from self._apply_one(cast("commands.Single", command), index, delta)
        self.applied_index = index
        return result

    def _apply_one(self, command: commands.Single, index: int, delta: Delta) -> Generator[None, None, Result]:
        if type(command) is commands.RegisterBroker:
            return (yield from brokers.register_broker(self, command, index, delta))
        return _APPLIERS[type(command)](self, command, index, delta)

    def put_topic(self, topic: TopicInfo, index: int) -> None:
        """Replaces (or adds) a topic and raises the version."""
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic
        self.version = index

    def put_broker(self, broker: BrokerInfo, index: int, delta: Delta) -> None:
        self.brokers[broker.node_id] = broker
        self.brokers_version = index
        self.version = index
        delta.brokers_changed.add(broker.node_id)

    def put_configs(self, key: tuple[ResourceType, str], values: dict[str, str], index: int) -> None:
        """What is set on a resource other than a topic; empty forgets the resource."""
        if values:
            self.configs[key] = values
        else:
            self.configs.pop(key, None)
        if key[0] == ResourceType.BROKER:
            self.broker_configs_version = index

    def partition(self, topic: str, index: int) -> PartitionInfo | None:
        """The partition, or None when the image knows no such topic or partition."""
        found = self.topics.get(topic)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    def partition_by_id(self, topic_id: bytes, index: int) -> PartitionInfo | None:
        found = self.topics_by_id.get(topic_id)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    def each_partition(self) -> Iterator[tuple[TopicInfo, int, PartitionInfo]]:
        for topic in self.topics.values():
            for index, partition in enumerate(topic.partitions):
                yield topic, index, partition

    def is_alive(self, node_id: int) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and broker.alive

    def online_brokers(self) -> list[BrokerInfo]:
        """The brokers that may be given replicas and leadership, in order of their ids."""
        return [self.brokers[node_id] for node_id in sorted(self.brokers) if self.brokers[node_id].online]

    def alive_leader(self, partition: PartitionInfo) -> int:
        """The leader as clients should be told it: none while its broker is offline."""
        return partition.leader if self.is_alive(partition.leader) else NO_LEADER

    def was_deleted(self, topic_id: bytes) -> bool:
        """Whether this topic is known to have been deleted (the last few thousand are remembered): only then may data
        that the image does not know be removed rather than set aside."""
        return topic_id in self.deleted_topics

    def config_overrides(self, resource_type: ResourceType, name: str) -> dict[str, str]:
        """What was set on a resource; empty when nothing was."""
        if resource_type == ResourceType.TOPIC:
            topic = self.topics.get(name)
            return topic.configs if topic is not None else {}
        return self.configs.get((resource_type, name), {})


Applier = Callable[[MetadataImage, Any, int, Delta], Result]

_APPLIERS: dict[type[commands.Single], Applier] = {
    commands.UpdateBrokerStatus: brokers.update_broker_status,
    commands.RemoveBroker: brokers.remove_broker,
    commands.AddNode: brokers.add_node,
    commands.ConfirmNode: brokers.confirm_node,
    commands.RemoveNode: brokers.remove_node,
    commands.CreateTopic: topics.create_topic,
    commands.DeleteTopic: topics.delete_topic,
    commands.AddPartitions: topics.add_partitions,
    commands.AssignPartition: partitions.assign_partition,
    commands.FinishAssignment: partitions.finish_assignment,
    commands.SetPartitionLeader: partitions.set_partition_leader,
    commands.UpdateIsr: partitions.update_isr,
    commands.SetConfig: settings.set_config,
    commands.AllocateProducerIds: settings.allocate_producer_ids,
    commands.SetClusterId: settings.set_cluster_id,
    commands.SetFeatureLevel: settings.set_feature_level,
}
