"""The live part of a topic's view: records that have not landed, made into rows by the rules of the table.

It is a batch read of `format("chronik")` with the option `chronik.table`, which only `topic_views` sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from chronik.client import Cluster
from chronik.pipeline.batch_reader import RangesPartition
from chronik.pipeline.positions import QUERY_REMEDY, DataLoss
from chronik.pipeline.pushdown import NarrowingReader
from chronik.pipeline.range_reader import check_topic, consumer_settings, read_ranges
from chronik.pipeline.ranges import OffsetRange, deal
from chronik.pipeline.tables.ingest_task import days_of
from chronik.pipeline.tables.layout import DAY, READ_COLUMNS, schema_of_text, table_columns
from chronik.pipeline.tables.table_rows import RowMaker

OPTION = "chronik.table"


class LivePart(msgspec.Struct):
    """Which records, and what rows they become. With `keep_bad`, what does not fit is a row without typed columns."""

    bootstrap: str
    topic: str
    topic_id: str
    value_format: str
    on_error: str
    typed: str
    keep_bad: bool
    ranges: list[tuple[int, int, int]]


def live_part(options: Mapping[str, str]) -> LivePart | None:
    """The live part that options speak of, if they do."""
    text = next((value for name, value in options.items() if name.lower() == OPTION), None)
    return None if text is None else msgspec.json.decode(text, type=LivePart)


def live_schema(part: LivePart) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(_columns(part))


class LiveReader(NarrowingReader):
    def __init__(self, part: LivePart) -> None:
        self.part = part

    def partitions(self) -> Sequence[InputPartition]:
        bounds = self.bounds
        ranges = [OffsetRange(self.part.topic, *piece) for piece in self.part.ranges]
        narrowed = [
            OffsetRange(
                piece.topic,
                piece.partition,
                max(piece.start, bounds.first_offset),
                piece.end if bounds.end_offset is None else min(piece.end, bounds.end_offset),
            )
            for piece in ranges
            if bounds.admits(piece.place)
        ]
        return [RangesPartition(tuple(task)) for task in deal(narrowed)] or [RangesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        part = self.part
        schema = _columns(part)
        maker = RowMaker(part.value_format, schema_of_text(part.typed), part.on_error, keep_bad=part.keep_bad)
        try:
            with Cluster(part.bootstrap) as cluster:
                for _, batch in read_ranges(cluster, partition.ranges, consumer_settings(), columns=READ_COLUMNS):
                    rows = maker.convert(batch).rows
                    if rows.num_rows:
                        days = pa.array(days_of(rows).astype(np.int32)).cast(pa.date32())
                        arrays = [*rows.columns, days]
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                if partition.ranges:
                    check_topic(cluster, part.topic, part.topic_id)
        except DataLoss as error:
            raise DataLoss(error.gap, QUERY_REMEDY) from None


def _columns(part: LivePart) -> pa.Schema:
    return table_columns(part.value_format, schema_of_text(part.typed)).append(pa.field(DAY, pa.date32()))
