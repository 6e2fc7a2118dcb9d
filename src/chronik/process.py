"""Settings of the process itself, made once at start: the allocator, the garbage collector, the limit of open files."""

from __future__ import annotations

import ctypes
import gc
import resource

M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3
HEAP_STEP_BYTES = 16 * 1024 * 1024
"""The heap grows and is kept in steps of this size, so that megabyte requests do not map and unmap memory each time."""
COLLECT_AFTER_ALLOCATIONS = 50_000


def tune_allocator() -> None:
    """Where the C library is not glibc, there is nothing to tune and nothing is done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, HEAP_STEP_BYTES)
    mallopt(M_TRIM_THRESHOLD, 2 * HEAP_STEP_BYTES)
    mallopt(M_TOP_PAD, HEAP_STEP_BYTES)


def tune_collector() -> None:
    """Called when everything is loaded: what lives now lives on, and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_ALLOCATIONS, 20, 50)


def raise_open_files() -> int:
    """Asks for as many open files as the system grants; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
