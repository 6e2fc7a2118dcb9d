"""Kafka's settings: what they are called, what they default to, which values they take, and which value holds."""

from __future__ import annotations

import pytest

from chronik.metadata import commands as c
from chronik.metadata.broker_configs import BROKER_CONFIGS
from chronik.metadata.config_definitions import ConfigSource, ConfigType
from chronik.metadata.configs import (
    ConfigEntry,
    ConfigView,
    set_config_command,
    static_problems,
    validate_topic_configs,
)
from chronik.metadata.model import ResourceType
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_configs import TOPIC_CONFIGS
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.settings import replica_settings
from harness.metadata_double import bring_up, local_store

SET, DELETE, APPEND = c.ConfigOperation.SET, c.ConfigOperation.DELETE, c.ConfigOperation.APPEND
LONG_MAX = str(2**63 - 1)

KAFKA_TOPIC_DEFAULTS = {
    "cleanup.policy": (ConfigType.LIST, "delete"),
    "compression.gzip.level": (ConfigType.INT, "-1"),
    "compression.lz4.level": (ConfigType.INT, "9"),
    "compression.type": (ConfigType.STRING, "producer"),
    "compression.zstd.level": (ConfigType.INT, "3"),
    "delete.retention.ms": (ConfigType.LONG, "86400000"),
    "file.delete.delay.ms": (ConfigType.LONG, "60000"),
    "flush.messages": (ConfigType.LONG, LONG_MAX),
    "flush.ms": (ConfigType.LONG, LONG_MAX),
    "follower.replication.throttled.replicas": (ConfigType.LIST, ""),
    "index.interval.bytes": (ConfigType.INT, "4096"),
    "leader.replication.throttled.replicas": (ConfigType.LIST, ""),
    "local.retention.bytes": (ConfigType.LONG, "-2"),
    "local.retention.ms": (ConfigType.LONG, "-2"),
    "max.compaction.lag.ms": (ConfigType.LONG, LONG_MAX),
    "max.message.bytes": (ConfigType.INT, "1048588"),
    "message.timestamp.after.max.ms": (ConfigType.LONG, "3600000"),
    "message.timestamp.before.max.ms": (ConfigType.LONG, LONG_MAX),
    "message.timestamp.type": (ConfigType.STRING, "CreateTime"),
    "min.cleanable.dirty.ratio": (ConfigType.DOUBLE, "0.5"),
    "min.compaction.lag.ms": (ConfigType.LONG, "0"),
    "min.insync.replicas": (ConfigType.INT, "1"),
    "preallocate": (ConfigType.BOOLEAN, "false"),
    "remote.storage.enable": (ConfigType.BOOLEAN, "false"),
    "retention.bytes": (ConfigType.LONG, "-1"),
    "retention.ms": (ConfigType.LONG, "604800000"),
    "segment.bytes": (ConfigType.INT, "1073741824"),
    "segment.index.bytes": (ConfigType.INT, "10485760"),
    "segment.jitter.ms": (ConfigType.LONG, "0"),
    "segment.ms": (ConfigType.LONG, "604800000"),
    "unclean.leader.election.enable": (ConfigType.BOOLEAN, "false"),
}
"""As Kafka 4 documents them."""


async def cluster(static: dict[str, str] | None = None, **configs: str) -> tuple[MetadataStore, ConfigView]:
    store = local_store()
    await bring_up(store, 1)
    named = {name.replace("_", "."): value for name, value in configs.items()}
    await store.propose(c.CreateTopic("t", b"t" * 16, ((1,),), named))
    return store, ConfigView(store.image, 1, static)


async def set_broker(store: MetadataStore, broker: str, name: str, value: str) -> None:
    command = set_config_command(store.image, ResourceType.BROKER, broker, [(SET, name, value)])
    assert (await store.propose(command)).ok


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(found for found in entries if found.name == name)


@pytest.mark.parametrize("name", sorted(KAFKA_TOPIC_DEFAULTS))
def test_topic_configs_have_kafkas_types_and_defaults(name: str) -> None:
    definition = TOPIC_CONFIGS[name]
    assert (definition.type, definition.default) == KAFKA_TOPIC_DEFAULTS[name]


def test_every_default_is_a_value_that_is_allowed_and_every_synonym_exists() -> None:
    for table in (TOPIC_CONFIGS, BROKER_CONFIGS):
        for definition in table.values():
            assert definition.doc
            if definition.default is not None:
                definition.parse(definition.default)
            for synonym in definition.synonyms:
                assert synonym.name in BROKER_CONFIGS


def test_the_broker_configs_that_tools_insist_on_are_there() -> None:
    insisted = """advertised.listeners auto.create.topics.enable broker.id broker.rack compression.type
        default.replication.factor delete.topic.enable group.initial.rebalance.delay.ms group.max.session.timeout.ms
        listeners log.cleanup.policy log.dirs log.retention.bytes log.retention.hours log.retention.ms log.segment.bytes
        message.max.bytes min.insync.replicas node.id num.partitions offsets.retention.minutes
        offsets.topic.num.partitions offsets.topic.replication.factor replica.lag.time.max.ms socket.request.max.bytes
        transaction.max.timeout.ms transaction.state.log.min.isr transaction.state.log.replication.factor
        transactional.id.expiration.ms unclean.leader.election.enable"""
    assert set(insisted.split()) <= set(BROKER_CONFIGS)


BAD_VALUES = [
    ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
    ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
    ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
    ("segment.bytes", "2147483648", "Not a number of type INT"),
    ("segment.bytes", "13", "Value must be at least 14"),
    ("preallocate", "yes", "Expected value to be either true or false"),
    ("cleanup.policy", "shred", "String must be one of: compact, delete"),
    ("cleanup.policy", "delete,delete", "twice"),
    ("compression.type", "brotli", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
    ("compression.gzip.level", "0", "between 1 and 9"),
    ("compression.lz4.level", "18", "no more than 17"),
    ("min.cleanable.dirty.ratio", "1.1", "no more than 1"),
    ("min.cleanable.dirty.ratio", "half", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "0_1", "Not a number of type DOUBLE"),
    ("message.timestamp.type", "Now", "String must be one of: CreateTime, LogAppendTime"),
    ("leader.replication.throttled.replicas", "0-1", "[partitionId]:[brokerId]"),
    ("min.insync.replicas", "0", "Value must be at least 1"),
    ("remote.storage.enable", "true", "Tiered Storage functionality is disabled"),
    ("durability", "maybe", "String must be one of: fsync, os"),
    ("table.value.format", "avro", "String must be one of: json, string, binary"),
    ("table.on.error", "panic", "String must be one of: dead-letter, skip, stop"),
    ("table.schema", "x" * 40_000, "longer than"),
    ("no.such.config", "1", "Unknown topic config name: no.such.config"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_VALUES)
def test_a_bad_value_is_refused_in_kafkas_words(name: str, value: str, message: str) -> None:
    with pytest.raises(KafkaError) as raised:
        validate_topic_configs({name: value})
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact, delete"),
        ("compression.gzip.level", "-1"),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1,1:2"),
        ("retention.ms", " 5 "),
        ("preallocate", "TRUE"),
        ("min.cleanable.dirty.ratio", ".5"),
        ("min.cleanable.dirty.ratio", "5.0E-1"),
    ],
)
def test_what_kafka_takes_is_taken(name: str, value: str) -> None:
    validate_topic_configs({name: value})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("log.cleaner.enable", "false", "It is always true in Chronik"),
        ("replica.selector.class", "org.example.Nearest", "It cannot be set in Chronik"),
    ],
)
def test_what_cannot_be_otherwise_cannot_be_set(name: str, value: str, problem: str) -> None:
    with pytest.raises(KafkaError, match=problem):
        BROKER_CONFIGS[name].parse(value)


def test_what_cannot_be_otherwise_may_be_named() -> None:
    assert BROKER_CONFIGS["log.cleaner.enable"].parse("true") is True
    assert BROKER_CONFIGS["process.roles"].parse("broker, controller") == ("broker", "controller")


def test_contradictory_compaction_lags_are_refused() -> None:
    with pytest.raises(KafkaError, match="conflict topic config setting"):
        validate_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})


async def test_a_value_comes_from_the_topic_then_this_broker_then_all_brokers_then_the_start_then_the_default() -> None:
    store, view = await cluster({"log.retention.hours": "3"})
    assert view.topic_settings("t").retention_ms == 3 * 3_600_000
    found = entry(view.describe_topic("t"), "retention.ms")
    assert (found.value, found.source) == ("10800000", ConfigSource.STATIC_BROKER)

    steps = [("", "50", ConfigSource.DYNAMIC_DEFAULT_BROKER), ("1", "40", ConfigSource.DYNAMIC_BROKER)]
    for broker, value, source in steps:
        await set_broker(store, broker, "log.retention.ms", value)
        found = entry(view.describe_topic("t"), "retention.ms")
        assert (found.value, found.source) == (value, source)
        assert view.topic_settings("t").retention_ms == int(value)

    command = set_config_command(store.image, ResourceType.TOPIC, "t", [(SET, "retention.ms", "30")])
    await store.propose(command)
    found = entry(view.describe_topic("t"), "retention.ms")
    assert [(synonym.name, synonym.value, synonym.source) for synonym in found.synonyms] == [
        ("retention.ms", "30", ConfigSource.TOPIC),
        ("log.retention.ms", "40", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "50", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.hours", "3", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]
    assert view.topic_settings("t").retention_ms == 30


async def test_the_finest_unit_wins_within_one_place_and_no_limit_stays_no_limit() -> None:
    _, view = await cluster({"log.retention.hours": "3", "log.retention.minutes": "2"})
    assert view.topic_settings("t").retention_ms == 120_000
    _, view = await cluster({"log.retention.hours": "-1"})
    assert view.topic_settings("t").retention_ms == -1


async def test_who_asks_for_any_sync_gets_synced_appends() -> None:
    store, view = await cluster({"durability": "os"})
    assert replica_settings(view.topic_settings("t")).log.durability == "os"
    for name in ("flush.ms", "flush.messages"):
        await store.propose(set_config_command(store.image, ResourceType.TOPIC, "t", [(SET, name, "1000")]))
        assert replica_settings(view.topic_settings("t")).log.durability == "fsync"
        await store.propose(set_config_command(store.image, ResourceType.TOPIC, "t", [(DELETE, name, None)]))
    assert replica_settings(view.topic_settings("t")).log.durability == "os"


async def test_another_brokers_settings_do_not_hold_here() -> None:
    store, view = await cluster()
    await set_broker(store, "2", "log.segment.bytes", "1000")
    assert view.topic_settings("t").segment_bytes == 1 << 30
    assert ConfigView(store.image, 2).topic_settings("t").segment_bytes == 1000


async def test_topic_settings_are_typed_and_shared_by_topics_that_are_configured_alike() -> None:
    store, view = await cluster(cleanup_policy="compact,delete", durability="os")
    await store.propose(c.CreateTopic("u", b"u" * 16, ((1,),)))
    await store.propose(c.CreateTopic("v", b"v" * 16, ((1,),)))
    settings = view.topic_settings("t")
    assert settings.compact and settings.delete and settings.durability == "os"
    assert settings.min_cleanable_dirty_ratio == 0.5 and settings.preallocate is False
    assert view.topic_settings("u") is view.topic_settings("v")
    assert view.topic_values(store.image.topics["t"])["cleanup.policy"] == ("compact", "delete")


async def test_a_config_that_only_a_newer_version_knows_is_left_alone() -> None:
    store, view = await cluster()
    change = c.ConfigChange(SET, "from.the.future", "1")
    await store.propose(c.SetConfig(ResourceType.TOPIC, "t", [change]))
    assert view.topic_settings("t") == view.topic_settings("unknown")


async def test_the_default_replication_factor_follows_the_number_of_nodes_unless_it_is_set() -> None:
    store, view = await cluster()
    assert view.default_replication_factor() == 1
    await bring_up(store, 2, 3, 4)
    assert view.default_replication_factor() == 3
    assert entry(view.describe_broker(), "default.replication.factor").value == "3"
    await set_broker(store, "", "default.replication.factor", "2")
    assert view.default_replication_factor() == 2


async def test_the_transaction_topic_always_lets_one_replica_be_missing() -> None:
    store, view = await cluster()
    await bring_up(store, 2, 3)
    for replicas, expected in (((1,), 1), ((1, 2), 1), ((1, 2, 3), 2)):
        topic_id = bytes([expected, len(replicas)]) * 8
        await store.propose(c.CreateTopic("__transaction_state", topic_id, (replicas,)))
        assert view.topic_settings("__transaction_state").min_insync_replicas == expected
        await store.propose(c.DeleteTopic(topic_id))


@pytest.mark.parametrize(("kind", "name"), [(ResourceType.TOPIC, "t"), (ResourceType.BROKER, "1")])
async def test_a_config_that_is_unknown_here_can_be_deleted(kind: ResourceType, name: str) -> None:
    store, _ = await cluster()
    await store.propose(c.SetConfig(kind, name, [c.ConfigChange(SET, "from.the.future", "1")]))
    await store.propose(set_config_command(store.image, kind, name, [(DELETE, "from.the.future", None)]))
    assert store.image.config_overrides(kind, name) == {}
    set_config_command(store.image, kind, name, [(DELETE, "never.there", None)])


async def test_appending_to_a_list_starts_from_its_default() -> None:
    store, _ = await cluster()
    command = set_config_command(store.image, ResourceType.TOPIC, "t", [(APPEND, "cleanup.policy", "compact")])
    await store.propose(command)
    assert store.image.topics["t"].configs == {"cleanup.policy": "delete,compact"}


REFUSED_CHANGES = [
    (ResourceType.TOPIC, "t", [(APPEND, "retention.ms", "5")], ErrorCode.INVALID_CONFIG, "its type is not LIST"),
    (ResourceType.TOPIC, "t", [(SET, "retention.ms", None)], ErrorCode.INVALID_REQUEST, "Null value"),
    (ResourceType.TOPIC, "t", [(APPEND, "nonsense", "1")], ErrorCode.INVALID_CONFIG, "Unknown topic config name"),
    (ResourceType.TOPIC, "t", [(APPEND, "cleanup.policy", "shred")], ErrorCode.INVALID_CONFIG, "must be one of"),
    (
        ResourceType.TOPIC,
        "t",
        [(SET, "flush.ms", "1"), (DELETE, "flush.ms", None)],
        ErrorCode.INVALID_REQUEST,
        "duplicate",
    ),
    (ResourceType.BROKER, "1", [(SET, "broker.id", "7")], ErrorCode.INVALID_REQUEST, "Cannot update these configs"),
    (ResourceType.BROKER, "1", [(DELETE, "node.id", None)], ErrorCode.INVALID_REQUEST, "Cannot update these configs"),
    (ResourceType.BROKER, "1", [(SET, "num.partitions", "0")], ErrorCode.INVALID_CONFIG, "at least 1"),
    (ResourceType.BROKER, "1", [(SET, "nonsense", "0")], ErrorCode.INVALID_CONFIG, "Unknown broker config name"),
    (
        ResourceType.BROKER,
        "",
        [(SET, "leader.replication.throttled.rate", "5")],
        ErrorCode.INVALID_REQUEST,
        "Cannot update these configs",
    ),
]


@pytest.mark.parametrize(("kind", "name", "operations", "code", "message"), REFUSED_CHANGES)
async def test_a_change_that_kafka_refuses_is_refused(
    kind: ResourceType,
    name: str,
    operations: list[tuple[c.ConfigOperation, str, str | None]],
    code: ErrorCode,
    message: str,
) -> None:
    store, _ = await cluster()
    with pytest.raises(KafkaError) as raised:
        set_config_command(store.image, kind, name, operations)
    assert raised.value.code == code
    assert message in raised.value.message


async def test_a_per_broker_rate_can_be_set_on_one_broker() -> None:
    store, view = await cluster()
    await set_broker(store, "1", "leader.replication.throttled.rate", "5")
    assert view.broker_int("leader.replication.throttled.rate") == 5


async def test_what_was_set_on_all_brokers_is_described_under_no_name() -> None:
    store, view = await cluster()
    assert view.describe_cluster_default() == []
    await set_broker(store, "", "num.partitions", "6")
    (found,) = view.describe_cluster_default()
    assert (found.name, found.value, found.source) == ("num.partitions", "6", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert view.broker_int("num.partitions") == 6


async def test_read_only_settings_are_described_as_such() -> None:
    _, view = await cluster({"broker.id": "1", "log.dirs": "/data"})
    found = {
        described.name: described for described in view.describe_broker(["log.dirs", "num.partitions", "nonsense"])
    }
    assert set(found) == {"log.dirs", "num.partitions"}
    assert found["log.dirs"].read_only and found["log.dirs"].source == ConfigSource.STATIC_BROKER
    assert not found["num.partitions"].read_only


def test_settings_a_node_is_started_with_are_checked_with_a_line_for_each_mistake() -> None:
    problems = static_problems({"num.partitions": "many", "num.partition": "3", "log.retention.hours": "1"})
    assert len(problems) == 2
    assert any("num.partitions" in line and "INT" in line for line in problems)
    assert any("unknown broker setting 'num.partition'" in line for line in problems)
