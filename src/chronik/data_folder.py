"""A node's data folder: made on first use, and locked for as long as its process lives.

The lock is held on `chronik.pid`, which also tells everybody who holds it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

PID_FILE = "chronik.pid"


class FolderInUse(Exception):
    """Another process holds the folder, or it cannot be used; the text says what to do."""


class DataFolder:
    """The root of everything a node keeps. `close` gives the lock back; so does the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path / PID_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise FolderInUse(
                f"data folder {path} cannot be used: {error.strerror}; choose another with --data-dir"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise FolderInUse(
                f"data folder {path} is in use by process {holder}; stop it, or choose another with --data-dir"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    @property
    def metadata(self) -> Path:
        """Where consensus keeps its log and snapshots."""
        return self.path / "metadata"

    @property
    def logs(self) -> Path:
        """Where the partition logs are."""
        return self.path / "logs"

    def close(self) -> None:
        # The file stays: were it removed, who opened it a moment ago could lock a file that nobody else finds.
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
