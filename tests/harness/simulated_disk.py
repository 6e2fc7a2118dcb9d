"""A file system in memory that forgets, at a power cut, what was not synced; and executors that run when told to.

It knows two worlds: what processes see (the page cache) and what is on the medium. A file's bytes reach the medium with
`sync`, its name with `sync_directory` of the folder that holds it. At a power cut every unsynced sector is kept or lost
by itself, a file may have any size between the old and the new one, and of the changes to a folder a prefix survives.

Faults to plan: full disk, failing writes, failing syncs (after which, as on Linux, the bytes are gone although the next
sync succeeds), flipped bits, a power cut at the n-th operation.
"""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

SECTOR = 512


class PowerCut(BaseException):
    """The power went off in the middle of an operation. Not an Exception: nothing may swallow it."""


class Inode:
    """The bytes of one file, in both worlds."""

    def __init__(self) -> None:
        self.current = bytearray()
        self.durable = b""
        self.dropped = False
        """A failed sync has lost bytes; later syncs succeed without bringing them back."""
        self.changed = False

    def sync(self) -> None:
        if not self.dropped and self.changed:
            self.durable = bytes(self.current)
            self.changed = False

    def cut(self, dice: random.Random, keep: float) -> None:
        """What is left of the file after a power cut."""
        if not self.changed:
            return
        old, new = self.durable, bytes(self.current)
        low, high = sorted((len(old), len(new)))
        size = dice.choice((len(old), len(new), dice.randint(low, high)))
        left = bytearray(size)
        for start in range(0, size, SECTOR):
            source = new if dice.random() < keep else old
            piece = source[start : min(start + SECTOR, size)]
            left[start : start + len(piece)] = piece
        self.durable = bytes(left)


class Folder:
    """The names in one folder, in both worlds."""

    def __init__(self) -> None:
        self.current: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self.pending: list[Callable[[dict[str, Inode | Folder]], None]] = []

    def change(self, step: Callable[[dict[str, Inode | Folder]], None]) -> None:
        step(self.current)
        self.pending.append(step)

    def sync(self) -> None:
        self.durable = dict(self.current)
        self.pending.clear()

    def cut(self, dice: random.Random, keep: float) -> None:
        count = len(self.pending)
        survivors = count if dice.random() < keep else dice.randint(0, count) if keep else 0
        for step in self.pending[:survivors]:
            step(self.durable)
        self.pending.clear()
        for node in self.durable.values():
            node.cut(dice, keep)


class SimulatedFile:
    """An open file; dead after a power cut."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._boot = disk.boot

    def _check(self) -> None:
        if self._boot != self._disk.boot:
            raise OSError(errno.EBADF, "the power went off since this file was opened")

    def read_at(self, position: int, size: int) -> bytes:
        self._check()
        if self._disk.fail_read is not None and self._disk.fail_read(self._path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self._inode.current[position : position + size])

    def read_nowait(self, position: int, size: int) -> bytearray | None:
        self._check()
        if self._disk.cold:
            return None
        data = self._inode.current[position : position + size]
        return data if len(data) == size else None

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._check()
        content = self._inode.current
        size = len(data)
        room = self._disk.room_for(position + size - len(content))
        allowed = min(size, max(0, size - (position + size - len(content) - room))) if room is not None else size
        failure = self._disk.fail_write(self._path) if self._disk.fail_write is not None else None
        if failure is not None:
            allowed = self._disk.dice.randint(0, size)
        piece = bytes(data[:allowed])
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(piece)] = piece
        self._inode.changed = True
        if failure is not None:
            raise OSError(failure, os.strerror(failure))
        if allowed < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._disk.operation()

    def truncate(self, size: int) -> None:
        self._check()
        content = self._inode.current
        if size != len(content):
            del content[size:]
            content.extend(bytes(size - len(content)))
            self._inode.changed = True
            self._disk.operation()

    def sync(self) -> None:
        self._check()
        self._disk.operation()
        if self._disk.fail_sync is not None and self._disk.fail_sync(self._path):
            self._inode.dropped = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._inode.sync()

    def size(self) -> int:
        self._check()
        return len(self._inode.current)

    def close(self) -> None:
        return


class SimulatedDisk:
    """A `FileSystem` in memory. Paths are absolute; "/" exists."""

    def __init__(self, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.boot = 0
        self.cold = False
        """Nothing is in memory: every read must wait."""
        self.capacity: int | None = None
        self.can_sync_everything = True
        self.fail_sync: Callable[[str], bool] | None = None
        self.fail_read: Callable[[str], bool] | None = None
        self.fail_write: Callable[[str], int | None] | None = None
        self.operations = 0
        self.cut_at: int | None = None
        """The number of the operation in which the power goes off."""
        self.clock_ms = 0
        self._root = Folder()

    # --- faults --------------------------------------------------------------------------------------------------

    def operation(self) -> None:
        self.operations += 1
        if self.cut_at is not None and self.operations >= self.cut_at:
            raise PowerCut(f"at operation {self.operations}")

    def power_cut(self, keep: float | None = None) -> None:
        """Lose what is not on the medium; `keep` is the chance of an unsynced sector to have got there anyway."""
        chance = self.dice.choice((0.0, 0.5, 0.9, 1.0)) if keep is None else keep
        self._root.cut(self.dice, chance)
        self._reboot(self._root)
        self.boot += 1
        self.cut_at = None
        self.fail_sync = self.fail_read = self.fail_write = None

    def _reboot(self, folder: Folder) -> None:
        folder.current = dict(folder.durable)
        for node in folder.current.values():
            if isinstance(node, Folder):
                self._reboot(node)
            else:
                node.current = bytearray(node.durable)
                node.changed = node.dropped = False

    def flip_bit(self, path: str, byte: int, bit: int = 0) -> None:
        """Damage the medium under a file."""
        inode = self._inode(path)
        inode.current[byte] ^= 1 << bit
        inode.durable = bytes(inode.current)

    def contents(self, path: str) -> bytes:
        return bytes(self._inode(path).current)

    def replace(self, path: str, data: bytes) -> None:
        inode = self._inode(path)
        inode.current = bytearray(data)
        inode.durable = bytes(data)

    def used(self) -> int:
        return self._size_of(self._root)

    def room_for(self, growth: int) -> int | None:
        """How many of `growth` bytes fit; None when the disk has no limit."""
        if self.capacity is None:
            return None
        return max(0, min(growth, self.capacity - self.used()))

    def _size_of(self, folder: Folder) -> int:
        return sum(
            self._size_of(node) if isinstance(node, Folder) else len(node.current) for node in folder.current.values()
        )

    # --- the FileSystem interface --------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        folder, name = self._parent(path)
        node = folder.current.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = Inode()
            folder.change(_link(name, node))
            self.operation()
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        return SimulatedFile(self, path, node)

    def names(self, directory: str) -> list[str]:
        node = self._find(directory)
        return list(node.current) if isinstance(node, Folder) else []

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), Folder)

    def size(self, path: str) -> int | None:
        node = self._find(path)
        if node is None:
            return None
        return 0 if isinstance(node, Folder) else len(node.current)

    def modified_ms(self, path: str) -> int:
        self._inode(path)
        return self.clock_ms

    def make_directory(self, path: str) -> None:
        folder, name = self._parent(path)
        if name not in folder.current:
            folder.change(_link(name, Folder()))
            self.operation()

    def rename(self, source: str, target: str) -> None:
        folder, name = self._parent(source)
        into, new_name = self._parent(target)
        if name not in folder.current:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        if folder is not into:
            raise OSError(errno.EXDEV, "storage renames within a folder only")
        folder.change(_move(name, new_name, folder.current[name]))
        self.operation()

    def remove(self, path: str) -> None:
        folder, name = self._parent(path)
        if name in folder.current:
            folder.change(_unlink(name))
            self.operation()

    def remove_directory(self, path: str) -> None:
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        self.operation()
        if self.fail_sync is not None and self.fail_sync(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        node = self._find(path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        node.sync()

    def sync_everything(self) -> bool:
        self.operation()
        if not self.can_sync_everything:
            return False
        if self.fail_sync is not None and self.fail_sync("/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync_all(self._root)
        return True

    def _sync_all(self, folder: Folder) -> None:
        folder.sync()
        for node in folder.current.values():
            if isinstance(node, Folder):
                self._sync_all(node)
            else:
                node.sync()

    def _find(self, path: str) -> Inode | Folder | None:
        node: Inode | Folder | None = self._root
        for part in path.strip("/").split("/"):
            if not part:
                continue
            if not isinstance(node, Folder):
                return None
            node = node.current.get(part)
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        folder = self._find(parent)
        if not isinstance(folder, Folder):
            raise FileNotFoundError(errno.ENOENT, "no such folder", parent)
        return folder, name

    def _inode(self, path: str) -> Inode:
        node = self._find(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node


Step = Callable[[dict[str, "Inode | Folder"]], None]


def _link(name: str, node: Inode | Folder) -> Step:
    def step(names: dict[str, Inode | Folder]) -> None:
        names[name] = node

    return step


def _unlink(name: str) -> Step:
    def step(names: dict[str, Inode | Folder]) -> None:
        names.pop(name, None)

    return step


def _move(name: str, new_name: str, node: Inode | Folder) -> Step:
    def step(names: dict[str, Inode | Folder]) -> None:
        names.pop(name, None)
        names[new_name] = node

    return step


class InlineExecutor(Executor):
    """Runs a job when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        _run(future, fn, args, kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        return


class SteppedExecutor(Executor):
    """Keeps jobs until `step` runs the oldest, as if threads were that slow."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, fn, args, kwargs))
        return future

    def step(self) -> bool:
        """Run one job; False when there is none."""
        if not self.jobs:
            return False
        future, fn, args, kwargs = self.jobs.popleft()
        _run(future, fn, args, kwargs)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self.jobs.clear()
        while self.step():
            pass


def _run(future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        result = fn(*args, **kwargs)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
