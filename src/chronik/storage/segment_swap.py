"""Replacing segments by their compacted form, so that a crash at any moment leaves the old ones or the new one.

Written and synced under `.cleaned`; renamed to `.swap`, the log last: from then on the change is made; the old files
are renamed away; `.swap` is taken off, the log last. All renames happen in one turn of the loop, in this order, which
is the order in which a journalling file system keeps them. A start after a crash finishes what has a `.log.swap`, and
removes what has not.
"""

from __future__ import annotations

import structlog

from chronik.storage.batch_walk import DamagedBatch, walk
from chronik.storage.files import FileSystem
from chronik.storage.segment import (
    ABORTED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_name,
)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"

RENAME_ORDER = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX, LOG_SUFFIX)

logger = structlog.get_logger()


def commit(fs: FileSystem, path: str) -> None:
    """`.cleaned` becomes `.swap`; `path` has no suffix."""
    for suffix in RENAME_ORDER:
        fs.rename(f"{path}{suffix}{CLEANED_SUFFIX}", f"{path}{suffix}{SWAP_SUFFIX}")


def complete(fs: FileSystem, path: str) -> None:
    """`.swap` becomes the segment; what was renamed before a crash stays."""
    for suffix in RENAME_ORDER:
        try:
            fs.rename(f"{path}{suffix}{SWAP_SUFFIX}", f"{path}{suffix}")
        except FileNotFoundError:
            continue


def discard(fs: FileSystem, path: str) -> None:
    """The compacted form is not wanted any more."""
    for suffix in RENAME_ORDER:
        fs.remove(f"{path}{suffix}{CLEANED_SUFFIX}")


def finish_after_crash(fs: FileSystem, directory: str, names: list[str]) -> bool:
    """Finish or undo what a crash interrupted, before a partition folder is opened. True when anything was done."""
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)) for name in names):
        return False
    swaps = sorted(name for name in names if name.endswith(f"{LOG_SUFFIX}{SWAP_SUFFIX}"))
    for name in swaps:
        _supersede(fs, directory, int(name[:20]), names)
    for name in fs.names(directory):
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)):
            fs.remove(f"{directory}/{name}")
    return True


def _supersede(fs: FileSystem, directory: str, base_offset: int, names: list[str]) -> None:
    """Remove the segments that a compacted one replaces, then give it their place."""
    path = f"{directory}/{segment_name(base_offset)}"
    swap = f"{path}{LOG_SUFFIX}{SWAP_SUFFIX}"
    next_offset = base_offset + 1
    try:
        for batch in walk(fs.open(swap), 0, fs.size(swap) or 0, check_crc=False):
            next_offset = batch.last_offset + 1
    except DamagedBatch as damage:
        logger.error("a compacted segment is damaged and is not used", path=swap, error=str(damage))
        fs.remove(swap)
        return
    for name in names:
        if not name[:20].isdigit() or not name.endswith(LOG_SUFFIX):
            continue
        other = int(name[:20])
        if base_offset < other < next_offset:
            for suffix in RENAME_ORDER:
                fs.remove(f"{directory}/{segment_name(other)}{suffix}")
    complete(fs, path)
    logger.info("an interrupted compaction was finished", path=path)
