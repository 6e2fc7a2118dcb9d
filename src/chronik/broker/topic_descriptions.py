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
_LEADERLESS = int(ErrorCode.LEADER_NOT_AVAILABLE)


class TopicDescriptions:
    """Descriptions by topic, of one image."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._brokers_version = -1
        self._alive: frozenset[int] = frozenset()
        self._known: dict[bytes, tuple[TopicInfo, MetadataResponseTopic]] = {}

    def of(self, topic: TopicInfo) -> MetadataResponseTopic:
        """The description of a topic of the image. It is shared: do not change it."""
        if self._brokers_version != self._image.brokers_version:
            self._brokers_version = self._image.brokers_version
            self._alive = frozenset(node_id for node_id, broker in self._image.brokers.items() if broker.alive)
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
        alive = self._alive
        partitions: list[MetadataResponsePartition] = []
        for index, info in enumerate(topic.partitions):
            led = info.leader in alive
            partitions.append(
                MetadataResponsePartition(
                    error_code=0 if led else _LEADERLESS,
                    partition_index=index,
                    leader_id=info.leader if led else NO_LEADER,
                    leader_epoch=info.leader_epoch,
                    replica_nodes=list(info.replicas),
                    isr_nodes=list(info.isr),
                    offline_replicas=[]
                    if alive.issuperset(info.replicas)
                    else [replica for replica in info.replicas if replica not in alive],
                )
            )
        return MetadataResponseTopic(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.internal, partitions=partitions
        )
