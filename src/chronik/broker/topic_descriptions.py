"""Topics as Metadata describes them, kept while neither the topic nor any broker has changed.

A cluster has thousands of topics and clients ask for them often; only what changed is described anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.metadata.model import NO_LEADER, TopicInfo
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

if TYPE_CHECKING:
    from chronik.metadata.image import MetadataImage

TOPICS_REMEMBERED_MAX = 20_000


class TopicDescriptions:
    """Descriptions by topic, of one image."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._brokers_version = -1
        self._known: dict[bytes, tuple[TopicInfo, MetadataResponseTopic]] = {}

    def of(self, topic: TopicInfo) -> MetadataResponseTopic:
        """The description of a topic of the image. It is shared: do not change it."""
        if self._brokers_version != self._image.brokers_version:
            self._brokers_version = self._image.brokers_version
            self._known.clear()
        known = self._known.get(topic.topic_id)
        if known is not None and known[0] is topic:
            return known[1]
        if len(self._known) >= TOPICS_REMEMBERED_MAX:
            self._known.clear()
        described = self._describe(topic)
        self._known[topic.topic_id] = (topic, described)
        return described

    def _describe(self, topic: TopicInfo) -> MetadataResponseTopic:
        image = self._image
        partitions: list[MetadataResponsePartition] = []
        for index, info in enumerate(topic.partitions):
            leader = image.alive_leader(info)
            partitions.append(
                MetadataResponsePartition(
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=info.leader_epoch,
                    replica_nodes=list(info.replicas),
                    isr_nodes=list(info.isr),
                    offline_replicas=[replica for replica in info.replicas if not image.is_alive(replica)],
                )
            )
        return MetadataResponseTopic(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.internal, partitions=partitions
        )
