"""The data pipeline on Spark: topics as Spark sources and sinks, topics kept as Delta tables, SQL over both.

Talks to brokers as any client does: of the rest of Chronik it imports `chronik.client` and `chronik.protocol` only.

| Package, module | What lives there |
|---|---|
| `arrow_decoder`, `arrow_schema` | raw record batches to Arrow, with numpy |
| `source`, `source_options`, `ranges`, `range_reader` | `format("chronik")`: what is read, by which task, and how |
| `batch_reader`, `stream_reader`, `pushdown`, `writer` | the four sides of the data source |
| `exactly_once_writer`, `record_packer`, `sink_transaction` | streams into topics, a transaction per micro-batch |
| `tables` | topics kept as Delta tables, exactly once |
| `sql` | topics as tables by name, the engine and the prompt |
| `java`, `spark_session` | finding Java, starting Spark quietly |
| `transforms`, `interrupts` | running a person's own PySpark, SQL or Declarative Pipelines |
"""
