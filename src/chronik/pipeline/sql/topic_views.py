"""A temporary view per topic that a query names: each record once, wherever it is.

The table is opened at its newest version V. V says, per partition, which offset comes next; the live part begins there
and ends where the log ends now. An ingest that runs at the same time makes a version V + 1, which this query does not
look at, so no record is seen twice and none is missed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError

from chronik.client import ClientError, Cluster, Isolation, TopicPartition
from chronik.client.admin.topics import list_topics
from chronik.pipeline.positions import earliest, latest
from chronik.pipeline.ranges import OffsetRange
from chronik.pipeline.sql.live_reader import OPTION, LivePart
from chronik.pipeline.sql.sampling import Sampler
from chronik.pipeline.sql.sql_errors import explain
from chronik.pipeline.tables.delta_table import ForeignTable, TopicTable
from chronik.pipeline.tables.kept_topic import columns_of_schema, uses_schema
from chronik.pipeline.tables.layout import (
    DAY,
    DEAD_LETTER_SUFFIX,
    JSON,
    RESCUED,
    TableSettings,
    dead_letter_columns,
    raw_columns,
    schema_to_text,
    table_folder,
    topic_settings,
    typed_columns,
)
from chronik.protocol.errors import KafkaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WORDS = re.compile(r"`((?:[^`]|``)+)`|([A-Za-z0-9_]+)")
_ALL_TOPICS = re.compile(r"^\s*show\s+(tables|views)\b", re.IGNORECASE)
_CHANGE = re.compile(
    r"""\s* (?: drop\s+(?:table|view)(?:\s+if\s+exists)?
            | truncate\s+table | alter\s+(?:table|view) | delete\s+from | update | merge\s+into
            | insert\s+(?:into|overwrite)(?:\s+table)?
            | create(?:\s+or\s+replace)?(?:\s+global)?(?:\s+temp(?:orary)?)?\s+(?:table|view)(?:\s+if\s+not\s+exists)?
         ) \s+ (?: `(?P<quoted>[^`]+)` | (?P<bare>\w+) )""",
    re.IGNORECASE | re.VERBOSE,
)


class TopicViews:
    """Makes views in one Spark session; with `shared`, in `global_temp`, where all sessions find them."""

    def __init__(self, spark: SparkSession, bootstrap: str, warehouse: Path, *, shared: bool = False) -> None:
        self.spark = spark
        self._shared = shared
        self.bootstrap = bootstrap
        self.warehouse = warehouse
        self.cluster = Cluster(bootstrap)
        self._samplers: dict[str, Sampler] = {}
        self._landed: dict[str, tuple[str, DataFrame]] = {}
        self._made: set[str] = set()

    def prepare(self, sql: str) -> list[str]:
        """Make or renew the views of the topics that a query names; warnings that its reader should see."""
        topics = {topic.name: topic for topic in list_topics(self.cluster)}
        self._drop_all_but(topics)
        refuse_changes(topics, sql)
        warnings: list[str] = []
        if _ALL_TOPICS.match(sql):
            named = distinct(topics)
            warnings += alike_in_case(topics)
        else:
            letters = {name + DEAD_LETTER_SUFFIX for name in topics}
            named = topics_named(letters | topics.keys(), mentioned(sql))
        for name in named:
            if name in topics:
                warnings += self._make(topic_settings(self.cluster, topics[name]))
                warnings += _hides_dead_letters(name, topics)
            else:
                self._make_dead_letters(topic_settings(self.cluster, topics[name.removesuffix(DEAD_LETTER_SUFFIX)]))
        return warnings

    def hint(self, sql: str) -> str:
        """What may help when a query names a table that is not there; nothing where nothing does."""
        try:
            meant = unquoted((topic.name for topic in list_topics(self.cluster)), sql)
        except (KafkaError, ClientError):
            return ""
        if not meant:
            return ""
        return f"\nTopic {meant[0]} has dots or dashes in its name: write it in backticks, `{meant[0]}`"

    def prepare_all(self) -> list[str]:
        """Make or renew the views of all topics; warnings, also of topics that have none because of a failure."""
        from pyspark.errors import PySparkException

        topics = {topic.name: topic for topic in list_topics(self.cluster)}
        self._drop_all_but(topics)
        warnings = alike_in_case(topics)
        for name in distinct(topics):
            try:
                warnings += self._make(topic_settings(self.cluster, topics[name]))
            except (KafkaError, ClientError, DeltaError, OSError, PySparkException) as error:
                warnings.append(f"topic {name} has no view, or an old one: {explain(error)}")
        return warnings

    def _drop_all_but(self, topics: Collection[str]) -> None:
        """Drop views of topics that are gone: they would answer what was, or fail."""
        for name in [name for name in self._made if name.removesuffix(DEAD_LETTER_SUFFIX) not in topics]:
            self.spark.sql(f"DROP VIEW IF EXISTS {'global_temp.' if self._shared else ''}{_quoted(name)}")
            self._made.discard(name)

    def _make(self, settings: TableSettings) -> list[str]:
        table = TopicTable(table_folder(self.warehouse, settings.topic), settings, pa.schema([]))
        warnings: list[str] = []
        try:
            # A topic that is named as dead letters are is never kept: what is in that folder is not its table.
            exists = not settings.topic.endswith(DEAD_LETTER_SUFFIX) and table.open()
        except ForeignTable as error:
            warnings.append(f"{error}. Only the live log is read")
            exists = False
        ranges, lost = self._live_ranges(settings, table)
        warnings += lost
        typed = typed_columns(table.columns())
        if uses_schema(settings):
            try:
                fixed = columns_of_schema(settings.schema_ddl)
                typed = pa.schema([*typed, *(field for field in fixed if field.name not in typed.names)])
            except ValueError as error:
                warnings.append(f"table.schema of topic {settings.topic} cannot be used: {error}")
        elif settings.value_format == JSON:
            sampler = self._samplers.setdefault(settings.topic_id, Sampler())
            sampler.look(self.cluster, ranges)
            typed = sampler.columns(typed)
        order = [*typed.names, *(field.name for field in raw_columns(settings.value_format))]
        order += [RESCUED, DAY] if settings.value_format == JSON else [DAY]
        parts = []
        if exists:
            parts.append(self._landed_part(table, table.columns()))
        if ranges or not parts:
            parts.append(self._live_part(settings, typed, ranges))
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.unionByName(part, allowMissingColumns=True)
        self._register(settings.topic, frame.select(*(_quoted(name) for name in order if name in frame.columns)))
        return warnings

    def _make_dead_letters(self, settings: TableSettings) -> None:
        """The view is empty where there are no dead letters: a topic may always be asked for them."""
        table = TopicTable(table_folder(self.warehouse, settings.dead_letter), settings, dead_letter_columns())
        table.open()
        self._register(settings.dead_letter, self._landed_part(table, dead_letter_columns()))

    def _live_ranges(self, settings: TableSettings, table: TopicTable) -> tuple[list[OffsetRange], list[str]]:
        places = [TopicPartition(settings.topic, partition) for partition in settings.partitions]
        first = earliest(self.cluster, places)
        last = latest(self.cluster, places, Isolation.READ_COMMITTED)
        ranges: list[OffsetRange] = []
        warnings: list[str] = []
        positions = {place: table.stored(place.partition) for place in places}
        began = any(stored is not None for stored in positions.values())
        for place, stored in positions.items():
            if began and first[place] > (stored or 0):
                warnings.append(
                    f"offsets {stored or 0} to {first[place] - 1} of {place} were removed by retention before they "
                    "landed; they are in no answer"
                )
            start = max(stored or 0, first[place])
            if last[place] > start:
                ranges.append(OffsetRange(*place, start, last[place]))
        return ranges, warnings

    def _landed_part(self, table: TopicTable, columns: pa.Schema) -> DataFrame:
        """The files of one version, read by Spark itself; kept for as long as the version is the newest."""
        from pyspark.sql.pandas.types import from_arrow_schema

        key = str(table.folder)
        known = self._landed.get(key)
        if known is not None and known[0] == table.state:
            return known[1]
        schema = from_arrow_schema(columns.append(pa.field(DAY, pa.date32())))
        files = table.files()
        if files:
            frame = self.spark.read.schema(schema).option("basePath", key).parquet(*files)
        else:
            frame = self.spark.createDataFrame([], schema)
        self._landed[key] = (table.state, frame)
        return frame

    def _live_part(self, settings: TableSettings, typed: pa.Schema, ranges: Iterable[OffsetRange]) -> DataFrame:
        part = LivePart(
            self.bootstrap,
            settings.topic,
            settings.topic_id,
            settings.value_format,
            settings.on_error,
            schema_to_text(typed),
            not settings.enabled,
            [(piece.partition, piece.start, piece.end) for piece in ranges],
        )
        document = msgspec.json.encode(part).decode()
        return self.spark.read.format("chronik").option(OPTION, document).load()

    def _register(self, name: str, frame: DataFrame) -> None:
        if self._shared:
            frame.createOrReplaceGlobalTempView(_quoted(name))
        else:
            frame.createOrReplaceTempView(_quoted(name))
        self._made.add(name)


def refuse_changes(topics: Iterable[str], sql: str) -> None:
    """ValueError for a statement that would change a view of ours, while its author takes it for the topic."""
    found = _CHANGE.match(sql)
    target = (found["quoted"] or found["bare"]).casefold() if found else None
    name = next((name for name in topics if name.casefold() == target), None)
    if name is not None:
        raise ValueError(
            f"{name} is a topic, and SQL reads topics without changing them. Write with `chronik produce {name}`, "
            f"delete it with `chronik topic delete {name}`, and give a view of your own another name"
        )


def mentioned(sql: str) -> set[str]:
    """Everything in a query that may be the name of a table: words, and what is in backticks."""
    return {quoted.replace("``", "`") or word for quoted, word in _WORDS.findall(sql)}


def topics_named(topics: Collection[str], words: set[str]) -> list[str]:
    """The topics that words name. Case makes no difference to SQL, but it does to topics.

    ValueError when that leaves open which one of several is meant.
    """
    chosen: list[str] = []
    for word in sorted({word.casefold() for word in words}):
        alike = sorted(name for name in topics if name.casefold() == word)
        if len(alike) > 1:
            written = [name for name in alike if name in words]
            if len(written) != 1:
                raise ValueError(
                    f"topics {' and '.join(alike)} differ in nothing but case, which makes no difference to SQL: ask "
                    "for one of them at a time, with its name as it is"
                )
            alike = written
        chosen += alike
    return chosen


def unquoted(topics: Iterable[str], sql: str) -> list[str]:
    """Topics that a query names without the backticks that their names need."""
    bare = re.sub(r"`[^`]*`", "``", sql).casefold()
    return sorted(
        name
        for name in topics
        if re.search(r"[.-]", name) and re.search(rf"(?<![\w.-]){re.escape(name.casefold())}(?![\w.-])", bare)
    )


def distinct(topics: Iterable[str]) -> list[str]:
    """The topics without those that differ from another in nothing but case."""
    return sorted({name.casefold(): name for name in sorted(topics, reverse=True)}.values())


def alike_in_case(topics: Iterable[str]) -> list[str]:
    """What is said of topics that have no view beside another of the same name in other letters."""
    chosen = {name.casefold(): name for name in distinct(topics)}
    return [
        f"topic {name} is left out beside {chosen[name.casefold()]}: to SQL, names that differ in case alone are one"
        for name in sorted(topics)
        if chosen[name.casefold()] != name
    ]


def _hides_dead_letters(name: str, topics: Collection[str]) -> list[str]:
    of = name.removesuffix(DEAD_LETTER_SUFFIX)
    if of == name or of not in topics:
        return []
    return [f"{name} is the topic of that name here, not the dead letters of topic {of}"]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
