"""A topic that is kept as a table: its two Delta tables, its columns, and the commit of what tasks wrote for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from chronik.pipeline.ranges import OffsetRange
from chronik.pipeline.tables.delta_table import ForeignTable, TopicTable
from chronik.pipeline.tables.ingest_task import DataFile, TaskReport, TaskSpec
from chronik.pipeline.tables.json_rows import fitter_of
from chronik.pipeline.tables.json_shape import Shape, column_name, usable, with_new_fields
from chronik.pipeline.tables.layout import (
    JSON,
    OWN_COLUMNS,
    TableSettings,
    dead_letter_columns,
    raw_columns,
    schema_to_text,
    table_columns,
    table_folder,
    typed_columns,
)


class Landed(msgspec.Struct):
    """What one commit brought into a table."""

    rows: int
    value_bytes: int
    files: int
    dead_letters: int
    rescued: int
    version: int
    positions: dict[int, int]


class Begins(msgspec.Struct):
    """Where a batch begins: its first offsets, and what the table had stored when it was planned.

    They differ where the log begins later than the table ends.
    """

    offsets: dict[int, int]
    stored: dict[int, int | None]
    dead_letters: dict[int, int | None]


class KeptTopic:
    """One topic and its tables. `fixed` are the columns of `table.schema`, None where they are inferred."""

    def __init__(self, settings: TableSettings, warehouse: Path, fixed: pa.Schema | None) -> None:
        self.settings = settings
        self.fixed = fixed
        first = table_columns(settings.value_format, fixed if fixed is not None else ())
        self.table = TopicTable(table_folder(warehouse, settings.topic), settings, first)
        self.dead = TopicTable(table_folder(warehouse, settings.dead_letter), settings, dead_letter_columns())
        self.typed = fixed if fixed is not None else pa.schema([])

    def open(self) -> dict[int, int]:
        """Look at the tables as they are now; where each partition goes on."""
        if self.table.open():
            self._check_columns(self.table.columns())
        self.dead.open()
        return self.table.positions()

    def _check_columns(self, columns: pa.Schema) -> None:
        value = next(field for field in raw_columns(self.settings.value_format) if field.name == "value")
        if columns.field("value").type != value.type:
            raise ForeignTable(
                f"table.value.format of topic {self.settings.topic} is {self.settings.value_format} now, but the table "
                f"at {self.table.folder} was made for another one. Set it back, or move the folder away to start anew"
            )
        now = typed_columns(columns)
        folded = {name.casefold(): name for name in now.names}
        for field in self.fixed or ():
            known = folded.get(field.name.casefold(), field.name)
            if known != field.name:
                raise ForeignTable(
                    f"table.schema of {self.settings.topic} has a column {field.name}, in the table it is {known}. "
                    "Names of columns differ in more than their case: write it as it is there"
                )
            if field.name in now.names and now.field(field.name).type != field.type:
                raise ForeignTable(
                    f"table.schema of topic {self.settings.topic} says that column {field.name} is {field.type}, "
                    f"in the table it is {now.field(field.name).type}. Types of columns never change: use another name"
                )
        self.typed = self.fixed if self.fixed is not None else now

    def spec(self, bootstrap: str, begins: Begins, ranges: Sequence[OffsetRange], *, settled: bool) -> TaskSpec:
        return TaskSpec(
            bootstrap,
            self.settings.topic,
            self.settings.topic_id,
            str(self.table.folder),
            str(self.dead.folder),
            self.settings.value_format,
            self.settings.on_error,
            schema_to_text(self.typed),
            settled or self.fixed is not None,
            [(piece.partition, piece.start, piece.end) for piece in ranges],
            {str(piece.partition): begins.dead_letters[piece.partition] or 0 for piece in ranges},
        )

    def grow(self, reports: Sequence[TaskReport]) -> bool:
        """Settle on columns for the fields that tasks met and had no column for; whether there are any."""
        shape = Shape()
        for report in reports:
            if report.unknown is not None:
                shape.merge(Shape.of_document(report.unknown))
        grown = with_new_fields(self.typed, shape, OWN_COLUMNS)
        if grown == self.typed:
            return False
        self.table.create()
        self.table.add_columns(table_columns(self.settings.value_format, grown))
        self.typed = typed_columns(self.table.columns())
        return True

    def commit(self, begins: Begins, reports: Sequence[TaskReport]) -> Landed | None:
        """Add what tasks wrote, as far as it is without a gap. None when nothing was reached.

        Dead letters go first, with positions of their own: should the driver die in between, the batch runs again and
        tasks leave out the dead letters that are there already.
        """
        reached = contiguous(begins.offsets, reports)
        moves = {partition: end for partition, end in reached.items() if end > (begins.stored[partition] or 0)}
        if not moves:
            return None
        files = _within([file for report in reports for file in report.files], reached)
        letters = _within([file for report in reports for file in report.dead_letter_files], reached)
        if letters:
            self.dead.create()
            touched = {file.partition for file in letters}
            self.dead.commit(letters, {p: (begins.dead_letters[p], moves[p]) for p in touched})
        self.table.create()
        self.table.add_columns(table_columns(self.settings.value_format, self.typed))
        version = self.table.commit(files, {p: (begins.stored[p], end) for p, end in moves.items()})
        read = [report for report in reports if report.unknown is None]  # the others are read again, with more columns
        return Landed(
            rows=sum(file.rows for file in files),
            value_bytes=sum(report.value_bytes for report in read),
            files=len(files),
            dead_letters=sum(file.rows for file in letters),
            rescued=sum(report.rescued for report in read),
            version=version,
            positions=moves,
        )


def contiguous(begins: Mapping[int, int], reports: Sequence[TaskReport]) -> dict[int, int]:
    """Up to where each partition was read without a gap: tasks may have ended early, or failed."""
    pieces = sorted(
        (partition, start, report.reached[index] if index < len(report.reached) else start)
        for report in reports
        if report.unknown is None
        for index, (partition, start, _) in enumerate(report.ranges)
    )
    reached = dict(begins)
    for partition, start, end in pieces:
        if reached[partition] == start:
            reached[partition] = end
    return reached


def stopped_by(reports: Sequence[TaskReport], positions: Mapping[int, int]) -> str | None:
    """The bad record that stops a topic, once everything before it has landed."""
    for report in reports:
        if report.stopped is not None:  # in the first of its ranges that was not read to the end
            reached = zip(report.ranges, report.reached, strict=True)
            partition, offset = next((partition, at) for (partition, _, end), at in reached if at < end)
            if positions[partition] == offset:
                return report.stopped
    return None


def _within(files: Sequence[DataFile], reached: Mapping[int, int]) -> list[DataFile]:
    return [file for file in files if file.first_offset < reached[file.partition]]


def columns_of_schema(ddl: str) -> pa.Schema:
    """The columns of a `table.schema`; ValueError for what is no schema, or what no table of JSON values can have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(ddl)
        assert isinstance(parsed, StructType)
    except PySparkException as error:
        raise ValueError(f"{ddl!r} is no list of columns ({error.getCondition()})") from None
    fields = list(to_arrow_schema(parsed, timezone="UTC"))
    for field in fields:
        fitter_of(field.type)
    named = [field.with_name(column_name(field.name, OWN_COLUMNS)) for field in fields]
    return pa.schema(_checked_fields(named))


def _checked_fields(fields: Sequence[pa.Field]) -> list[pa.Field]:
    """The fields, which may all be NULL: that JSON values have them cannot be promised."""
    seen: set[str] = set()
    for field in fields:
        if not usable(field.name):
            raise ValueError(f"no column can be named {field.name!r}: spaces and any of ,;{{}}()= cannot be in a name")
        if field.name.casefold() in seen:
            raise ValueError(f"there are two columns {field.name}; names must differ in more than their case")
        seen.add(field.name.casefold())
    return [pa.field(field.name, _checked_type(field.type)) for field in fields]


def _checked_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_checked_fields([kind.field(index) for index in range(kind.num_fields)]))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _checked_type(kind.value_type)))
    return kind


def uses_schema(settings: TableSettings) -> bool:
    return settings.value_format == JSON and bool(settings.schema_ddl.strip())
