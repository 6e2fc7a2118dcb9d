"""Which logs to compact and when; hands the work to a thread and puts the result in place. The work is `compaction`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from chronik.protocol.errors import KafkaError
from chronik.storage import segment_swap
from chronik.storage.batch_walk import DamagedBatch
from chronik.storage.checkpoints import PartitionKey
from chronik.storage.compaction import (
    CleaningRules,
    CompactionStopped,
    Pacer,
    SegmentCleaner,
    Source,
    group_sources,
    map_keys,
)
from chronik.storage.deletion import Trash
from chronik.storage.log_config import NEVER_MS
from chronik.storage.log_state import LogServices
from chronik.storage.partition_log import PartitionLog
from chronik.storage.segment import Segment

THREAD_SHARE = 0.3
"""The share of its time that compaction works; the rest it leaves to the loop."""

T = TypeVar("T")

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A log that has something to compact."""

    log: PartitionLog
    start: int
    """Everything below was compacted before."""
    end: int
    dirty_ratio: float


def find_candidate(log: PartitionLog, now_ms: int) -> Candidate | None:
    """Whether a log is due: enough of it is dirty, or something has been dirty for too long."""
    config = log.config
    if not config.compact or len(log.segments) < 2 or log.failure is not None:
        return None
    start = max(log.cleaned_to, log.log_start_offset)
    decided = log.last_stable_offset
    clean_bytes = dirty_bytes = 0
    end = start
    oldest_dirty: int | None = None
    for segment in log.segments[:-1]:
        if segment.next_offset <= start:
            clean_bytes += segment.size
            continue
        newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        if segment.next_offset > decided or now_ms - newest < config.min_compaction_lag_ms:
            break
        if oldest_dirty is None:
            oldest_dirty = segment.first_timestamp if segment.first_timestamp is not None else newest
        dirty_bytes += segment.size
        end = segment.next_offset
    if end <= start or not dirty_bytes:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    overdue = config.max_compaction_lag_ms < NEVER_MS and now_ms - (oldest_dirty or 0) > config.max_compaction_lag_ms
    if ratio <= config.min_cleanable_dirty_ratio and not overdue:
        return None
    return Candidate(log, start, end, 2.0 if overdue else ratio)


class Cleaner:
    """Compacts the logs of a node, one at a time, the dirtiest first."""

    def __init__(
        self,
        logs: Mapping[PartitionKey, PartitionLog],
        services: LogServices,
        trash: Trash,
        executor: Executor,
        share: float = THREAD_SHARE,
    ) -> None:
        self._logs = logs
        self._services = services
        self._trash = trash
        self._executor = executor
        self._pacer = Pacer(share)
        self._uncleanable: set[PartitionLog] = set()
        """Logs that cannot be compacted because they are damaged; reported once."""

    def stop(self) -> None:
        """End the work that a thread is doing."""
        self._pacer.stopped = True

    async def run(self) -> None:
        """Compact every log that is due."""
        now_ms = self._services.clock_ms()
        for log in list(self._logs.values()):
            if log.config.compact:
                self._roll_if_overdue(log, now_ms)
        found = [find_candidate(log, now_ms) for log in list(self._logs.values()) if log not in self._uncleanable]
        candidates = [candidate for candidate in found if candidate is not None]
        for candidate in sorted(candidates, key=lambda candidate: -candidate.dirty_ratio):
            await self.compact(candidate)

    def _roll_if_overdue(self, log: PartitionLog, now_ms: int) -> None:
        """The last segment cannot be compacted: with `max.compaction.lag.ms` it must not stay the last for longer."""
        limit = log.config.max_compaction_lag_ms
        if limit >= NEVER_MS or not log.segments or log.failure is not None:
            return
        active = log.segments[-1]
        if active.size and active.first_timestamp is not None and now_ms - active.first_timestamp > limit:
            try:
                log.roll()
            except KafkaError as error:
                logger.warning("a segment could not be closed for compaction", log=repr(log), error=error.message)

    async def compact(self, candidate: Candidate) -> bool:
        """Compact one log; False when it had to be left as it was."""
        log = candidate.log
        before, generation = log.size_bytes, log.generation
        try:
            done = await self._compact(candidate)
        except (DamagedBatch, KafkaError) as error:
            if log.generation != generation:
                return False  # it was cut under the thread that read it
            self._uncleanable.add(log)
            logger.error(
                "a log cannot be compacted because it is damaged", topic=log.topic, partition=log.partition,
                error=str(error),
            )  # fmt: skip
            return False
        except CompactionStopped:
            return False
        except OSError as error:
            logger.warning("compaction failed and is tried again later", log=repr(log), error=str(error))
            return False
        if done:
            logger.info(
                "a log was compacted",
                topic=log.topic,
                partition=log.partition,
                bytes_before=before,
                bytes_after=log.size_bytes,
                compacted_to=log.cleaned_to,
            )
        return done

    async def _compact(self, candidate: Candidate) -> bool:
        log, fs = candidate.log, self._services.fs
        generation = log.generation
        sources = [
            Source(segment.path, segment.base_offset, segment.next_offset, segment.size)
            for segment in log.segments[:-1]
            if segment.next_offset <= candidate.end
        ]
        aborted = tuple(entry for segment in log.segments for entry in segment.aborted(fs))
        keys = await self._on_thread(partial(map_keys, fs, sources, aborted, candidate.start, self._pacer))
        if keys.end_offset <= candidate.start:
            return False
        config = log.config
        rules = CleaningRules(
            log.directory,
            self._services.clock_ms(),
            config.delete_retention_ms,
            config.index_interval_bytes,
            _last_batches(log),
            aborted,
        )
        affected = [source for source in sources if source.base_offset < keys.end_offset]
        cleaner = SegmentCleaner(fs, rules, keys, self._pacer)
        groups = group_sources(affected, config.segment_bytes, config.segment_index_bytes, config.index_interval_bytes)
        for group in groups:
            try:
                segment = await self._on_thread(partial(cleaner.clean, group))
            except OSError:
                segment_swap.discard(fs, group[0].path)  # a full disk needs the room
                raise
            if not self._swap(log, generation, group, segment):
                return False
        log.cleaned_to = keys.end_offset
        self._services.changed.add(log)
        return True

    def _swap(self, log: PartitionLog, generation: int, group: list[Source], segment: Segment) -> bool:
        """On the loop: put a compacted segment in the place of its sources, if they are still there."""
        fs = self._services.fs
        wanted = [source.base_offset for source in group]
        first = log.segment_index(wanted[0])
        count = len(wanted)
        unchanged = log.generation == generation and log.failure is None
        if not unchanged or log.bases[first : first + count] != wanted or first + count >= len(log.segments):
            segment_swap.discard(fs, segment.path)
            return False
        try:
            segment_swap.commit(fs, segment.path)
            old = log.replace_segments(first, count, segment)
            self._trash.add_segments(old, log.config.file_delete_delay_ms)
            segment_swap.complete(fs, segment.path)
        except OSError as error:
            log.fail(f"putting a compacted segment in place failed: {error}")
            return False
        return True

    async def _on_thread(self, job: Callable[[], T]) -> T:
        def work() -> T:
            self._pacer.begin()
            return job()

        return await asyncio.wrap_future(self._executor.submit(work))


def _last_batches(log: PartitionLog) -> dict[int, tuple[int, int | None]]:
    states = log.producer_states
    if states is None:
        return {}
    return {
        entry.producer_id: (entry.epoch, entry.batches[-1].last_offset if entry.batches else None)
        for entry in states.entries.values()
    }
