"""What one Spark task does for a table: read its ranges, make rows, write Parquet, and report the files.

Runs on executors. Files have names of their own, so a task that runs twice leaves files that nobody refers to, never
rows twice; the driver adds the files of the attempt that succeeded. Raw and string topics go through without a row ever
leaving Arrow.
"""

from __future__ import annotations

import logging
import os
import uuid
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chronik.client import ClientError, Cluster
from chronik.pipeline.positions import TABLE_REMEDY, DataLoss
from chronik.pipeline.range_reader import check_topic, consumer_settings, read_range
from chronik.pipeline.ranges import OffsetRange
from chronik.pipeline.tables.json_shape import Shape, with_new_fields
from chronik.pipeline.tables.layout import (
    DAY,
    DEAD_LETTER,
    JSON,
    OWN_COLUMNS,
    READ_COLUMNS,
    dead_letter_columns,
    schema_of_text,
)
from chronik.pipeline.tables.table_rows import RowMaker
from chronik.protocol.errors import KafkaError

log = logging.getLogger(__name__)

MAX_DAYS_PER_TASK = 64
"""Days that one task writes files for. A range that holds more is ended early, and the rest is read next time."""

_DAY_US = 86_400_000_000
_FIRST_DAY = date.min.toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY = date.max.toordinal() - date(1970, 1, 1).toordinal()


class TaskSpec(msgspec.Struct):
    """What a task is told."""

    bootstrap: str
    topic: str
    topic_id: str
    folder: str
    dead_letter_folder: str
    value_format: str
    on_error: str
    typed: str
    settled: bool
    ranges: list[tuple[int, int, int]]
    dead_letters_from: dict[str, int]


class DataFile(msgspec.Struct):
    path: str
    day: str
    size: int
    rows: int
    partition: int
    first_offset: int
    last_offset: int


class TaskReport(msgspec.Struct):
    """What came of it. `reached` gives, per range, the offset up to which its records are in `files`."""

    topic: str
    ranges: list[tuple[int, int, int]]
    reached: list[int] = []
    files: list[DataFile] = []
    dead_letter_files: list[DataFile] = []
    unknown: dict[str, Any] | None = None
    rows: int = 0
    value_bytes: int = 0
    rescued: int = 0
    stopped: str | None = None
    error: str | None = None


def run_task(spec_json: bytes) -> bytes:
    """Run a task given as JSON; the report as JSON. Failures are reported, not raised, whatever they are.

    One topic that cannot be read must not fail the job that reads all others.
    """
    spec = msgspec.json.decode(spec_json, type=TaskSpec)
    try:
        report = _Task(spec).run()
    except DataLoss as error:
        report = TaskReport(spec.topic, spec.ranges, error=str(DataLoss(error.gap, TABLE_REMEDY)))
    except (KafkaError, ClientError, OSError, ValueError) as error:
        text = error.message if isinstance(error, KafkaError) else str(error)
        report = TaskReport(spec.topic, spec.ranges, error=text or type(error).__name__)
    except Exception as error:
        log.exception("a task of topic %s failed", spec.topic)
        report = TaskReport(spec.topic, spec.ranges, error=f"{type(error).__name__}: {error}")
    return msgspec.json.encode(report)


class _Task:
    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.typed = schema_of_text(spec.typed)
        self.unknown = Shape() if spec.value_format == JSON and not spec.settled else None
        self.maker = RowMaker(spec.value_format, self.typed, spec.on_error, unknown=self.unknown)
        self.report = TaskReport(spec.topic, spec.ranges, [start for _, start, _ in spec.ranges])
        self.grows = False

    def run(self) -> TaskReport:
        with Cluster(self.spec.bootstrap) as cluster:
            for index, (partition, start, end) in enumerate(self.spec.ranges):
                piece = OffsetRange(self.spec.topic, partition, start, end)
                if not self._read(cluster, index, piece):
                    break
            check_topic(cluster, self.spec.topic, self.spec.topic_id)
        if self.grows:
            assert self.unknown is not None
            self._forget_files()
            self.report.unknown = self.unknown.to_document()
        return self.report

    def _read(self, cluster: Cluster, index: int, piece: OffsetRange) -> bool:
        """Read one range; whether the next may follow."""
        rows = FileWriter(self.spec.folder, piece.partition, self.maker.schema, self.report.files)
        dead = FileWriter(
            self.spec.dead_letter_folder, piece.partition, dead_letter_columns(), self.report.dead_letter_files
        )
        reached = piece.end
        try:
            for batch in read_range(cluster, piece, consumer_settings(), columns=READ_COLUMNS):
                stop = self._take(batch, rows, dead)
                if stop is not None:
                    reached = stop
                    break
        finally:
            rows.close()
            dead.close()
        self.report.reached[index] = reached
        return reached == piece.end

    def _take(self, batch: pa.RecordBatch, rows: FileWriter, dead: FileWriter) -> int | None:
        """Write a batch; the offset to end at, if this task cannot go on behind it."""
        if self.grows:  # only shapes matter now: everything is read again once the columns are settled
            self.maker.convert(batch)
            return None
        kept, stop = rows.admit(batch, MAX_DAYS_PER_TASK)
        converted = self.maker.convert(kept)
        if self.unknown is not None and self.unknown.fields:
            self.grows = with_new_fields(self.typed, self.unknown, OWN_COLUMNS) != self.typed
        if self.grows:
            return None
        rows.write(converted.rows)
        self.report.rows += converted.rows.num_rows
        self.report.value_bytes += kept.column("value").nbytes
        self.report.rescued += converted.rescued
        if self.spec.on_error == DEAD_LETTER and converted.dead_letters.num_rows:
            first = self.spec.dead_letters_from.get(str(rows.partition), 0)
            offsets = np.asarray(converted.dead_letters.column("offset"))
            dead.write(converted.dead_letters.filter(pa.array(offsets >= first)))
        if converted.stopped_at is not None:
            place = f"{self.spec.topic}-{rows.partition}"
            self.report.stopped = f"offset {converted.stopped_at} of {place}: {converted.reason}"
            return converted.stopped_at
        return stop

    def _forget_files(self) -> None:
        for folder, files in (
            (self.spec.folder, self.report.files),
            (self.spec.dead_letter_folder, self.report.dead_letter_files),
        ):
            for file in files:
                (Path(folder) / file.path).unlink(missing_ok=True)
            files.clear()


class FileWriter:
    """Writes rows of one partition into one Parquet file per day; `close` syncs them and adds them to `done`."""

    def __init__(self, folder: str, partition: int, schema: pa.Schema, done: list[DataFile]) -> None:
        self.partition = partition
        self._folder = Path(folder)
        self._schema = schema
        self._done = done
        self._open: dict[int, tuple[DataFile, pq.ParquetWriter]] = {}

    def admit(self, batch: pa.RecordBatch, max_days: int) -> tuple[pa.RecordBatch, int | None]:
        """The part of a batch whose days still have room, and the offset of the first record that has none."""
        days = days_of(batch)
        seen = set(self._open)
        for day in np.unique(days).tolist():
            seen.add(day)
        if len(seen) <= max_days:
            return batch, None
        allowed = set(self._open)
        for index, day in enumerate(days.tolist()):
            if day not in allowed:
                if len(allowed) >= max_days:
                    return batch.slice(0, index), batch.column("offset")[index].as_py()
                allowed.add(day)
        return batch, None

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        days = days_of(batch)
        distinct = np.unique(days).tolist()
        for day in distinct:
            part = batch if len(distinct) == 1 else batch.filter(pa.array(days == day))
            self._write_day(day, part)

    def _write_day(self, day: int, part: pa.RecordBatch) -> None:
        opened = self._open.get(day)
        if opened is None:
            name = date.fromordinal(date(1970, 1, 1).toordinal() + day).isoformat()
            path = f"{DAY}={name}/part-{uuid.uuid4().hex}.parquet"
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            file = DataFile(path, name, 0, 0, self.partition, -1, -1)
            writer = pq.ParquetWriter(target, self._schema, compression="snappy", use_dictionary=["topic"])
            opened = self._open[day] = (file, writer)
        file, writer = opened
        writer.write_batch(part)
        offsets = part.column("offset")
        if file.rows == 0:
            file.first_offset = offsets[0].as_py()
        file.rows += part.num_rows
        file.last_offset = offsets[-1].as_py()

    def close(self) -> None:
        """The files are on disk, name and all, before anybody hears of them."""
        for file, writer in self._open.values():
            writer.close()
            target = self._folder / file.path
            sync(target)
            sync(target.parent)
            file.size = target.stat().st_size
            self._done.append(file)
        self._open.clear()


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def days_of(batch: pa.RecordBatch) -> Any:
    """The day of each record, as days since 1970; within those that a date can be."""
    microseconds = np.asarray(batch.column("timestamp").cast(pa.int64()))
    return np.clip(microseconds // _DAY_US, _FIRST_DAY, _LAST_DAY)
