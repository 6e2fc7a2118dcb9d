"""The settings of one partition log, already resolved to numbers. Names, synonyms and validation live in metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DAY_MS = 24 * 60 * 60 * 1000
UNLIMITED = -1
NEVER_MS = (1 << 63) - 1

Durability = Literal["fsync", "os"]


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Kafka's topic settings that a log obeys; the defaults are Kafka's, except that appends are synced."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    delete: bool = True
    compact: bool = False
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER_MS
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = 1024 * 1024 + 12
    file_delete_delay_ms: int = 60_000
    durability: Durability = "fsync"

    @property
    def synced(self) -> bool:
        """Whether an append counts only once it is on the disk."""
        return self.durability == "fsync"
