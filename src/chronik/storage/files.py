"""The small file interface that everything in storage runs on, and its implementation over the operating system.

What lives here: opening, reading, writing, syncing files and directories. What does not: any knowledge of logs. Tests
run the same storage code on a double that loses unsynced bytes and directory entries (tests/harness/simulated_disk).

Paths are plain strings, joined with "/": a node handles many thousands of them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from pathlib import Path
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

SYNCFS_REPORTS_ERRORS_SINCE = (5, 8)
"""Older kernels return success from syncfs although a page could not be written: unusable for a durable log."""

_READ_WITHOUT_WAITING = getattr(os, "RWF_NOWAIT", 0)
_NOT_CACHED = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class File(Protocol):
    """One open file. Positions are explicit, so that threads can share it."""

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def read_nowait(self, position: int, size: int) -> bytearray | None:
        """Exactly `size` bytes if they are in memory, else None. Never waits for the disk."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data`. After an OSError any part of it may be there."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when the contents and the size are on the disk; OSError when that is not certain."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What storage needs of a file system."""

    def open(self, path: str, *, create: bool = False) -> File: ...

    def names(self, directory: str) -> list[str]:
        """Names in a directory, in no order; empty when the directory does not exist."""

    def is_directory(self, path: str) -> bool: ...

    def size(self, path: str) -> int | None:
        """Size of a file in bytes, or None when it does not exist."""

    def modified_ms(self, path: str) -> int: ...

    def make_directory(self, path: str) -> None:
        """Make a directory; one that exists already is fine, a missing parent is not."""

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing a file of that name."""

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is fine."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; one that is not there is fine."""

    def sync_directory(self, path: str) -> None:
        """Make the creations, renames and removals in a directory durable."""

    def sync_everything(self) -> bool:
        """Sync the whole file system at once. False when the platform cannot do that and report errors."""


class OsFile:
    """A file descriptor. It is closed with its last reference, so a thread that still reads keeps it open."""

    __slots__ = ("_fd", "_nowait")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._nowait = _READ_WITHOUT_WAITING != 0

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._fd, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_nowait(self, position: int, size: int) -> bytearray | None:
        if not self._nowait:
            return None
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, (buffer,), position, _READ_WITHOUT_WAITING)
        except OSError as error:
            if error.errno in _NOT_CACHED:
                return None
            if error.errno in _NOT_SUPPORTED:
                self._nowait = False
                return None
            raise
        return buffer if got == size else None

    def write_at(self, position: int, data: Buffer) -> None:
        size = len(data)
        written = os.pwrite(self._fd, data, position)
        if written == size:
            return
        view = memoryview(data)
        while written < size:
            step = os.pwrite(self._fd, view[written:], position + written)
            if step == 0:
                raise OSError(errno.ENOSPC, "the file system accepted no more bytes")
            written += step

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsFileSystem:
    """The operating system's files under one root folder, which must exist."""

    def __init__(self, root: str) -> None:
        # Errors of syncfs are reported per descriptor since it was opened, so one is kept from the start.
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._syncfs = _find_syncfs()

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC
        return OsFile(os.open(path, flags | os.O_CREAT if create else flags, 0o644))

    def names(self, directory: str) -> list[str]:
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in entries]
        except FileNotFoundError:
            return []

    def is_directory(self, path: str) -> bool:
        return Path(path).is_dir()

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size  # noqa: PTH116 - a Path per file costs more than the call
        except FileNotFoundError:
            return None

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116

    def make_directory(self, path: str) -> None:
        Path(path).mkdir(exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        Path(source).replace(target)

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def remove_directory(self, path: str) -> None:
        try:
            Path(path).rmdir()
        except FileNotFoundError:
            return

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_everything(self) -> bool:
        if self._syncfs is None:
            return False
        if self._syncfs(self._root_fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"syncfs: {os.strerror(code)}")
        return True

    def close(self) -> None:
        fd, self._root_fd = self._root_fd, -1
        self._syncfs = None
        if fd >= 0:
            os.close(fd)


def _find_syncfs() -> ctypes._NamedFuncPointer | None:
    if platform.system() != "Linux":
        return None
    release = platform.release().split(".")
    try:
        version = (int(release[0]), int(release[1]))
    except (IndexError, ValueError):
        return None
    if version < SYNCFS_REPORTS_ERRORS_SINCE:
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def read_whole(fs: FileSystem, path: str, limit: int) -> bytes | None:
    """Contents of a small file, or None when it does not exist. ValueError when it is larger than `limit`."""
    size = fs.size(path)
    if size is None:
        return None
    if size > limit:
        raise ValueError(f"{path} has {size} bytes, more than the {limit} such a file can have")
    file = fs.open(path)
    try:
        return file.read_at(0, size)
    finally:
        file.close()


def write_atomically(fs: FileSystem, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace a small file: readers find the old contents or the new, also after a power cut.

    Without `sync` the caller makes it durable later, together with others.
    """
    temporary = f"{path}.tmp"
    file = fs.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write_at(0, data)
        # The contents must reach the disk before the name does, or the name may show an empty file.
        if sync:
            file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    if sync:
        fs.sync_directory(path.rpartition("/")[0])
