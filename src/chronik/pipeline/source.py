"""The data source `chronik` as Spark sees it. Spark finds it through the module `pyspark_chronik`."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from chronik.pipeline.arrow_schema import SPARK_TYPES, default_columns
from chronik.pipeline.source_options import OptionError, read_options, stream_options, write_options
from chronik.pipeline.sql.live_reader import LiveReader, live_part, live_schema


class ChronikDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "chronik"

    def schema(self) -> str | StructType:
        part = live_part(self.options)
        if part is not None:
            return live_schema(part)
        names = default_columns(headers=read_options(self.options).include_headers)
        return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in names)

    def reader(self, schema: StructType) -> DataSourceReader:
        from chronik.pipeline.batch_reader import BatchReader

        part = live_part(self.options)
        if part is not None:
            return LiveReader(part)
        return BatchReader(read_options(self.options), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from chronik.pipeline.stream_reader import RefusedStream, StreamReader

        try:
            return StreamReader(stream_options(self.options), columns_of(schema))
        except OptionError as error:
            return RefusedStream(str(error))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from chronik.pipeline.writer import BatchWriter, RecordWriter

        if overwrite:
            raise OptionError("a topic cannot be overwritten, records are only ever added; use mode('append')")
        options = write_options(self.options)
        if options.exactly_once:
            raise OptionError(
                "delivery=exactly_once is for streams (writeStream): a batch write has no checkpoint to tell a second "
                "run from new rows. Use delivery=at_least_once, or a stream with trigger(availableNow=True)"
            )
        return BatchWriter(RecordWriter(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from chronik.pipeline.exactly_once_writer import ExactlyOnceWriter
        from chronik.pipeline.writer import RecordWriter, StreamWriter

        if overwrite:
            raise OptionError("a topic cannot be overwritten, records are only ever added; use outputMode('append')")
        options = write_options(self.options)
        return (
            ExactlyOnceWriter(options, schema) if options.exactly_once else StreamWriter(RecordWriter(options, schema))
        )


def columns_of(schema: StructType) -> list[str]:
    """The columns that a query asks for: all, or those of a schema that its author gave."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in SPARK_TYPES:
            raise OptionError(f"a topic has no column {field.name!r}; it has {', '.join(SPARK_TYPES)}")
        if kind != SPARK_TYPES[field.name]:
            raise OptionError(f"column {field.name} of a topic is {SPARK_TYPES[field.name]}, not {kind}")
    return [field.name for field in schema.fields]
