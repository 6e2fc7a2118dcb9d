"""The sink of a stream with `delivery=exactly_once`.

Tasks write nothing: they turn their rows into finished record batches and hand them to the driver, which writes those
of all tasks in one transaction (`sink_transaction`). So it does not matter whether a task is retried, run twice by
speculation, or killed: Spark passes on what one attempt of each task returned, and the rest is gone.

An application that asks for speculation is refused all the same. Its tasks do that, because they are told the settings
of Spark; the process at the driver that commits is told none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chronik.client import Cluster
from chronik.pipeline.record_packer import PackedBatch, RecordPacker
from chronik.pipeline.sink_transaction import SinkTransaction, transactional_id, write_once
from chronik.pipeline.source_options import OptionError, WriteOptions
from chronik.pipeline.writer import check_columns, records_of
from chronik.protocol.records import Compression

# What Spark tells every task of a streaming query. The id is kept in the checkpoint: it is the same after a restart.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# A setting of the application. Spark hands those to the tasks of a query together with the settings of its session.
SPECULATION = "spark.speculation"


@dataclass
class PackedRows(WriterCommitMessage):
    """What one task has to write, of which micro-batch of which query."""

    query_id: str
    batch_id: int
    rows: int
    batches: list[PackedBatch]


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        self.compression = Compression.named(options.compression)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context else None
        batch_id = context.getLocalProperty(BATCH_ID) if context else None
        refuse_speculation(context.getLocalProperty(SPECULATION) if context else None)
        if not query_id or not batch_id:
            raise OptionError(
                "delivery=exactly_once needs micro-batches, which this query does not run in; use another trigger"
            )
        rows = 0
        with Cluster(self.options.bootstrap) as cluster:
            packer = RecordPacker(cluster, self.compression)
            for batch in iterator:
                for record in records_of(batch, self.options):
                    packer.add(*record)
                rows += batch.num_rows
            return PackedRows(query_id, int(batch_id), rows, packer.finish())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        packed = [message for message in messages if isinstance(message, PackedRows)]
        origins = {(message.query_id, message.batch_id) for message in packed}
        if len(packed) != len(messages) or len(origins) > 1 or any(batch != batchId for _, batch in origins):
            raise RuntimeError(
                f"Spark asked to commit micro-batch {batchId} with {len(packed)} of {len(messages)} tasks' records, of "
                f"{sorted(origins)}; nothing was written. Start the query again"
            )
        if not packed:
            return
        with Cluster(self.options.bootstrap) as cluster:
            transaction = self.transaction(cluster, packed[0].query_id)
            batches = (batch for message in packed for batch in message.batches)
            write_once(transaction, batchId, batches, sum(message.rows for message in packed))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to take back: tasks write nothing, and a commit that failed has ended its transaction."""

    def transaction(self, cluster: Cluster, query_id: str) -> SinkTransaction:
        return SinkTransaction(cluster, transactional_id(query_id), self.options.transaction_timeout_ms)


def refuse_speculation(setting: str | None) -> None:
    """OptionError for a `spark.speculation` that Spark takes for a yes. None is one that is not set, or not seen."""
    if setting is not None and setting.strip().lower() == "true":
        raise OptionError(
            f"delivery=exactly_once is refused in a Spark application with {SPECULATION}=true; this run has "
            f"written nothing. Set {SPECULATION}=false for this application, or use delivery=at_least_once"
        )
