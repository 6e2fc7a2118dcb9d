"""Keeping tables tidy: small files are made into large ones, old versions and orphaned files are removed.

Runs in the driver between rounds. Compaction rewrites files without changing a row and keeps the positions; files go a
day after the last version that names them, so that queries that are under way keep what they read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from chronik.pipeline.tables.kept_topic import KeptTopic

log = logging.getLogger(__name__)

TARGET_FILE_BYTES = 128 * 1024 * 1024
SMALL_FILES_BEFORE_COMPACTION = 20
KEEP_HOURS = 24


class Tidied(msgspec.Struct):
    """What was done to one table."""

    table: str
    files_compacted: int = 0
    files_removed: int = 0


class Maintenance:
    """Tidies tables every so often, and at the end of a run that does not go on."""

    def __init__(self, every_s: float = 600.0) -> None:
        self._every_s = every_s
        self._last = time.monotonic()

    def run_if_due(self, topics: Sequence[KeptTopic]) -> list[Tidied]:
        if time.monotonic() - self._last < self._every_s:
            return []
        return self.run(topics)

    def run(self, topics: Sequence[KeptTopic]) -> list[Tidied]:
        """Tidy the tables that topics are kept in now; a folder that holds something else is left alone."""
        tables = [table for kept in topics for table in (kept.table, kept.dead) if table.version >= 0]
        done = [tidy(table.folder) for table in tables]
        self._last = time.monotonic()
        return [one for one in done if one is not None]


def tidy(folder: Path, *, keep_hours: int = KEEP_HOURS) -> Tidied | None:
    """Compact and vacuum one table; None when there is none. A failure is logged: the next time may succeed."""
    try:
        table = DeltaTable(str(folder))
        done = Tidied(folder.name)
        if len(table.file_uris()) >= SMALL_FILES_BEFORE_COMPACTION:
            done.files_compacted = int(table.optimize.compact(target_size=TARGET_FILE_BYTES)["numFilesRemoved"])
        removed = table.vacuum(
            retention_hours=keep_hours, dry_run=False, enforce_retention_duration=keep_hours >= KEEP_HOURS, full=True
        )
        done.files_removed = len(removed)
        table.create_checkpoint()
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        log.warning("table %s was not tidied: %s", folder.name, error)
        return None
    log.info("tidied table %s: %d files compacted, %d removed", folder.name, done.files_compacted, done.files_removed)
    return done
