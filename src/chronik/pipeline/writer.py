"""The sinks of `format("chronik")`: rows become records, acknowledged by all in-sync replicas before a task ends.

At least once: a task that runs again writes its rows again (exactly once: `exactly_once_writer`). Within one run of a
task nothing is written twice, since its producer is idempotent. Columns as Spark's Kafka sink: `value` is needed;
`key`, `headers`, `partition` and `topic` are taken where they exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chronik.client import Cluster, Producer, ProducerSettings
from chronik.client.producer import ACKS_ALL
from chronik.pipeline.source_options import OptionError, WriteOptions
from chronik.protocol.records import Compression

_ALLOWED = {
    "topic": {"string"},
    "partition": {"int", "integer"},
    "key": {"string", "binary"},
    "value": {"string", "binary"},
    "headers": {"array<struct<key:string,value:binary>>"},
}


@dataclass
class RowsWritten(WriterCommitMessage):
    rows: int


class RowRecord(NamedTuple):
    """The record that a row becomes; `partition` is None where the key is to decide."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class RecordWriter:
    """Writes the rows of one task."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.settings = ProducerSettings(
            acks=options.acks,
            idempotent=options.acks == ACKS_ALL,
            compression=Compression.named(options.compression),
        )
        check_columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        rows = 0
        with Cluster(self.options.bootstrap) as cluster, Producer(cluster, self.settings) as producer:
            for batch in iterator:
                for topic, partition, key, value, headers in records_of(batch, self.options):
                    producer.send(topic, value, key=key, partition=partition, headers=headers)
                rows += batch.num_rows
        return RowsWritten(rows)


def records_of(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[RowRecord]:
    """The records that rows become."""
    names = set(batch.schema.names)

    def column(name: str) -> list[Any]:
        if name not in names:
            return [None] * batch.num_rows
        array = batch.column(name)
        if name in ("key", "value"):
            array = array.cast(pa.binary())
        values: list[Any] = array.to_pylist()
        return values

    topics = [options.topic] * batch.num_rows if options.topic else column("topic")
    for topic, partition, key, value, headers in zip(
        topics, column("partition"), column("key"), column("value"), column("headers"), strict=True
    ):
        if topic is None:
            raise OptionError("a row has no topic; set the option topic, or fill the column topic in every row")
        named = [(header["key"], header["value"]) for header in headers or ()]
        if any(name is None for name, _ in named):
            raise OptionError("a row has a header without a key; every header of a record needs one")
        yield RowRecord(topic, partition, key, value, named)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, writer: RecordWriter) -> None:
        self.writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.writer.write(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: RecordWriter) -> None:
        self.writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: every record was acknowledged before its task ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to take back: what was written stays, and is written again when the batch runs again."""


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Refuse rows that cannot become records, before any is written."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in found:
        raise OptionError(f"a column named value is needed to write records; the columns are {', '.join(found)}")
    if "topic" not in found and not options.topic:
        raise OptionError("no topic to write to; set the option topic, or add a column topic")
    for name, kind in found.items():
        if name not in _ALLOWED:
            raise OptionError(f"column {name} cannot be written; records have {', '.join(_ALLOWED)}. Select those only")
        if kind != "void" and kind not in _ALLOWED[name]:  # void: a column of nothing but NULL
            raise OptionError(f"column {name} is {kind}, it must be {' or '.join(sorted(_ALLOWED[name]))}; cast it")
