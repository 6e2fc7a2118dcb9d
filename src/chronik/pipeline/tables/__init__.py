"""Topics kept as Delta tables, each record exactly once.

The table is the only checkpoint: every commit carries, per Kafka partition, the offset that comes next, and happens
only if the offset before it is where the batch began. A driver that dies, a second driver and a replay change nothing.

| Module | What lives there |
|---|---|
| `layout` | columns of a table, where tables are, which settings a topic has |
| `json_shape`, `json_rows` | what JSON values look like; values into typed columns, and what does not fit |
| `table_rows` | records to rows of a table, dead letters, stops |
| `ingest_task` | what a Spark task does: read, convert, write Parquet |
| `delta_table` | positions, columns and commits of one Delta table |
| `keeper` | the driver: what to read next, which job to run, what to commit |
| `maintenance` | compaction of small files, removal of old and orphaned ones |
| `progress` | what a person sees of it |
"""
