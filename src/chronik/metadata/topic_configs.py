"""The settings a topic can have: Kafka's, by Kafka's names, and Chronik's own (`durability`, `table.*`)."""

from __future__ import annotations

from chronik.metadata.config_definitions import (
    LONG_MAX,
    Check,
    ConfigDef,
    ConfigType,
    Synonym,
    at_least,
    between,
    between_or,
    each_of,
    one_of,
    table_of,
    throttled_replicas,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MINUTE_MS = 60_000
COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
DURABILITIES = ("fsync", "os")

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)


def _define(
    name: str,
    kind: ConfigType,
    default: object,
    broker_names: str | tuple[Synonym, ...],
    doc: str,
    check: Check | None = None,
) -> ConfigDef:
    if isinstance(broker_names, str):
        broker_names = (Synonym(broker_names),) if broker_names else ()
    return ConfigDef(name, kind, str(default), doc, check, broker_names)


_SEGMENTS = [
    _define(
        "segment.bytes", _INT, 1 << 30, "log.segment.bytes", "Size at which a new log segment is begun.", at_least(14)
    ),
    _define(
        "segment.ms",
        _LONG,
        7 * DAY_MS,
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
        "Age at which a new log segment is begun even if the old one is not full.",
        at_least(1),
    ),
    _define(
        "segment.jitter.ms",
        _LONG,
        0,
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
        "Largest random time taken off segment.ms, so that not all segments roll at once.",
        at_least(0),
    ),
    _define(
        "segment.index.bytes",
        _INT,
        10 << 20,
        "log.index.size.max.bytes",
        "Largest size of an offset index.",
        at_least(4),
    ),
    _define(
        "index.interval.bytes",
        _INT,
        4096,
        "log.index.interval.bytes",
        "Bytes of log between two index entries.",
        at_least(0),
    ),
    _define(
        "preallocate", _BOOLEAN, "false", "log.preallocate", "Whether segment files are allocated in full when created."
    ),
    _define(
        "file.delete.delay.ms",
        _LONG,
        MINUTE_MS,
        "log.segment.delete.delay.ms",
        "Time between removing a file from the log and deleting it from disk.",
        at_least(0),
    ),
]

_RETENTION = [
    _define(
        "cleanup.policy",
        _LIST,
        "delete",
        "log.cleanup.policy",
        "What happens to old records: delete them, compact them by key, or both.",
        each_of("compact", "delete"),
    ),
    _define(
        "retention.bytes",
        _LONG,
        -1,
        "log.retention.bytes",
        "Size a partition may reach before old segments go; -1: any.",
    ),
    _define(
        "retention.ms",
        _LONG,
        7 * DAY_MS,
        (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
        "Age records may reach before they are deleted; -1: any.",
        at_least(-1),
    ),
    _define(
        "delete.retention.ms",
        _LONG,
        DAY_MS,
        "log.cleaner.delete.retention.ms",
        "Time a tombstone is kept in a compacted topic.",
        at_least(0),
    ),
    _define(
        "min.compaction.lag.ms",
        _LONG,
        0,
        "log.cleaner.min.compaction.lag.ms",
        "Time a record stays uncompacted at the least.",
        at_least(0),
    ),
    _define(
        "max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "Time after which a record must be eligible for compaction.",
        at_least(1),
    ),
    _define(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        "log.cleaner.min.cleanable.ratio",
        "Share of the log that is uncompacted before compaction begins.",
        between(0, 1),
    ),
    _define(
        "local.retention.ms",
        _LONG,
        -2,
        "log.local.retention.ms",
        "Age of local segments with tiered storage; -2: as retention.ms.",
        at_least(-2),
    ),
    _define(
        "local.retention.bytes",
        _LONG,
        -2,
        "log.local.retention.bytes",
        "Size of local segments with tiered storage; -2: as retention.bytes.",
        at_least(-2),
    ),
    _define("remote.storage.enable", _BOOLEAN, "false", "", "There is no tiered storage."),
    _define("remote.log.copy.disable", _BOOLEAN, "false", "", "Whether tiered data becomes read-only."),
    _define(
        "remote.log.delete.on.disable", _BOOLEAN, "false", "", "Whether tiered data goes when tiering is disabled."
    ),
]

_MESSAGES = [
    _define(
        "max.message.bytes", _INT, 1_048_588, "message.max.bytes", "Largest record batch the topic takes.", at_least(0)
    ),
    _define(
        "compression.type",
        _STRING,
        "producer",
        "compression.type",
        "How batches are compressed on disk; producer: as they came.",
        one_of(*COMPRESSION_TYPES),
    ),
    _define(
        "compression.gzip.level",
        _INT,
        -1,
        "compression.gzip.level",
        "Level when compression.type is gzip.",
        between_or(1, 9, -1),
    ),
    _define(
        "compression.lz4.level", _INT, 9, "compression.lz4.level", "Level when compression.type is lz4.", between(1, 17)
    ),
    _define(
        "compression.zstd.level",
        _INT,
        3,
        "compression.zstd.level",
        "Level when compression.type is zstd.",
        between(-131072, 22),
    ),
    _define(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        "log.message.timestamp.type",
        "Whose time records carry: the producer's or the broker's.",
        one_of(*TIMESTAMP_TYPES),
    ),
    _define(
        "message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "log.message.timestamp.before.max.ms",
        "How far a record's timestamp may lie before the broker's clock.",
        at_least(0),
    ),
    _define(
        "message.timestamp.after.max.ms",
        _LONG,
        HOUR_MS,
        "log.message.timestamp.after.max.ms",
        "How far a record's timestamp may lie after the broker's clock.",
        at_least(0),
    ),
    _define(
        "message.downconversion.enable",
        _BOOLEAN,
        "true",
        "log.message.downconversion.enable",
        "Whether old consumers are served in the record formats they know.",
    ),
]

_REPLICATION = [
    _define(
        "min.insync.replicas",
        _INT,
        1,
        "min.insync.replicas",
        "Replicas that must be in sync for a write with acks=all.",
        at_least(1),
    ),
    _define(
        "unclean.leader.election.enable",
        _BOOLEAN,
        "false",
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync may lead when no other is left, losing records.",
    ),
    _define(
        "leader.replication.throttled.replicas",
        _LIST,
        "",
        "",
        "Replicas whose replication is throttled on the leader's side.",
        throttled_replicas,
    ),
    _define(
        "follower.replication.throttled.replicas",
        _LIST,
        "",
        "",
        "Taken for the sake of Kafka's tools; throttling happens on the leader's side.",
        throttled_replicas,
    ),
]

_DURABILITY = [
    _define(
        "durability",
        _STRING,
        "fsync",
        "durability",
        "fsync: a replica counts a record only once it is synced to disk; os: once it is written.",
        one_of(*DURABILITIES),
    ),
    _define(
        "flush.messages",
        _LONG,
        LONG_MAX,
        "log.flush.interval.messages",
        "Records after which the log is synced; any number makes the topic as durable as durability=fsync does.",
        at_least(1),
    ),
    _define(
        "flush.ms",
        _LONG,
        LONG_MAX,
        (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        "Time after which the log is synced; any time makes the topic as durable as durability=fsync does.",
        at_least(0),
    ),
]

_TABLES = [
    _define("table.enabled", _BOOLEAN, "false", "", "Whether the pipeline keeps this topic as a table."),
    _define(
        "table.value.format",
        _STRING,
        "json",
        "",
        "What record values are, for the table.",
        one_of("json", "string", "binary"),
    ),
    _define("table.schema", _STRING, "", "", "A fixed schema of the table; empty: inferred from the records."),
    _define(
        "table.on.error",
        _STRING,
        "dead-letter",
        "",
        "What a record that does not fit the table does.",
        one_of("dead-letter", "skip", "stop"),
    ),
]

TOPIC_CONFIGS = table_of([*_SEGMENTS, *_RETENTION, *_MESSAGES, *_REPLICATION, *_DURABILITY, *_TABLES])
