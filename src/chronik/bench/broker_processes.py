"""The broker processes on this machine, found by the ports they listen on, and what the kernel says of them.

Reads /proc directly; where there is none, or the brokers are elsewhere, nothing is found and nothing is reported.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

import msgspec

PROC = Path("/proc")
_LISTEN = "0A"
_SELF_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


class Usage(msgspec.Struct, frozen=True):
    """CPU seconds since the process started, memory now, and its highest memory so far."""

    cpu_s: float
    rss_mb: float
    peak_mb: float


class BrokerProcesses:
    """Measures a set of processes from now on: call `sample` now and then, `usage` at the end."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.pids = sorted(pids)
        self._first = {pid: usage for pid in self.pids if (usage := usage_of(pid)) is not None}
        self._highest_mb: dict[int, float] = {}
        self.sample()

    def sample(self) -> None:
        for pid in self.pids:
            usage = usage_of(pid)
            if usage is not None:
                self._highest_mb[pid] = max(self._highest_mb.get(pid, 0.0), usage.rss_mb)

    def cpu_s(self) -> float:
        """CPU seconds spent since this was made."""
        return sum(usage.cpu_s - self._first[pid].cpu_s for pid in self._first if (usage := usage_of(pid)) is not None)

    def peak_mb(self) -> float:
        """The sum of the highest memory seen of each process."""
        return sum(self._highest_mb.values())


def listening_pids(addresses: Iterable[tuple[str, int]]) -> set[int]:
    """The processes of this machine that listen on these addresses; none for addresses of other machines."""
    ports = {port for host, port in addresses if is_local(host)}
    if not ports or not PROC.exists():
        return set()
    inodes = _listening_inodes(ports)
    return {pid for pid in _own_pids() if _sockets_of(pid) & inodes} if inodes else set()


def is_local(host: str) -> bool:
    """Whether an address is one of this machine: one that can be listened on."""
    if host in _SELF_NAMES:
        return True
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    except OSError:
        return False
    return False


def usage_of(pid: int) -> Usage | None:
    """What the kernel says of a process; None when it is gone."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    sizes = {name: int(rest.split()[0]) / 1024 for name, _, rest in map(_colon, status.splitlines()) if "kB" in rest}
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), sizes.get("VmRSS", 0.0), sizes.get("VmHWM", 0.0))


def _colon(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _listening_inodes(ports: set[int]) -> set[str]:
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) in ports:
                inodes.add(fields[9])
    return inodes


def _own_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _sockets_of(pid: int) -> set[str]:
    found: set[str] = set()
    try:
        for entry in (PROC / str(pid) / "fd").iterdir():
            try:
                target = str(entry.readlink())
            except OSError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        return found  # gone, or another user's
    return found
