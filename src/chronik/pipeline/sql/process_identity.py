"""Which process a number stands for. The number of one that has ended is given to another sooner or later, and that one
must not be taken for it: a process is known by its number and by when it began."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

UNKNOWN = ""
"""The identity of a process that is there, where the system does not tell when it began."""

_PROC = Path("/proc")
_BOOT = Path("sys/kernel/random/boot_id")
_STATE, _START_TIME = 0, 19  # fields of /proc/PID/stat, counted from the one behind the name
_ENDED = ("Z", "X")
_PATIENCE_S = 5.0


def identity_of(pid: int) -> str | None:
    """What no other process has, or UNKNOWN; None when there is no such process, or it is one of somebody else."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return None
    return _from_proc(pid) if (_PROC / "self/stat").exists() else _from_ps(pid)


def _from_proc(pid: int) -> str | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[_STATE] in _ENDED:
        return None
    try:
        boot = (_PROC / _BOOT).read_text().strip()
    except OSError:
        boot = ""
    return f"{boot}/{fields[_START_TIME]}"


def _from_ps(pid: int) -> str | None:
    """As macOS and the BSDs tell it: to the second."""
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        told = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    state, _, began = told.stdout.strip().partition(" ")
    if told.returncode or not state:
        return None
    return None if state.startswith(_ENDED) else " ".join(began.split())
