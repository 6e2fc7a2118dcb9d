"""The settings of a topic as its replicas need them: numbers for the log, how many must be in sync, who is throttled.

Most topics have the same settings, so equal ones are one object, however many topics there are. What settings exist,
and which value holds for a topic, is decided in `metadata.configs`.
"""

from __future__ import annotations

import msgspec

from chronik.metadata.configs import ConfigView
from chronik.metadata.topic_settings import TopicSettings
from chronik.storage.log_config import LogConfig

KINDS_LIMIT = 1000  # distinct settings remembered before starting over


class ReplicaSettings(msgspec.Struct, frozen=True):
    """Shared by all partitions of all topics that are configured alike."""

    log: LogConfig
    min_insync_replicas: int
    throttled: tuple[str, ...] = ()


class SettingsSource:
    """Replica settings from a node's view of the configs."""

    def __init__(self, configs: ConfigView) -> None:
        self._configs = configs
        self._known: dict[TopicSettings, ReplicaSettings] = {}

    def of(self, topic: str) -> ReplicaSettings:
        """The settings that hold for a topic now."""
        settings = self._configs.topic_settings(topic)
        found = self._known.get(settings)
        if found is None:
            if len(self._known) >= KINDS_LIMIT:
                self._known.clear()
            found = self._known[settings] = replica_settings(settings)
        return found

    def lag_limit_s(self) -> float:
        """How long a follower may lag before it leaves the ISR."""
        return self._configs.broker_int("replica.lag.time.max.ms") / 1000

    def throttled_rate(self) -> int:
        """Bytes per second that throttled replicas get from this node."""
        return self._configs.broker_int("leader.replication.throttled.rate")


def replica_settings(settings: TopicSettings) -> ReplicaSettings:
    """What replicas obey of a topic's settings."""
    log = LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
        segment_jitter_ms=settings.segment_jitter_ms,
        segment_index_bytes=settings.segment_index_bytes,
        index_interval_bytes=settings.index_interval_bytes,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        delete=settings.delete,
        compact=settings.compact,
        delete_retention_ms=settings.delete_retention_ms,
        min_compaction_lag_ms=settings.min_compaction_lag_ms,
        max_compaction_lag_ms=settings.max_compaction_lag_ms,
        min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        max_message_bytes=settings.max_message_bytes,
        file_delete_delay_ms=settings.file_delete_delay_ms,
        durability="fsync" if settings.synced else "os",
    )
    return ReplicaSettings(log, settings.min_insync_replicas, settings.leader_replication_throttled_replicas)
