"""Getting rid of files: renamed at once, so that the log is rid of them, removed later, on a thread, a few at a time.

A thread that does nothing but call the system takes the interpreter from the loop at every call: removing thousands of
folders in one go halved what a node could write. So removal rests in between, for longer where it was in the way.

Readers that still hold such a file open finish undisturbed. What a crash leaves behind is removed at the next start.
"""

from __future__ import annotations

import asyncio
import heapq
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from chronik.storage.files import FileSystem
from chronik.storage.log_cuts import SEGMENT_SUFFIXES
from chronik.storage.segment import Segment
from chronik.storage.segment_swap import DELETED_SUFFIX

DELETED_FOLDER_SUFFIX = "-delete"
STRAY_FOLDER_SUFFIX = "-stray"

FOLDER_NAME_MAX = 255
"""Longest name a file system takes; a long topic name is cut to make room for the rest."""

REMOVALS_PER_ROUND = 16
"""Files and folders removed in one go."""

REST_PER_WORK = 9
"""How many times as long as a round took removal rests before the next one."""

logger = structlog.get_logger()


def renamed_folder(topic: str, partition: int, suffix: str) -> str:
    """The name of a partition folder that is no longer one, as Kafka names it."""
    tail = f"-{partition}.{uuid.uuid4().hex}{suffix}"
    return f"{topic[: FOLDER_NAME_MAX - len(tail)]}{tail}"


class Trash:
    """Files and folders waiting to be removed."""

    def __init__(self, fs: FileSystem, executor: Executor, clock_ms: Callable[[], int]) -> None:
        self._fs = fs
        self._executor = executor
        self._clock_ms = clock_ms
        self._due: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._due)

    def add_segments(self, segments: list[Segment], delay_ms: int) -> None:
        """Rename the files of segments that a log has given up."""
        due = self._clock_ms() + delay_ms
        for segment in segments:
            for suffix in SEGMENT_SUFFIXES:
                path = f"{segment.path}{suffix}"
                try:
                    self._fs.rename(path, f"{path}{DELETED_SUFFIX}")
                except FileNotFoundError:
                    continue
                except OSError as error:
                    logger.warning("a file could not be renamed for removal", path=path, error=str(error))
                    continue
                heapq.heappush(self._due, (due, f"{path}{DELETED_SUFFIX}"))

    def add_path(self, path: str, delay_ms: int) -> None:
        """A file, or a folder with its files, that nobody uses under this name."""
        heapq.heappush(self._due, (self._clock_ms() + delay_ms, path))

    async def run(self, *, everything: bool = False) -> int:
        """Remove what is due; how many files that were."""
        now = self._clock_ms()
        removed = 0
        while self._due and (everything or self._due[0][0] <= now):
            paths: list[str] = []
            while self._due and len(paths) < REMOVALS_PER_ROUND and (everything or self._due[0][0] <= now):
                paths.append(heapq.heappop(self._due)[1])
            began = time.monotonic()
            removed += await asyncio.wrap_future(self._executor.submit(self._remove, paths))
            if self._due:
                await asyncio.sleep((time.monotonic() - began) * REST_PER_WORK)
        return removed

    def _remove(self, paths: list[str]) -> int:
        """On a thread."""
        removed = 0
        for path in paths:
            try:
                if self._fs.is_directory(path):
                    for name in self._fs.names(path):
                        self._fs.remove(f"{path}/{name}")
                        removed += 1
                    self._fs.remove_directory(path)
                else:
                    self._fs.remove(path)
                    removed += 1
            except OSError as error:
                logger.warning("a file could not be removed", path=path, error=str(error))
        return removed
