"""What a table looks like: its columns, its folder, and the settings of the topic that it is kept from."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa

from chronik.client import Cluster
from chronik.client.admin.configs import ResourceType, describe_configs
from chronik.client.admin.topics import list_topics
from chronik.client.metadata import TopicMetadata
from chronik.pipeline.arrow_schema import HEADERS, TIMESTAMP

DEAD_LETTER_SUFFIX = "__dead_letter"
DAY = "_day"
RESCUED = "_rescued"

READ_COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
"""What is read of each record, and the raw columns of every table."""

OWN_COLUMNS = frozenset([*READ_COLUMNS, "timestamptype", DAY, RESCUED])
"""Names, in lower case, that no field of a JSON value can have as a column."""

JSON, STRING, BINARY = "json", "string", "binary"
DEAD_LETTER, SKIP, STOP = "dead-letter", "skip", "stop"

SETTINGS = ("table.enabled", "table.value.format", "table.schema", "table.on.error")


class TableSettings(msgspec.Struct, frozen=True):
    """A topic, and what it says about its table."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]
    enabled: bool
    value_format: str
    schema_ddl: str
    on_error: str

    @property
    def dead_letter(self) -> str:
        return self.topic + DEAD_LETTER_SUFFIX

    def app_id(self, partition: int) -> str:
        """The name under which a Delta table keeps the next offset of a partition."""
        return f"chronik/{self.topic_id}/{partition}"


def topic_settings(cluster: Cluster, topic: TopicMetadata) -> TableSettings:
    """The table settings of one topic; the defaults where a cluster does not know them."""
    entries = describe_configs(cluster, ResourceType.TOPIC, topic.name, names=SETTINGS)
    said = {entry.name: entry.value or "" for entry in entries}
    return TableSettings(
        topic.name,
        topic.topic_id.hex(),
        tuple(sorted(topic.partitions)),
        said.get("table.enabled", "false") == "true",
        said.get("table.value.format") or JSON,
        said.get("table.schema", ""),
        said.get("table.on.error") or DEAD_LETTER,
    )


def all_settings(cluster: Cluster) -> list[TableSettings]:
    """The table settings of all topics that are not internal."""
    return [topic_settings(cluster, topic) for topic in list_topics(cluster)]


def raw_columns(value_format: str) -> list[pa.Field]:
    """The columns that every record has. The value is a text only where the topic says that its values are texts."""
    return [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.string() if value_format == STRING else pa.binary()),
        pa.field("headers", HEADERS),
    ]


def table_columns(value_format: str, typed: Iterable[pa.Field]) -> pa.Schema:
    """All columns of a table but the day, which is in the folders of its files."""
    rescued = [pa.field(RESCUED, pa.string())] if value_format == JSON else []
    return pa.schema([*raw_columns(value_format), *typed, *rescued])


def dead_letter_columns() -> pa.Schema:
    """Columns of a dead-letter table: the record as it was, and why it is there."""
    return pa.schema([*raw_columns(BINARY), pa.field("reason", pa.string())])


def typed_columns(table: pa.Schema) -> pa.Schema:
    """Those columns of a table that come from JSON values."""
    return pa.schema([field for field in table if field.name.casefold() not in OWN_COLUMNS])


def table_folder(warehouse: Path, name: str) -> Path:
    return warehouse / name


def schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
