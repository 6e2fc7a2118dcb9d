"""Where Spark looks for `format("chronik")`: a top-level module named `pyspark_…` with a `DefaultSource`.

Being installed is enough, on the driver and on executors; nothing is registered and no jar is needed. The source itself
is in `chronik.pipeline`.
"""

from chronik.pipeline.source import ChronikDataSource as DefaultSource

__all__ = ["DefaultSource"]
