"""Which config values hold, where they come from, and which changes to them are allowed.

A topic's value is the first of: what was set on the topic; what was set on this broker; on all brokers; what the node
was started with; the default. `ConfigView` answers for one node and caches by the image's versions; what depends on
nothing but definitions are functions. Definitions are in `topic_configs` and `broker_configs`; storing what is set is
the image's business (`settings`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from chronik.metadata.broker_configs import BROKER_CONFIGS
from chronik.metadata.commands import ConfigChange, ConfigOperation, SetConfig
from chronik.metadata.config_definitions import (
    ConfigDef,
    ConfigSource,
    ConfigType,
    Scope,
    Synonym,
    Value,
    as_text,
)
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import CLUSTER_DEFAULT, ResourceType, TopicInfo
from chronik.metadata.settings import resolve_changes
from chronik.metadata.topic_configs import TOPIC_CONFIGS
from chronik.metadata.topic_settings import SETTING_NAMES, TopicSettings, settings_from, with_overrides
from chronik.protocol.errors import ErrorCode, KafkaError

DEFAULT_REPLICATION_FACTOR = 3
SETTINGS_CACHE_LIMIT = 1000  # distinct sets of topic configs
_NO_CONFIGS: Mapping[str, str] = {}
_TRANSACTION_TOPIC = "__transaction_state"
_RF_NAME = "default.replication.factor"


class SynonymValue(msgspec.Struct, frozen=True):
    """One of the places a value could come from, with what stands there."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True):
    """A config as DescribeConfigs reports it; `synonyms` begin with the one that holds."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool
    sensitive: bool
    doc: str
    synonyms: list[SynonymValue]


# Validation: needs no image.


def validate_topic_configs(configs: Mapping[str, str | None]) -> None:
    """Raises KafkaError(INVALID_CONFIG) for the first thing that is wrong with what would be set on a topic."""
    parsed: dict[str, Value] = {}
    for name, text in configs.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if text is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
        parsed[name] = definition.parse(text)
    lowest = parsed.get("min.compaction.lag.ms", 0)
    highest = parsed.get("max.compaction.lag.ms")
    if highest is not None and lowest > highest:  # type: ignore[operator]
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({lowest}) > max.compaction.lag.ms ({highest})",
        )
    if parsed.get("remote.storage.enable"):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )


def validate_broker_configs(configs: Mapping[str, str | None], *, cluster_default: bool) -> None:
    """The same for what would be set on a broker, or on all of them, while they run."""
    _refuse_fixed(configs, cluster_default=cluster_default)
    for name, text in configs.items():
        if text is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for broker configs: {name}")
        BROKER_CONFIGS[name].parse(text)


def _refuse_fixed(names: Iterable[str], *, cluster_default: bool) -> None:
    fixed: list[str] = []
    for name in names:
        definition = BROKER_CONFIGS.get(name)
        if definition is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
        if definition.scope == Scope.READ_ONLY or (definition.scope == Scope.PER_BROKER and cluster_default):
            fixed.append(name)
    if fixed:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: {', '.join(sorted(fixed))}; "
            "set them in the configuration of each node and restart it",
        )


def static_problems(configs: Mapping[str, str]) -> list[str]:
    """What is wrong with the Kafka settings a node was started with, a line for each; they are checked at start."""
    problems: list[str] = []
    for name, text in configs.items():
        definition = BROKER_CONFIGS.get(name)
        if definition is None:
            problems.append(f"unknown broker setting '{name}'; remove it or correct its name")
            continue
        try:
            definition.parse(text)
        except KafkaError as error:
            problems.append(error.message)
    return problems


def set_config_command(
    image: MetadataImage,
    resource_type: ResourceType,
    resource_name: str,
    operations: Iterable[tuple[ConfigOperation, str, str | None]],
    *,
    replace: bool = False,
) -> SetConfig:
    """The validated command for IncrementalAlterConfigs or, with `replace` and SETs, for AlterConfigs. Raises
    KafkaError as Kafka would answer."""
    is_topic = resource_type == ResourceType.TOPIC
    definitions = TOPIC_CONFIGS if is_topic else BROKER_CONFIGS
    changes = [_change(definitions, *operation) for operation in operations]
    named = {change.name for change in changes}
    if len(named) != len(changes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    after = resolve_changes(image.config_overrides(resource_type, resource_name), changes, replace=replace)
    if is_topic:
        validate_topic_configs(after)
    else:
        cluster_default = resource_name == CLUSTER_DEFAULT
        _refuse_fixed(named & BROKER_CONFIGS.keys(), cluster_default=cluster_default)
        validate_broker_configs(
            {name: value for name, value in after.items() if name in named}, cluster_default=cluster_default
        )
    return SetConfig(resource_type, resource_name, changes, replace)


def _change(
    definitions: Mapping[str, ConfigDef], operation: ConfigOperation, name: str, value: str | None
) -> ConfigChange:
    if operation == ConfigOperation.DELETE:
        return ConfigChange(operation, name)  # also of a name that is unknown: nothing is set, or a newer node set it
    definition = definitions.get(name)
    if definition is None:
        kind = "topic" if definitions is TOPIC_CONFIGS else "broker"
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {kind} config name: {name}")
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    if operation == ConfigOperation.SET:
        return ConfigChange(operation, name, value)
    if definition.type != ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Can't {operation.name} to key {name} because its type is not LIST."
        )
    return ConfigChange(operation, name, value, definition.default or "")


class ConfigView:
    """The configs as they hold on one node. `static` is what the node was started with, by broker config name."""

    def __init__(self, image: MetadataImage, node_id: int, static: Mapping[str, str] | None = None) -> None:
        self._image = image
        self._node_id = node_id
        self._static = dict(static or {})
        self._broker_cache: dict[str, Value | None] = {}
        self._inherited: TopicSettings | None = None
        self._settings: dict[tuple[tuple[str, str], ...], TopicSettings] = {}
        self._cached_version = -1

    # Brokers.

    def broker_value(self, name: str) -> Value | None:
        """A broker setting as it holds here, typed; None when it is unset and has no default."""
        self._drop_stale()
        if name not in self._broker_cache:
            found = self._lookup(BROKER_CONFIGS[name], (Synonym(name), *BROKER_CONFIGS[name].synonyms))
            self._broker_cache[name] = None if found is None else BROKER_CONFIGS[name].parse(found.value or "")
        return self._broker_cache[name]

    def broker_int(self, name: str) -> int:
        value = self.broker_value(name)
        if not isinstance(value, int):
            raise TypeError(f"broker setting {name} is {value!r}, not a whole number")
        return value

    def broker_bool(self, name: str) -> bool:
        return self.broker_value(name) is True

    def default_replication_factor(self) -> int:
        """Replicas of a topic that asks for none: as configured, or 3, or as many as there are nodes."""
        configured = self.broker_value(_RF_NAME)
        if isinstance(configured, int):
            return configured
        return max(1, min(DEFAULT_REPLICATION_FACTOR, len(self._image.brokers)))

    def describe_broker(self, names: Iterable[str] | None = None) -> list[ConfigEntry]:
        """This node's own settings."""
        wanted = BROKER_CONFIGS if names is None else [name for name in names if name in BROKER_CONFIGS]
        return [self._broker_entry(BROKER_CONFIGS[name]) for name in wanted]

    def describe_cluster_default(self, names: Iterable[str] | None = None) -> list[ConfigEntry]:
        """Only what was set on all brokers, as Kafka describes the nameless broker."""
        values = self._image.config_overrides(ResourceType.BROKER, CLUSTER_DEFAULT)
        wanted = values if names is None else [name for name in names if name in values]
        return [
            self._entry(
                BROKER_CONFIGS[name], [SynonymValue(name, values[name], ConfigSource.DYNAMIC_DEFAULT_BROKER)], False
            )
            for name in wanted
            if name in BROKER_CONFIGS
        ]

    def _broker_entry(self, definition: ConfigDef) -> ConfigEntry:
        places = self._places((Synonym(definition.name), *definition.synonyms))
        if not places and definition.name == _RF_NAME:
            places = [SynonymValue(_RF_NAME, str(self.default_replication_factor()), ConfigSource.DEFAULT)]
        return self._entry(definition, places, definition.scope == Scope.READ_ONLY)

    # Topics.

    def topic_settings(self, topic: str) -> TopicSettings:
        """A topic's typed settings. A topic the image does not know has the defaults. Cheap enough for hot paths:
        topics with the same configs share one value, kept until broker settings change."""
        if self._image.broker_configs_version != self._cached_version:
            self._drop_stale()
        info = self._image.topics.get(topic)
        if info is None:
            return self._settings_for(_NO_CONFIGS)
        if topic == _TRANSACTION_TOPIC:
            return self._transaction_topic_settings(info)
        if not info.configs and self._inherited is not None:
            return self._inherited
        return self._settings_for(info.configs)

    def topic_values(self, topic: TopicInfo) -> dict[str, Value]:
        """The same by config name, for those who pick a few settings and cache what they make of them."""
        settings = self.topic_settings(topic.name)
        return {name: getattr(settings, field) for name, field in SETTING_NAMES.items()}

    def _settings_for(self, overrides: Mapping[str, str]) -> TopicSettings:
        if not overrides:
            if self._inherited is None:
                self._inherited = settings_from(self._inherited_value)
            return self._inherited
        key = tuple(overrides.items())
        settings = self._settings.get(key)
        if settings is None:
            if len(self._settings) >= SETTINGS_CACHE_LIMIT:
                self._settings.clear()
            settings = with_overrides(self._settings_for(_NO_CONFIGS), overrides)
            self._settings[key] = settings
        return settings

    def _transaction_topic_settings(self, info: TopicInfo) -> TopicSettings:
        settings = self._settings_for(info.configs)
        if "min.insync.replicas" in info.configs:
            return settings
        # Kafka's default of 2 would stop a cluster of one or two nodes: always allow one replica to be missing.
        replicas = len(info.partitions[0].target)
        needed = min(self.broker_int("transaction.state.log.min.isr"), max(1, replicas - 1))
        return msgspec.structs.replace(settings, min_insync_replicas=needed)

    def _inherited_value(self, name: str) -> Value:
        definition = TOPIC_CONFIGS[name]
        found = self._lookup(definition, definition.synonyms)
        return definition.parse((found.value if found is not None else definition.default) or "")

    def describe_topic(self, topic: str, names: Iterable[str] | None = None) -> list[ConfigEntry]:
        """A topic's configs with where they come from; unknown names are left out, as Kafka does."""
        overrides = self._image.config_overrides(ResourceType.TOPIC, topic)
        entries: list[ConfigEntry] = []
        for name in TOPIC_CONFIGS if names is None else names:
            definition = TOPIC_CONFIGS.get(name)
            if definition is None:
                continue
            places = self._places(definition.synonyms)
            if name in overrides:
                places.insert(0, SynonymValue(name, overrides[name], ConfigSource.TOPIC))
            entries.append(self._entry(definition, places, False))
        return entries

    # Both.

    def _drop_stale(self) -> None:
        version = self._image.broker_configs_version
        if version != self._cached_version:
            self._broker_cache.clear()
            self._inherited = None
            self._settings.clear()
            self._cached_version = version

    def _lookup(self, definition: ConfigDef, names: tuple[Synonym, ...]) -> SynonymValue | None:
        """The value that holds, in the definition's unit."""
        factors = {synonym.name: synonym.factor for synonym in names}
        for place in self._places(names):
            if place.value is not None:
                return _in_unit(place, factors[place.name])
        return (
            None
            if definition.default is None
            else SynonymValue(definition.name, definition.default, ConfigSource.DEFAULT)
        )

    def _places(self, names: tuple[Synonym, ...]) -> list[SynonymValue]:
        """Every place one of these broker settings is set, strongest first, in the unit in which it is set there."""
        image = self._image
        sources = (
            (ConfigSource.DYNAMIC_BROKER, image.config_overrides(ResourceType.BROKER, str(self._node_id))),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, image.config_overrides(ResourceType.BROKER, CLUSTER_DEFAULT)),
            (ConfigSource.STATIC_BROKER, self._static),
        )
        places = [
            SynonymValue(synonym.name, values[synonym.name], source)
            for source, values in sources
            for synonym in names
            if synonym.name in values
        ]
        for synonym in names:
            default = BROKER_CONFIGS[synonym.name].default
            if default is not None:
                places.append(SynonymValue(synonym.name, default, ConfigSource.DEFAULT))
        return places

    def _entry(self, definition: ConfigDef, places: list[SynonymValue], read_only: bool) -> ConfigEntry:
        factors = {synonym.name: synonym.factor for synonym in definition.synonyms}
        if places:
            held = _in_unit(places[0], factors.get(places[0].name, 1))
            value, source = held.value, held.source
        else:
            value, source = definition.default, ConfigSource.DEFAULT
        if definition.sensitive:
            value = None
            places = [SynonymValue(place.name, None, place.source) for place in places]
        return ConfigEntry(
            definition.name, value, source, definition.type, read_only, definition.sensitive, definition.doc, places
        )


def _in_unit(place: SynonymValue, factor: int) -> SynonymValue:
    """Hours and minutes as milliseconds; a negative number means 'without limit' in every unit."""
    if factor == 1 or place.value is None:
        return place
    number = int(place.value)
    return SynonymValue(place.name, as_text(number * factor if number >= 0 else -1), place.source)
