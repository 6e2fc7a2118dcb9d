"""A disk in memory for consensus storage that can lose what was not synced, tear writes, fill up and fail.

It implements `chronik.raft.files.FileSystem`. After `power_cut` the files are what a real disk might hold: synced bytes
whole, unsynced ones in any part, and the names of a folder as of its last sync plus any beginning of what came after.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path


class PowerCut(Exception):
    """The machine went dark in the middle of this operation."""


class _Inode:
    __slots__ = ("content", "durable")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""

    def after_power_cut(self, rng: random.Random) -> _Inode:
        survivor = _Inode()
        content = bytes(self.content)
        if len(content) >= len(self.durable) and content.startswith(self.durable):
            tail = bytearray(content[len(self.durable) :][: rng.randint(0, len(content) - len(self.durable))])
            if tail and rng.random() < 0.3:  # blocks reach the disk in any order: a hole in the middle of the tail
                start = rng.randrange(len(tail))
                end = rng.randint(start, len(tail))
                tail[start:end] = bytes(end - start)
            survivor.durable = self.durable + bytes(tail)
        else:
            survivor.durable = rng.choice((content, self.durable))
        survivor.content = bytearray(survivor.durable)
        return survivor


class _File:
    def __init__(self, disk: SimulatedRaftDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._disk.step("append", lambda: self._inode.content.extend(data[: len(data) // 2]))
        room = self._disk.free_bytes
        if room is not None:
            self._disk.free_bytes = max(0, room - len(data))
            if len(data) > room:
                self._inode.content.extend(data[:room])
                raise OSError(errno.ENOSPC, "No space left on device")
        self._inode.content.extend(data)

    def sync(self) -> None:
        self._disk.step("sync")
        self._inode.durable = bytes(self._inode.content)

    def truncate(self, size: int) -> None:
        self._disk.step("truncate")
        del self._inode.content[size:]

    def close(self) -> None:
        pass


class SimulatedRaftDisk:
    """`crash_at` cuts the power at the n-th operation from now; `fail` makes operations of that name raise EIO."""

    def __init__(self) -> None:
        self._live: dict[Path, _Inode] = {}
        self._durable: dict[Path, _Inode] = {}
        self._pending: dict[Path, list[Callable[[dict[Path, _Inode]], None]]] = {}
        self._folders: set[Path] = set()
        self.operations = 0
        self.syncs = 0
        self.crash_at: int | None = None
        self.fail: set[str] = set()
        self.free_bytes: int | None = None

    def step(self, name: str, half: Callable[[], object] | None = None) -> None:
        """Counts an operation; cuts the power here if it is the chosen one, after doing half of it."""
        self.operations += 1
        self.syncs += name == "sync"
        if name in self.fail:
            raise OSError(errno.EIO, "Input/output error")
        if self.crash_at is not None and self.operations >= self.crash_at:
            if half is not None:
                half()
            raise PowerCut(name)

    def power_cut(self, rng: random.Random) -> None:
        """Everything in memory is gone; what remains was synced, or had luck."""
        names = dict(self._durable)
        for operations in self._pending.values():
            for operation in operations[: rng.randint(0, len(operations))]:
                operation(names)
        survivors: dict[int, _Inode] = {}
        for path, inode in names.items():
            survivors.setdefault(id(inode), inode.after_power_cut(rng))
            names[path] = survivors[id(inode)]
        self._live = dict(names)
        self._durable = dict(names)
        self._pending.clear()
        self.crash_at = None
        self.fail.clear()

    def _change(self, folder: Path, operation: Callable[[dict[Path, _Inode]], None]) -> None:
        operation(self._live)
        self._pending.setdefault(folder, []).append(operation)

    # --- the file system -----------------------------------------------------------------------------------------

    def make_folder(self, folder: Path) -> None:
        self._folders.add(folder)

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in self._live if path.parent == folder)

    def exists(self, path: Path) -> bool:
        return path in self._live

    def size(self, path: Path) -> int:
        return len(self._inode(path).content)

    def read(self, path: Path, position: int = 0, length: int | None = None) -> bytes:
        content = self._inode(path).content
        return bytes(content[position:] if length is None else content[position : position + length])

    def open_append(self, path: Path) -> _File:
        if path not in self._live:
            self.step("create")
            inode = _Inode()
            self._change(path.parent, lambda names: names.__setitem__(path, inode))
        return _File(self, self._live[path])

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename")
        inode = self._inode(source)

        def move(names: dict[Path, _Inode]) -> None:
            names.pop(source, None)
            names[target] = inode

        self._change(source.parent, move)

    def remove(self, path: Path) -> None:
        self.step("remove")
        self._inode(path)
        self._change(path.parent, lambda names: names.pop(path, None) and None)

    def sync_folder(self, folder: Path) -> None:
        self.step("sync_folder")
        for path in [path for path in self._durable if path.parent == folder]:
            del self._durable[path]
        self._durable.update({path: inode for path, inode in self._live.items() if path.parent == folder})
        self._pending.pop(folder, None)

    def _inode(self, path: Path) -> _Inode:
        if path not in self._live:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return self._live[path]

    # --- damage --------------------------------------------------------------------------------------------------

    def overwrite(self, path: Path, content: bytes) -> None:
        """Puts other bytes in a file, as a failing disk would."""
        inode = self._inode(path)
        inode.content = bytearray(content)
        inode.durable = content
