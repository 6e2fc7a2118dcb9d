"""The process that Spark forks its Python workers from, with what they need already imported.

Spark starts it as `python -m chronik.pipeline.worker_daemon`. Without it, each new worker spends longer on imports than
on a small query.
"""

import numpy  # noqa: F401
import pyarrow
import pyarrow.parquet  # noqa: F401
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import chronik.pipeline.batch_reader
import chronik.pipeline.source
import chronik.pipeline.tables.ingest_task  # noqa: F401

if __name__ == "__main__":
    manager()
