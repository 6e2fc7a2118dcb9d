"""Data on disk, and whether metadata knows it.

A log is kept under the id of its topic. Data is removed only when metadata says that this very topic was deleted, or
that this replica was moved away while others were in sync; everything else that metadata does not know is set aside and
reported, never deleted on a guess. And nothing is judged before this process's own registration is in the image: until
then the image may be older than the data. A topic that was created again has another id and never sees the old data.
A log that the disk did not let us open stays where it is, and stays the replica's: one that began anew in its place
would be empty, and count as in sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from chronik.metadata.model import TopicInfo

if TYPE_CHECKING:
    from chronik.metadata.image import MetadataImage
    from chronik.replication.metrics import ReplicationMetrics
    from chronik.storage import LogManager, PartitionLog

log = structlog.get_logger()


class OrphanKeeper:
    """Decides what becomes of logs that the image does not ask for."""

    def __init__(self, node_id: int, image: MetadataImage, logs: LogManager, metrics: ReplicationMetrics) -> None:
        self._node_id = node_id
        self._image = image
        self._logs = logs
        self._metrics = metrics

    def settle(self) -> Iterator[None]:
        """Goes through everything on disk, a log at a time, once the image is known to be recent enough."""
        for topic, index, topic_id in list(self._logs.known()):
            if self._unreadable(self._logs.get(topic, index)):
                continue
            known = self._image.topics_by_id.get(topic_id) if topic_id is not None else None
            if known is None:
                self._discard(topic, index, topic_id)
            elif index >= len(known.partitions) or self._node_id not in known.partitions[index].replicas:
                self._set_aside(topic, index, topic_id, "this node has no replica of it")
            yield

    def claim(self, topic: TopicInfo, index: int) -> PartitionLog | None:
        """The log of this replica, if it is on disk; data of another topic of that name makes room for it."""
        found = self._logs.get(topic.name, index)
        if found is None or found.topic_id == topic.topic_id or self._unreadable(found):
            return found
        self._discard(topic.name, index, found.topic_id)
        return None

    @staticmethod
    def _unreadable(found: PartitionLog | None) -> bool:
        """Whether the disk failed a log before it was known whose it is."""
        return found is not None and found.topic_id is None and found.failure is not None

    def topic_deleted(self, topic: TopicInfo) -> None:
        """Metadata says it: the data of this topic goes."""
        for index in range(len(topic.partitions)):
            found = self._logs.get(topic.name, index)
            if found is not None and found.topic_id == topic.topic_id:
                self._logs.delete(topic.name, index)

    def _discard(self, topic: str, index: int, topic_id: bytes | None) -> None:
        if topic_id is not None and self._image.was_deleted(topic_id):
            log.info("deleting the data of a topic that was deleted", topic=topic, partition=index, id=topic_id.hex())
            self._logs.delete(topic, index)
        elif topic_id is None:
            # The file with the id is synced before any record counts: nothing in here was ever acknowledged.
            self._set_aside(topic, index, topic_id, "a crash has lost the id of its topic")
        else:
            self._set_aside(topic, index, topic_id, "metadata does not know its topic")

    def _set_aside(self, topic: str, index: int, topic_id: bytes | None, reason: str) -> None:
        self._metrics.logs_set_aside += 1
        log.warning(
            "setting data aside; look at it, then remove it by hand",
            topic=topic,
            partition=index,
            id=topic_id.hex() if topic_id is not None else None,
            reason=reason,
        )
        self._logs.set_aside(topic, index)
