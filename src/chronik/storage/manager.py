"""All partition logs of a node: opening them after a stop or a crash, finding, creating and deleting them.

Background work (checkpoints, retention, compaction) is in `housekeeping`; how a folder is opened is in `recovery`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.storage.checkpointing import Checkpointer, sync_paths
from chronik.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    PartitionKey,
    read_offsets,
)
from chronik.storage.deletion import (
    DELETED_FOLDER_SUFFIX,
    STRAY_FOLDER_SUFFIX,
    Trash,
    renamed_folder,
)
from chronik.storage.files import FileSystem, OsFileSystem, write_atomically
from chronik.storage.group_commit import SYNC_THREADS, GroupCommit
from chronik.storage.housekeeping import Housekeeping, HousekeepingConfig
from chronik.storage.log_config import LogConfig
from chronik.storage.log_state import LogServices, LogState
from chronik.storage.open_files import OpenFiles, default_open_files_limit
from chronik.storage.partition_log import PartitionLog
from chronik.storage.recovery import NOTHING_TO_SCAN, LoadedLog, LoadRequest, load_log

READ_THREADS = 4
"""Also what recovery uses, before there is anything to read."""

BACKGROUND_THREADS = 2
CLOSE_DEADLINE_S = 3.0
"""How long closing waits for syncs; what is not synced then is found again by recovery."""

_PARTITION_FOLDER = re.compile(r"^(.{1,249})-(\d{1,10})$")

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """How far the opening of the logs is."""

    logs_done: int
    logs_total: int
    bytes_scanned: int


@dataclass(slots=True)
class Threads:
    """The pools that logs use; tests give their own, to decide when things happen."""

    sync: Executor
    readers: Executor
    background: Executor

    @staticmethod
    def start() -> Threads:
        return Threads(
            ThreadPoolExecutor(SYNC_THREADS, "log-sync"),
            ThreadPoolExecutor(READ_THREADS, "log-read"),
            ThreadPoolExecutor(BACKGROUND_THREADS, "log-background"),
        )

    def shutdown(self, *, wait: bool) -> None:
        for pool in (self.sync, self.readers, self.background):
            pool.shutdown(wait=wait, cancel_futures=True)


class LogManager:
    """The logs under one root folder. Everything but the threads' work runs on the loop."""

    def __init__(
        self,
        root: str | Path,
        fs: FileSystem | None = None,
        *,
        clock: Callable[[], float] = time.time,
        default_config: LogConfig | None = None,
        housekeeping: HousekeepingConfig | None = None,
        threads: Threads | None = None,
        open_files_max: int | None = None,
    ) -> None:
        self.root = str(root).rstrip("/")
        if fs is None:
            Path(self.root).mkdir(parents=True, exist_ok=True)
            fs = OsFileSystem(self.root)
        self._fs = fs
        self._clock = clock
        self._default_config = default_config or LogConfig()
        self._threads = threads or Threads.start()
        self._open_files_max = open_files_max or default_open_files_limit()
        self._logs: dict[PartitionKey, PartitionLog] = {}
        self._housekeeping_config = housekeeping or HousekeepingConfig()
        self.on_failure: Callable[[PartitionLog], None] | None = None
        """Called once for each log that stops because the disk failed it."""
        self._services: LogServices | None = None
        self._housekeeping: Housekeeping | None = None
        self._scanned: _Scanned | None = None
        self._closed = False

    # --- start and stop ------------------------------------------------------------------------------------------

    async def start(self, on_progress: Callable[[RecoveryProgress], None] | None = None) -> None:
        """Open every log under the root, recovering what a crash left, and begin the background work."""
        loop = asyncio.get_running_loop()
        commits = GroupCommit(self._fs, self._threads.sync, defer=loop.call_soon, post=loop.call_soon_threadsafe)
        self._services = services = LogServices(
            self.root,
            self._fs,
            OpenFiles(self._fs, self._open_files_max),
            commits,
            self._threads.readers,
            self._clock_ms,
        )
        services.failed = self._log_failed
        self._trash = Trash(self._fs, self._threads.background, self._clock_ms)
        self._checkpointer = Checkpointer(services, self._logs, self._threads.background)
        await self._open_all(on_progress or _log_progress)
        self._housekeeping = Housekeeping(
            self._logs,
            services,
            self._checkpointer,
            self._trash,
            self._threads.background,
            self._housekeeping_config,
        )
        self._housekeeping.start()

    async def _open_all(self, on_progress: Callable[[RecoveryProgress], None]) -> None:
        fs, root = self._fs, self.root
        marker = f"{root}/{CLEAN_SHUTDOWN}"
        clean = fs.size(marker) is not None
        points = read_offsets(fs, f"{root}/{RECOVERY_POINTS}")
        watermarks = read_offsets(fs, f"{root}/{HIGH_WATERMARKS}")
        starts = read_offsets(fs, f"{root}/{LOG_STARTS}")
        cleaned = read_offsets(fs, f"{root}/{CLEANER_POINTS}")
        if clean:
            # From the first write on the stop was not a clean one.
            fs.remove(marker)
            fs.sync_directory(root)
        keys = list(self._folders())
        self._checkpointer.recorded = {*points, *watermarks, *starts, *cleaned}
        scanned = self._scanned = _Scanned(len(keys), on_progress)
        now_ms = self._clock_ms()
        pending = [
            self._threads.readers.submit(
                load_log,
                fs,
                LoadRequest(
                    f"{root}/{key[0]}-{key[1]}",
                    NOTHING_TO_SCAN if clean else points.get(key, 0),
                    starts.get(key, 0),
                    self._default_config.index_interval_bytes,
                    now_ms,
                    scanned.add_bytes,
                ),
            )
            for key in keys
        ]
        to_sync: list[str] = []
        for key, future in zip(keys, pending, strict=True):
            log = self._new_log(key[0], key[1], None, self._default_config)
            try:
                loaded = await asyncio.wrap_future(future)
                self._install(log, loaded)
                to_sync += loaded.to_sync
            except OSError as error:
                log.fail(f"it could not be opened: {error}")
            log.checkpointed_offset = log.end_offset if clean else points.get(key, 0)
            log.cleaned_to = min(cleaned.get(key, 0), log.end_offset)
            log.set_high_watermark(watermarks.get(key, 0))
            self._logs[key] = log
            scanned.one_done()
        await asyncio.wrap_future(self._threads.background.submit(sync_paths, fs, to_sync))
        if not clean:
            # A recovery point above the end of a log that was cut would vouch for records not written yet.
            await self._checkpointer.run()

    def _folders(self) -> Iterator[PartitionKey]:
        for name in sorted(self._fs.names(self.root)):
            if name.endswith(DELETED_FOLDER_SUFFIX):
                self._trash.add_path(f"{self.root}/{name}", 0)
                continue
            match = _PARTITION_FOLDER.match(name)
            if match is not None and self._fs.is_directory(f"{self.root}/{name}"):
                yield match[1], int(match[2])

    def _install(self, log: PartitionLog, loaded: LoadedLog) -> None:
        log.topic_id = loaded.topic_id
        log.segments = loaded.segments
        log.bases = [segment.base_offset for segment in loaded.segments]
        log.log_start_offset = log.high_watermark = loaded.log_start_offset
        log.end_offset = log.flushed_offset = loaded.end_offset
        log.snapshot_offsets = loaded.snapshot_offsets
        log.producer_states = loaded.producers
        if len(loaded.epochs):
            log.epochs = loaded.epochs
            log.latest_epoch = loaded.epochs.latest
        log.damage = loaded.damaged
        log.epochs_changed = loaded.epochs_changed
        if loaded.segments:
            self._require_services().changed.add(log)

    async def close(self) -> None:
        """Stop the background work, sync everything, and leave a marker that spares the next start all scans."""
        if self._services is None or self._closed:
            return
        self._closed = True
        if self._housekeeping is None:
            # Stopped while logs were being opened: what is on the disk is what the next start has to look at.
            if self._scanned is not None:
                self._scanned.stopped = True
            self._threads.shutdown(wait=False)
            return
        await self._housekeeping.stop()
        clean = False
        try:
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                idle = asyncio.Event()
                self._services.commits.when_idle(idle.set)
                await idle.wait()
                await self._housekeeping.flush_for_close()
                marker = f"{self.root}/{CLEAN_SHUTDOWN}"
                await self._in_background(lambda: write_atomically(self._fs, marker, b'{"version":0}'))
            clean = True
        except TimeoutError:
            logger.warning("logs were still being synced at the deadline, the next start scans their ends")
        except OSError as error:
            logger.error("logs could not be closed cleanly, the next start scans their ends", error=str(error))
        self._services.files.close()
        self._threads.shutdown(wait=clean)

    def _clock_ms(self) -> int:
        return int(self._clock() * 1000)

    async def _in_background(self, job: Callable[[], None]) -> None:
        await asyncio.wrap_future(self._threads.background.submit(job))

    # --- logs ----------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self._logs.get((topic, partition))

    def create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig | None = None) -> PartitionLog:
        """The log of a partition, made if it does not exist; it has no files before its first record.

        Raises KafkaError(INCONSISTENT_TOPIC_ID) when the folder holds the data of another topic of that name.
        """
        log = self._logs.get((topic, partition))
        if log is None:
            log = self._logs[(topic, partition)] = self._new_log(
                topic, partition, topic_id, config or self._default_config
            )
            return log
        if log.topic_id is None:
            log.adopt_topic_id(topic_id)
        elif log.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{log.directory} holds data of topic id {log.topic_id.hex()}, not {topic_id.hex()}: "
                "set it aside or delete it first",
            )
        if config is not None:
            log.config = config
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Delete a log: gone at once, its disk space freed soon after, on a thread."""
        log = self._logs.pop((topic, partition), None)
        if log is None:
            return
        path = self._retire(log, DELETED_FOLDER_SUFFIX)
        if path is not None:
            self._trash.add_path(path, log.config.file_delete_delay_ms)

    def set_aside(self, topic: str, partition: int) -> str | None:
        """Keep the data of a partition that the cluster does not know, out of the way; the path where it is now."""
        log = self._logs.pop((topic, partition), None)
        if log is None:
            return None
        path = self._retire(log, STRAY_FOLDER_SUFFIX)
        if path is not None:
            logger.warning("a partition that the cluster does not know was set aside", log=repr(log), path=path)
        return path

    def _retire(self, log: PartitionLog, suffix: str) -> str | None:
        services = self._require_services()
        for segment in log.segments:
            services.files.forget(segment.log_slot)
            services.files.forget(segment.index_slot)
        services.changed.discard(log)
        had_files = bool(log.segments)
        log.retire()
        services.checkpoint_soon()
        if not had_files and self._fs.size(log.directory) is None:
            return None
        path = f"{self.root}/{renamed_folder(log.topic, log.partition, suffix)}"
        try:
            self._fs.rename(log.directory, path)
        except OSError as error:
            logger.error("the folder of a partition could not be renamed", path=log.directory, error=str(error))
            return None
        return path

    def known(self) -> Iterator[tuple[str, int, bytes | None]]:
        """(topic, partition, topic id) of every log."""
        return ((log.topic, log.partition, log.topic_id) for log in list(self._logs.values()))

    def logs(self) -> Iterator[PartitionLog]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    def _new_log(self, topic: str, partition: int, topic_id: bytes | None, config: LogConfig) -> PartitionLog:
        return PartitionLog(self._require_services(), topic, partition, topic_id, config)

    def _require_services(self) -> LogServices:
        if self._services is None:
            raise RuntimeError("the log manager is not started: await start() first")
        return self._services

    def _log_failed(self, log: LogState) -> None:
        if self.on_failure is not None and isinstance(log, PartitionLog):
            self.on_failure(log)


class RecoveryStopped(Exception):
    """The node stops before its logs are recovered; the next start begins anew."""


class _Scanned:
    """Counts what recovery has done; threads add bytes, the loop adds logs."""

    def __init__(self, total: int, on_progress: Callable[[RecoveryProgress], None]) -> None:
        self._total = total
        self._on_progress = on_progress
        self._bytes = 0
        self._done = 0
        self.stopped = False

    def add_bytes(self, size: int) -> None:
        """Raises RecoveryStopped on the thread that scans, when nobody waits for it any more."""
        if self.stopped:
            raise RecoveryStopped
        self._bytes += size

    def one_done(self) -> None:
        self._done += 1
        self._on_progress(RecoveryProgress(self._done, self._total, self._bytes))


def _log_progress(progress: RecoveryProgress) -> None:
    step = max(progress.logs_total // 10, 1)
    if progress.logs_total > 1 and (progress.logs_done % step == 0 or progress.logs_done == progress.logs_total):
        logger.info(
            "opening partition logs",
            done=progress.logs_done,
            total=progress.logs_total,
            scanned_bytes=progress.bytes_scanned,
        )
