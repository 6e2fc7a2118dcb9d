"""A bounded cache of open files: any number of partitions, a limited number of descriptors.

A `FileSlot` is the place where a file is used from; it finds its file open, or opens it and closes the slot that has
been idle longest instead. Threads take the `File` itself and keep it for as long as they use it: a file is closed when
nobody refers to it any more, never under a reader.
"""

from __future__ import annotations

import errno
import resource
from collections import deque

from chronik.storage.files import File, FileSystem

OPEN_FILES_MAX = 8192
"""The most descriptors that logs use, when the process may have more than twice as many."""

OPEN_FILES_MIN = 64


def default_open_files_limit() -> int:
    """Half of the descriptors the process may have: the other half is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return max(OPEN_FILES_MIN, min(OPEN_FILES_MAX, soft // 2))


class FileSlot:
    """A path and, while it is in use, the open file."""

    __slots__ = ("file", "path", "touched")

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: File | None = None
        self.touched = False


class OpenFiles:
    """Opens files for slots and closes the idle ones beyond the limit (second chance, so a hit costs nothing)."""

    __slots__ = ("_fs", "_limit", "_queue")

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._queue: deque[FileSlot] = deque()

    def __len__(self) -> int:
        return sum(1 for slot in self._queue if slot.file is not None)

    def get(self, slot: FileSlot, *, create: bool = False) -> File:
        slot.touched = True
        file = slot.file
        if file is not None:
            return file
        if len(self._queue) >= self._limit:
            self._make_room()
        try:
            file = self._fs.open(slot.path, create=create)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._queue:
                raise
            self._make_room()
            file = self._fs.open(slot.path, create=create)
        slot.file = file
        self._queue.append(slot)
        return file

    def forget(self, slot: FileSlot) -> None:
        """The slot is no longer used; its place in the queue is given up when it is met."""
        slot.file = None
        slot.touched = False

    def _make_room(self) -> None:
        queue = self._queue
        for _ in range(2 * len(queue)):
            slot = queue.popleft()
            if slot.file is None:
                return
            if not slot.touched:
                slot.file = None
                return
            slot.touched = False
            queue.append(slot)

    def close(self) -> None:
        while self._queue:
            self._queue.popleft().file = None
