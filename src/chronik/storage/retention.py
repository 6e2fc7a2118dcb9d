"""Which segments a log no longer has to keep: too old, too much, or before its start. Pure."""

from __future__ import annotations

from chronik.storage.log_config import UNLIMITED
from chronik.storage.log_state import LogState
from chronik.storage.segment import Segment


def expired_segments(log: LogState, now_ms: int) -> tuple[int, str]:
    """(how many of the oldest segments can go, why). All of them means that a new one must begin first.

    Only what lies below the high watermark goes: a follower may still need the rest.
    """
    config = log.settings
    segments = log.segments
    surplus = log.size_bytes - config.retention_bytes
    count = 0
    reason = ""
    for segment in segments:
        last = segment is segments[-1]
        if segment.next_offset > log.high_watermark or (last and not segment.size):
            break
        if not last and segment.next_offset <= log.log_start_offset:
            why = "before the start of the log"
        elif config.delete and config.retention_ms != UNLIMITED and _age_ms(segment, now_ms) > config.retention_ms:
            why = "older than retention.ms"
        elif config.delete and config.retention_bytes != UNLIMITED and surplus >= segment.size and not last:
            why = "beyond retention.bytes"
        else:
            break
        surplus -= segment.size
        reason = why
        count += 1
    return count, reason


def _age_ms(segment: Segment, now_ms: int) -> int:
    """Age of the newest record; of the file, where records have no time."""
    newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
    return now_ms - newest
