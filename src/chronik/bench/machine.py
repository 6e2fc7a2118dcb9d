"""What this machine is, in the words that a benchmark's reader needs."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True):
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    load_1m: float

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gb:.0f} GB, Linux {self.kernel}, Python {self.python}, "
            f"load {self.load_1m:.2f}"
        )


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        kernel=platform.release(),
        python=platform.python_version(),
        load_1m=round(os.getloadavg()[0], 2),
    )


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()
