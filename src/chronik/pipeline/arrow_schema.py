"""The columns of a topic in Arrow, equal to what Spark makes of the columns of its own Kafka source.

Spark compares the schema of what a Python source hands over with its own, field by field; any difference is an error.
"""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

TOPIC_COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)

SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}

CREATE_TIME = 0
LOG_APPEND_TIME = 1


def default_columns(*, headers: bool) -> list[str]:
    """The columns of Spark's Kafka source: headers only when they are asked for."""
    return [name for name in SPARK_TYPES if headers or name != "headers"]
