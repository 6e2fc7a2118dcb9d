"""The settings a broker has, by Kafka's names: those Chronik honours and those that tools insist on reading.

A setting that topics inherit takes its type, default and check from the topic's definition. `durability` is Chronik's.
Settings of Kafka that mean nothing here (threads, buffers, KRaft listeners) are left out rather than pretended; what
cannot be otherwise in Chronik has the one value that is true.
"""

from __future__ import annotations

from chronik.metadata.config_definitions import (
    INT_MAX,
    LONG_MAX,
    Check,
    ConfigDef,
    ConfigType,
    Scope,
    at_least,
    between,
    only,
    table_of,
)
from chronik.metadata.topic_configs import HOUR_MS, MINUTE_MS, TOPIC_CONFIGS

_READ_ONLY, _PER_BROKER, _CLUSTER_WIDE = Scope.READ_ONLY, Scope.PER_BROKER, Scope.CLUSTER_WIDE
_BOOLEAN, _STRING, _INT, _SHORT, _LONG, _DOUBLE, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.SHORT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)

Row = tuple[str, ConfigType, object, Scope, str, Check | None]

# fmt: off
_IDENTITY: list[Row] = [
    ("broker.id", _INT, -1, _READ_ONLY, "The id of this broker, the same as node.id.", None),
    ("node.id", _INT, -1, _READ_ONLY, "The id of this node.", None),
    ("process.roles", _LIST, "broker,controller", _READ_ONLY,
     "Every Chronik node is both.", only("broker,controller")),
    ("broker.rack", _STRING, None, _READ_ONLY, "Where this broker stands, for the placement of replicas.", None),
    ("listeners", _LIST, "", _READ_ONLY, "Where this broker listens.", None),
    ("advertised.listeners", _LIST, "", _READ_ONLY, "Where clients are told to find this broker.", None),
    ("log.dirs", _LIST, "", _READ_ONLY, "The folder of the partition logs.", None),
]

_TOPIC_CREATION: list[Row] = [
    ("auto.create.topics.enable", _BOOLEAN, "true", _READ_ONLY,
     "Whether asking for an unknown topic creates it.", None),
    ("delete.topic.enable", _BOOLEAN, "true", _READ_ONLY, "Whether topics can be deleted.", None),
    ("num.partitions", _INT, 1, _CLUSTER_WIDE, "Partitions of a topic created without a number.", at_least(1)),
    ("default.replication.factor", _INT, None, _CLUSTER_WIDE,
     "Replicas of a topic created without a number; unset: 3, or the number of nodes if that is less.", at_least(1)),
    ("auto.leader.rebalance.enable", _BOOLEAN, "true", _CLUSTER_WIDE,
     "Whether leadership returns to preferred replicas by itself.", None),
    ("leader.imbalance.check.interval.seconds", _LONG, 10, _CLUSTER_WIDE,
     "How often leadership returns to preferred replicas, and how long after a broker came or went.", at_least(1)),
    ("create.topic.policy.class.name", ConfigType.CLASS, None, _READ_ONLY,
     "There are no policies of creation.", only(None)),
    ("alter.config.policy.class.name", ConfigType.CLASS, None, _READ_ONLY,
     "There are no policies of configuration.", only(None)),
]

_CONNECTIONS: list[Row] = [
    ("socket.request.max.bytes", _INT, 100 << 20, _READ_ONLY, "Largest request a client may send.", at_least(1)),
    ("connections.max.idle.ms", _LONG, 10 * MINUTE_MS, _READ_ONLY,
     "Idle time after which a connection is closed.", None),
    ("max.connections", _INT, INT_MAX, _READ_ONLY, "Connections this broker accepts.", at_least(0)),
    ("max.connections.per.ip", _INT, INT_MAX, _READ_ONLY, "Connections from one address.", at_least(0)),
    ("fetch.max.bytes", _INT, 55 << 20, _READ_ONLY, "Most bytes one fetch returns.", at_least(1024)),
    ("max.incremental.fetch.session.cache.slots", _INT, 1000, _READ_ONLY, "Fetch sessions kept.", at_least(0)),
]

_REPLICATION: list[Row] = [
    ("replica.lag.time.max.ms", _LONG, 30_000, _CLUSTER_WIDE,
     "Lag after which a follower is out of sync.", at_least(1)),
    ("replica.selector.class", ConfigType.CLASS, None, _READ_ONLY, "Consumers read from leaders.", only(None)),
    ("leader.replication.throttled.rate", _LONG, LONG_MAX, _PER_BROKER, "Bytes/s to throttled replicas.", at_least(0)),
    ("replica.alter.log.dirs.io.max.bytes.per.second", _LONG, LONG_MAX, _PER_BROKER,
     "Bytes/s between the folders of a node; a node has one folder, so nothing is limited.", at_least(0)),
    ("follower.replication.throttled.rate", _LONG, LONG_MAX, _PER_BROKER,
     "Taken for the sake of Kafka's tools; throttling happens on the leader's side.", at_least(0)),
    ("controlled.shutdown.enable", _BOOLEAN, "true", _READ_ONLY, "Leaders move away before a stop.", only("true")),
    ("broker.heartbeat.interval.ms", _INT, 300, _READ_ONLY,
     "How often a broker reports to the controller.", at_least(10)),
    ("broker.session.timeout.ms", _INT, 1500, _READ_ONLY, "Silence after which a broker is offline.", at_least(100)),
]

_LOGS: list[Row] = [
    ("log.retention.minutes", _INT, None, _READ_ONLY, "As log.retention.ms, in minutes.", None),
    ("log.retention.hours", _INT, 168, _READ_ONLY, "As log.retention.ms, in hours.", None),
    ("log.roll.hours", _INT, 168, _READ_ONLY, "As log.roll.ms, in hours.", at_least(1)),
    ("log.roll.jitter.hours", _INT, 0, _READ_ONLY, "As log.roll.jitter.ms, in hours.", at_least(0)),
    ("log.retention.check.interval.ms", _LONG, 5 * MINUTE_MS, _READ_ONLY,
     "How often retention is enforced.", at_least(1)),
    ("log.flush.scheduler.interval.ms", _LONG, LONG_MAX, _READ_ONLY, "How often flushing is considered.", None),
    ("log.cleaner.enable", _BOOLEAN, "true", _READ_ONLY,
     "Topics with cleanup.policy=compact are compacted.", only("true")),
    ("log.cleaner.backoff.ms", _LONG, 15_000, _READ_ONLY, "Rest when there is nothing to compact.", at_least(0)),
]

_GROUPS: list[Row] = [
    ("offsets.topic.num.partitions", _INT, 50, _READ_ONLY, "Partitions of the offsets topic.", at_least(1)),
    ("offsets.topic.replication.factor", _SHORT, 3, _READ_ONLY,
     "Replicas of the offsets topic, as far as there are nodes.", at_least(1)),
    ("offsets.topic.segment.bytes", _INT, 100 << 20, _READ_ONLY, "Segment size of the offsets topic.", at_least(1)),
    ("offsets.retention.minutes", _INT, 7 * 24 * 60, _READ_ONLY, "Age offsets of an empty group reach.", at_least(1)),
    ("offsets.retention.check.interval.ms", _LONG, 10 * MINUTE_MS, _READ_ONLY, "How often they expire.", at_least(1)),
    ("offset.metadata.max.bytes", _INT, 4096, _READ_ONLY, "Longest metadata of a committed offset.", None),
    ("group.initial.rebalance.delay.ms", _INT, 3000, _READ_ONLY, "Wait for more members of a new group.", at_least(0)),
    ("group.min.session.timeout.ms", _INT, 6000, _READ_ONLY, "Least session timeout of a member.", None),
    ("group.max.session.timeout.ms", _INT, 30 * MINUTE_MS, _READ_ONLY, "Most session timeout of a member.", None),
    ("group.max.size", _INT, INT_MAX, _READ_ONLY, "Most members of a group.", at_least(1)),
    ("group.coordinator.rebalance.protocols", _LIST, "classic,consumer", _READ_ONLY,
     "The protocols groups may use.", only("classic,consumer")),
    ("group.consumer.session.timeout.ms", _INT, 45_000, _READ_ONLY,
     "Session timeout of the consumer protocol.", at_least(1)),
    ("group.consumer.heartbeat.interval.ms", _INT, 5000, _READ_ONLY,
     "Heartbeats of the consumer protocol.", at_least(1)),
    ("group.consumer.max.size", _INT, INT_MAX, _READ_ONLY, "Most members of such a group.", at_least(1)),
    ("group.consumer.assignors", _LIST, "uniform,range", _READ_ONLY,
     "The assignors of the server, first the default.", None),
    ("group.consumer.migration.policy", _STRING, "disabled", _READ_ONLY,
     "A group changes its protocol when it is empty.", only("disabled")),
]

_TRANSACTIONS: list[Row] = [
    ("transaction.state.log.num.partitions", _INT, 50, _READ_ONLY, "Partitions of the transaction topic.", at_least(1)),
    ("transaction.state.log.replication.factor", _SHORT, 3, _READ_ONLY,
     "Replicas of the transaction topic, as far as there are nodes.", at_least(1)),
    ("transaction.state.log.min.isr", _INT, 2, _READ_ONLY,
     "In-sync replicas the transaction topic needs, as far as one may still fail.", at_least(1)),
    ("transaction.state.log.segment.bytes", _INT, 100 << 20, _READ_ONLY, "Its segment size.", at_least(1)),
    ("transaction.max.timeout.ms", _INT, 15 * MINUTE_MS, _READ_ONLY,
     "Longest timeout a producer may ask.", at_least(1)),
    ("transactional.id.expiration.ms", _INT, 7 * 24 * HOUR_MS, _READ_ONLY, "Idle time an id is kept.", at_least(1)),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, 10_000, _READ_ONLY,
     "How often.", at_least(1)),
    ("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, HOUR_MS, _READ_ONLY,
     "How often.", at_least(1)),
    ("transaction.partition.verification.enable", _BOOLEAN, "true", _CLUSTER_WIDE,
     "Verify old clients' partitions.", None),
    ("producer.id.expiration.ms", _INT, 24 * HOUR_MS, _READ_ONLY,
     "Idle time a producer is remembered.", at_least(1)),
    ("producer.id.expiration.check.interval.ms", _INT, 10 * MINUTE_MS, _READ_ONLY,
     "How often they expire.", at_least(1)),
    ("max.request.partition.size.limit", _INT, 2000, _READ_ONLY,
     "Most partitions in one topic description.", at_least(1)),
]

_OTHER: list[Row] = [
    ("remote.log.storage.system.enable", _BOOLEAN, "false", _READ_ONLY, "There is no tiered storage.", only("false")),
    ("metadata.snapshot.entries", _INT, 20_000, _READ_ONLY, "Metadata changes between two snapshots.", at_least(100)),
    ("raft.election.timeout.ms", _INT, 400, _READ_ONLY, "Silence of the Raft leader before an election, at least.",
     between(50, 60_000)),
]

# fmt: on

_DERIVED = {"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms"}
"""Names that Kafka leaves unset, because another name with a coarser unit has the default."""


def _inherited() -> list[ConfigDef]:
    """The broker settings that stand behind topic settings."""
    found: list[ConfigDef] = []
    for topic in TOPIC_CONFIGS.values():
        if topic.synonyms:
            name = topic.synonyms[0].name
            found.append(
                ConfigDef(
                    name,
                    topic.type,
                    None if name in _DERIVED else topic.default,
                    f"Default of topics' {topic.name}: {topic.doc[0].lower()}{topic.doc[1:]}",
                    topic.check,
                    topic.synonyms[1:],
                    Scope.CLUSTER_WIDE,
                )
            )
    return found


def _rows() -> list[ConfigDef]:
    groups = (_IDENTITY, _TOPIC_CREATION, _CONNECTIONS, _REPLICATION, _LOGS, _GROUPS, _TRANSACTIONS, _OTHER)
    return [
        ConfigDef(name, kind, None if default is None else str(default), doc, check, (), scope)
        for group in groups
        for name, kind, default, scope, doc, check in group
    ]


BROKER_CONFIGS = table_of([*_inherited(), *_rows()])
