"""The few file operations that consensus storage needs, as a protocol, and the real one on the operating system.

The protocol is as narrow as it is so that a double can lose what was not synced: bytes of a file until `sync`,
and names of a folder (creations, renames, removals) until `sync_folder`. Nothing here knows records or snapshots.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class AppendFile(Protocol):
    """A file that only grows, apart from `truncate`. Nothing is durable before `sync` returned."""

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None: ...

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """All calls block; all raise OSError. A name is durable only after `sync_folder` of the folder that holds it."""

    def make_folder(self, folder: Path) -> None:
        """Creates the folder and its parents if missing, durably."""

    def names(self, folder: Path) -> list[str]: ...

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def read(self, path: Path, position: int = 0, length: int | None = None) -> bytes: ...

    def open_append(self, path: Path) -> AppendFile:
        """Opens for appending at the end, creating the file when missing."""

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def sync_folder(self, folder: Path) -> None: ...


class OsAppendFile:
    """An `AppendFile` on a descriptor of the operating system."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        # Short writes happen (signals, almost full disks); go on from where the kernel stopped.
        pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        while pending:
            written = os.writev(self._descriptor, pending[: os.sysconf("SC_IOV_MAX")])
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if written:
                pending[0] = pending[0][written:]

    def sync(self) -> None:
        # fdatasync also writes the size when it changed; it only spares the timestamps.
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        os.close(self._descriptor)


class OsFileSystem:
    """The real file system."""

    def make_folder(self, folder: Path) -> None:
        missing = []
        parent = folder
        while not parent.exists():
            missing.append(parent)
            parent = parent.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            self.sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path, position: int = 0, length: int | None = None) -> bytes:
        with path.open("rb") as file:
            file.seek(position)
            return file.read() if length is None else file.read(length)

    def open_append(self, path: Path) -> OsAppendFile:
        return OsAppendFile(path)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_durably(fs: FileSystem, path: Path, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Replaces a whole file so that a crash at any moment leaves either the old content or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    if fs.exists(temporary):
        fs.remove(temporary)
    file = fs.open_append(temporary)
    try:
        file.append(buffers)
        file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.sync_folder(path.parent)
