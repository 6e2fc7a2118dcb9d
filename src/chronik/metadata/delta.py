"""What a run of applied commands touched, for those who follow the image. The new state itself is in the image."""

from __future__ import annotations

from chronik.metadata.model import ResourceType, TopicInfo


class Delta:
    """One for all commands applied together; listeners get it once the image is consistent again.

    A topic that came and went within it is only among `topics_deleted`. Partitions of a created topic are not
    repeated in `partitions_changed`, nor those of a deleted one.
    """

    __slots__ = (
        "brokers_changed",
        "configs_changed",
        "features_changed",
        "first_index",
        "last_index",
        "leaders_ended",
        "nodes_changed",
        "partitions_changed",
        "restored",
        "topics_created",
        "topics_deleted",
    )

    def __init__(self) -> None:
        self.topics_created: dict[bytes, str] = {}
        self.topics_deleted: dict[bytes, TopicInfo] = {}
        self.partitions_changed: dict[bytes, set[int]] = {}
        self.leaders_ended: set[int] = set()
        """Brokers from which some leadership was taken."""
        self.brokers_changed: set[int] = set()
        self.nodes_changed: set[int] = set()
        self.configs_changed: set[tuple[ResourceType, str]] = set()
        self.features_changed = False
        self.restored = False
        self.first_index = 0
        self.last_index = 0

    def __bool__(self) -> bool:
        """Whether anything changed at all."""
        return bool(
            self.topics_created
            or self.topics_deleted
            or self.partitions_changed
            or self.brokers_changed
            or self.nodes_changed
            or self.configs_changed
            or self.features_changed
            or self.restored
        )

    def topic_created(self, topic: TopicInfo) -> None:
        self.topics_created[topic.topic_id] = topic.name

    def topic_deleted(self, topic: TopicInfo) -> None:
        self.topics_created.pop(topic.topic_id, None)
        self.partitions_changed.pop(topic.topic_id, None)
        self.topics_deleted[topic.topic_id] = topic

    def partition_changed(self, topic_id: bytes, partition: int) -> None:
        if topic_id in self.topics_created:
            return
        changed = self.partitions_changed.get(topic_id)
        if changed is None:
            self.partitions_changed[topic_id] = {partition}
        else:
            changed.add(partition)
