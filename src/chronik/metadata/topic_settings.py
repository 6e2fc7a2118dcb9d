"""A topic's settings as typed values, for code that must not parse text on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from chronik.metadata.config_definitions import LONG_MAX, Value
from chronik.metadata.topic_configs import TOPIC_CONFIGS


class TopicSettings(msgspec.Struct, frozen=True):
    """Everything a topic's configs come to. Names follow the config names; units are those of the configs."""

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    preallocate: bool
    file_delete_delay_ms: int
    cleanup_policy: tuple[str, ...]
    retention_bytes: int
    retention_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    max_message_bytes: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    message_downconversion_enable: bool
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    leader_replication_throttled_replicas: tuple[str, ...]
    follower_replication_throttled_replicas: tuple[str, ...]
    durability: str
    flush_messages: int
    flush_ms: int
    table_enabled: bool
    table_value_format: str
    table_schema: str
    table_on_error: str

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def synced(self) -> bool:
        """Whether an append counts only once it is on the disk. Who wants syncs now and then gets one per append: group
        commit makes it cheap, and a promise of "some of it" is none."""
        return self.durability == "fsync" or min(self.flush_messages, self.flush_ms) < LONG_MAX

    @property
    def compression_level(self) -> int | None:
        """The level that goes with `compression.type`; None is the codec's own default."""
        levels = {
            "gzip": self.compression_gzip_level if self.compression_gzip_level > 0 else None,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)


SETTING_NAMES: dict[str, str] = {field.replace("_", "."): field for field in TopicSettings.__struct_fields__}
"""Config name to field name, for the configs that have a field."""


def settings_from(value_of: Callable[[str], Value]) -> TopicSettings:
    """Builds the settings from a lookup by config name."""
    return msgspec.convert({field: value_of(name) for name, field in SETTING_NAMES.items()}, TopicSettings)


def with_overrides(base: TopicSettings, overrides: Mapping[str, str]) -> TopicSettings:
    """The settings with what was set on the topic. A config this version does not know (a newer node set it) is left
    alone: it cannot mean anything here."""
    changes = {
        SETTING_NAMES[name]: TOPIC_CONFIGS[name].parse(text)
        for name, text in overrides.items()
        if name in SETTING_NAMES
    }
    return msgspec.structs.replace(base, **changes)
