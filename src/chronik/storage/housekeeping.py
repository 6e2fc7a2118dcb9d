"""The background work on logs, in three tasks per node: checkpoints, retention, expiry; compaction; removal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from chronik.protocol.errors import KafkaError
from chronik.storage.checkpointing import Checkpointer
from chronik.storage.checkpoints import PartitionKey
from chronik.storage.cleaner import Cleaner
from chronik.storage.deletion import Trash
from chronik.storage.log_config import DAY_MS
from chronik.storage.log_state import LogServices
from chronik.storage.partition_log import PartitionLog
from chronik.storage.retention import expired_segments

LOGS_PER_TURN = 200
"""Logs looked at before other work of the loop gets its turn."""

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HousekeepingConfig:
    """How often the background work is done."""

    checkpoint_interval_s: float = 15.0
    retention_interval_s: float = 300.0
    removal_interval_s: float = 5.0
    producer_expiration_ms: int = DAY_MS
    producer_check_interval_s: float = 600.0
    compaction_interval_s: float = 15.0


class Housekeeping:
    """Runs the background work of all logs."""

    def __init__(
        self,
        logs: Mapping[PartitionKey, PartitionLog],
        services: LogServices,
        checkpointer: Checkpointer,
        trash: Trash,
        executor: Executor,
        config: HousekeepingConfig,
    ) -> None:
        self._logs = logs
        self._services = services
        self._checkpointer = checkpointer
        self._trash = trash
        self._executor = executor
        self._config = config
        self.cleaner = Cleaner(logs, services, trash, executor)
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._checkpoint_now = False
        self._stopping = False
        services.checkpoint_soon = self.checkpoint_soon

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._run(), name="log-housekeeping"),
            # By themselves: they work for minutes where the other duties take milliseconds.
            loop.create_task(_every(self._config.compaction_interval_s, self.cleaner.run), name="log-compaction"),
            loop.create_task(_every(self._config.removal_interval_s, self._remove), name="log-removal"),
        ]

    def checkpoint_soon(self) -> None:
        self._checkpoint_now = True
        self._wake.set()

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self.cleaner.stop()
        if self._tasks:
            for task in self._tasks[1:]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        duties: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (self._config.checkpoint_interval_s, self._checkpointer.run),
            (self._config.retention_interval_s, self.apply_retention),
            (self._config.producer_check_interval_s, self.expire_producers),
        ]
        due = [time.monotonic() + interval for interval, _ in duties]
        while not self._stopping:
            await self._sleep_until(min(due))
            if self._checkpoint_now:
                self._checkpoint_now = False
                due[0] = 0.0
            for number, (interval, duty) in enumerate(duties):
                if self._stopping:
                    return
                if due[number] <= time.monotonic():
                    await _guarded(duty)
                    due[number] = time.monotonic() + interval

    async def _sleep_until(self, moment: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), max(0.0, moment - time.monotonic()))
        except TimeoutError:
            return
        self._wake.clear()

    async def _remove(self) -> None:
        await self._trash.run()

    async def apply_retention(self) -> None:
        """Drop the segments that settings no longer keep, in all logs."""
        for number, log in enumerate(list(self._logs.values())):
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            if log.segments and log.failure is None:
                self.apply_retention_to(log)

    def apply_retention_to(self, log: PartitionLog) -> int:
        """Drop what one log no longer keeps; how many segments that were."""
        count, reason = expired_segments(log, self._services.clock_ms())
        if not count:
            return 0
        if count == len(log.segments):
            try:
                log.roll()
            except KafkaError as error:
                # Most likely the disk is full: all the more reason to remove the others, here and in the other logs.
                logger.warning("the last segment is over but cannot be closed now", log=repr(log), error=error.message)
        gone = log.drop_oldest(count)
        if not gone:
            return 0
        logger.info(
            "segments were deleted",
            topic=log.topic,
            partition=log.partition,
            segments=len(gone),
            bytes=sum(segment.size for segment in gone),
            reason=reason,
            log_start_offset=log.log_start_offset,
        )
        self._trash.add_segments(gone, log.config.file_delete_delay_ms)
        return len(gone)

    async def expire_producers(self) -> None:
        now_ms = self._services.clock_ms()
        for number, log in enumerate(list(self._logs.values())):
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            if log.producer_states is not None:
                log.producer_states.expire(now_ms, self._config.producer_expiration_ms)

    async def flush_for_close(self) -> None:
        """Everything a clean start needs: indexes, snapshots and checkpoints on the disk. OSError when it fails."""
        logs = [log for log in self._logs.values() if log.segments and log.failure is None]
        captures = []
        for number, log in enumerate(logs):
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            capture = self._checkpointer.capture_for_close(log)
            if capture is not None:
                captures.append(capture)
        await self._checkpointer.write(captures)


async def _guarded(duty: Callable[[], Awaitable[None]]) -> None:
    """Run a duty; one that fails is reported, and has its next turn like the others."""
    try:
        await duty()
    except Exception as error:
        logger.exception("background work on logs failed", duty=getattr(duty, "__name__", str(duty)), error=str(error))


async def _every(interval_s: float, duty: Callable[[], Awaitable[None]]) -> None:
    """Run a duty again and again, until cancelled."""
    while True:
        await asyncio.sleep(interval_s)
        await _guarded(duty)
