"""One Delta table of a topic: the offsets it holds, its columns, and commits that happen exactly once.

For each Kafka partition the table keeps a Delta transaction id: appId `chronik/<topic id>/<partition>`, version = the
offset that comes next. A commit adds files and moves those versions in one step. It is refused unless every version is
still what the batch was planned from; Delta itself refuses it when another writer moves one at the same moment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from chronik.pipeline.tables.ingest_task import DataFile, sync
from chronik.pipeline.tables.layout import DAY, TableSettings

_MARK = "kept by chronik from topic id "
_KEEP_FILES = "interval 1 days"
_LOG = "_delta_log"

_CommitFile = tuple[int, int, int]


class PositionMoved(Exception):
    """Somebody else moved the table on; what was planned from its old position must not be added."""


class ForeignTable(Exception):
    """The folder holds a table of something else. The text says what to do."""


class TopicTable:
    """A table in a folder; it is made with the first commit that needs it."""

    def __init__(self, folder: Path, settings: TableSettings, columns: pa.Schema) -> None:
        self.folder = folder
        self.settings = settings
        self._first_columns = columns
        self._delta: DeltaTable | None = None
        self._loaded: _CommitFile | None = None
        self._stored: dict[int, int | None] = {}
        self._stored_in = ""

    def open(self) -> bool:
        """Load the newest version; False when there is no table: not yet, or not any more."""
        # What was loaded takes no notice of a folder that is moved away, or of another table in its place.
        if self._delta is not None and self._commit_file() != self._loaded:
            self._delta = None
        try:
            if not (self.folder / _LOG).is_dir():
                self._delta = None
            elif self._delta is None:
                self._delta = DeltaTable(str(self.folder))
            else:
                self._delta.update_incremental()
        except TableNotFoundError:
            self._delta = None
        if self._delta is None:
            return False
        self._loaded = self._commit_file()
        said = self._delta.metadata().description or ""
        if said != _MARK + self.settings.topic_id:
            self._delta = None
            kept = f"an earlier topic of that name (id {said.removeprefix(_MARK)})"
            other = kept if said.startswith(_MARK) else "something else"
            raise ForeignTable(
                f"the folder {self.folder} holds a table of {other}, not of topic {self.settings.topic} "
                f"(id {self.settings.topic_id}). Move the folder away, and the topic is kept as a new table"
            )
        return True

    def _commit_file(self) -> _CommitFile | None:
        """What tells the file of the commit that is loaded from one of the same number in another table."""
        try:
            found = (self.folder / _LOG / f"{self.version:020}.json").stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns

    @property
    def version(self) -> int:
        return int(self._delta.version()) if self._delta is not None else -1

    @property
    def state(self) -> str:
        """What tells this version of this table from every other, also from one that takes its place in the folder."""
        return f"{self._delta.metadata().id}@{self._delta.version()}" if self._delta is not None else ""

    def columns(self) -> pa.Schema:
        """The columns as they are now, without the day."""
        if self._delta is None:
            return self._first_columns
        schema = pa.schema(self._delta.schema().to_arrow())
        return pa.schema([field for field in schema if field.name != DAY])

    def positions(self) -> dict[int, int]:
        """The next offset of each partition; 0 for those that the table has nothing of."""
        return {partition: self.stored(partition) or 0 for partition in self.settings.partitions}

    def stored(self, partition: int) -> int | None:
        if self._delta is None:
            return None
        if self._stored_in != self.state:
            self._stored, self._stored_in = {}, self.state
        if partition not in self._stored:  # Delta looks through all commits since its last checkpoint, each time
            found = self._delta.transaction_version(self.settings.app_id(partition))
            self._stored[partition] = None if found is None else int(found)
        return self._stored[partition]

    def files(self) -> list[str]:
        """Paths of the files that make up the version that is open."""
        return [] if self._delta is None else [str(uri) for uri in self._delta.file_uris()]

    def create(self) -> None:
        """Make the table if there is none; somebody else may have done so a moment ago."""
        if self._delta is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._delta = DeltaTable.create(
            str(self.folder),
            schema=Schema.from_arrow(pa.schema([*self._first_columns, pa.field(DAY, pa.date32())])),
            mode="ignore",
            partition_by=[DAY],
            name=self.settings.topic,
            description=_MARK + self.settings.topic_id,
            configuration={"delta.deletedFileRetentionDuration": _KEEP_FILES},
        )
        self.open()

    def add_columns(self, columns: pa.Schema) -> None:
        """Give the table the columns, and fields of objects, that it lacks. Types that exist are left as they are."""
        now = {field.name: field for field in self.columns()}
        grown = [field for field in columns if field.name not in now or field.type != now[field.name].type]
        if not grown:
            return
        assert self._delta is not None
        fields: list[Field] = list(Schema.from_arrow(pa.schema(grown)).fields)
        self._delta.alter.add_columns(fields)
        self.open()

    def commit(self, files: Sequence[DataFile], moves: Mapping[int, tuple[int | None, int]]) -> int:
        """Add files and move positions, from what they must be to what they become; the new version.

        Raises PositionMoved, and changes nothing, when a position is not what it must be; FileNotFoundError when a file
        is not where tasks wrote it.
        """
        if not self.open():
            raise PositionMoved(f"the folder {self.folder} was moved away while it was written to")
        assert self._delta is not None
        for partition, (expected, _) in moves.items():
            found = self.stored(partition)
            if found != expected:
                raise PositionMoved(
                    f"partition {partition} of table {self.folder.name} is at offset {found or 0}, "
                    f"not at {expected or 0} where this batch began: another writer keeps this table as well"
                )
        for file in files:
            if not (self.folder / file.path).exists():
                raise FileNotFoundError(
                    f"{self.folder / file.path} was written by a task and is not there for the driver: the warehouse "
                    "must be a folder that the driver and all executors share"
                )
        planned_from = self.version
        transactions = [Transaction(self.settings.app_id(p), after) for p, (_, after) in sorted(moves.items())]
        try:
            self._delta.create_write_transaction(
                [_add_action(file) for file in files],
                "append",
                self._delta.schema(),
                partition_by=[DAY],
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError as error:
            raise PositionMoved(
                f"another writer added to table {self.folder.name} at the same moment: {error}"
            ) from error
        self._delta.update_incremental()
        self._loaded = self._commit_file()
        if self.version == planned_from + 1:  # nobody else was in between: only these have moved
            self._stored.update({partition: after for partition, (_, after) in moves.items()})
            self._stored_in = self.state
        self._sync_log()
        return self.version

    def _sync_log(self) -> None:
        """The commit is on disk before the position is told to anybody, so that a power cut loses no row of it."""
        log = self.folder / _LOG
        newest = log / f"{self.version:020}.json"
        if newest.exists():
            sync(newest)
        sync(log)


def _add_action(file: DataFile) -> AddAction:
    stats: dict[str, Any] = {
        "numRecords": file.rows,
        "minValues": {"partition": file.partition, "offset": file.first_offset},
        "maxValues": {"partition": file.partition, "offset": file.last_offset},
        "nullCount": {"partition": 0, "offset": 0},
    }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={DAY: file.day},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=msgspec.json.encode(stats).decode(),
    )
