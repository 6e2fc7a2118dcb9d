"""Settings of topics and brokers: describe and alter them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from chronik.client.cluster import Cluster
from chronik.client.errors import error_for_code
from chronik.client.retry import retry
from chronik.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalConfigsResource,
)

_SET = 0
_DELETE = 1


class ResourceType(enum.IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """Where the value of a setting comes from."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigEntry(msgspec.Struct, frozen=True):
    """One setting. `value` is None for secrets, which brokers do not tell."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


def describe_configs(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    *,
    names: Iterable[str] | None = None,
    documentation: bool = False,
) -> list[ConfigEntry]:
    """The settings of a topic or broker, all of them or those named; brokers are named by their id, or "" for all."""
    what = f"describing the settings of {kind.name.lower()} {name}"
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None if names is None else list(names)
            )
        ],
        include_documentation=documentation,
    )

    def attempt() -> DescribeConfigsResponse:
        answer = _ask(cluster, kind, name, request)
        for result in answer.results:
            if result.error_code:
                raise error_for_code(result.error_code, what, result.error_message)
        return answer

    answer = retry(what, cluster.settings.retry, attempt)
    return sorted((_entry(c, kind) for result in answer.results for c in result.configs), key=lambda entry: entry.name)


def alter_configs(
    cluster: Cluster, kind: ResourceType, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Change some settings and leave the others; None takes a setting back to its default."""
    what = f"changing the settings of {kind.name.lower()} {name}"

    def check(answer: IncrementalAlterConfigsResponse) -> None:
        for item in answer.responses:
            if item.error_code:
                raise error_for_code(item.error_code, what, item.error_message)

    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
                    for key, value in changes.items()
                ],
            )
        ],
        validate_only=validate_only,
    )
    cluster.call_controller(what, request, IncrementalAlterConfigsResponse, check=check)


def _ask(cluster: Cluster, kind: ResourceType, name: str, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """A broker is asked about its own settings, since only it knows those it was started with."""
    if kind is ResourceType.BROKER and name.isdigit():
        for broker in cluster.brokers():
            if broker.node_id == int(name):
                return cluster.call(broker, request, DescribeConfigsResponse)
    return cluster.call_any(request, DescribeConfigsResponse)


def _entry(config: DescribeConfigsResourceResult, kind: ResourceType) -> ConfigEntry:
    source = config.config_source
    if source < 0:  # version 0 tells only whether the value is the default
        own = ConfigSource.TOPIC if kind is ResourceType.TOPIC else ConfigSource.STATIC_BROKER
        source = ConfigSource.DEFAULT if config.is_default else own
    known = ConfigSource(source) if source in ConfigSource._value2member_map_ else ConfigSource.UNKNOWN
    return ConfigEntry(
        config.name, config.value, known, config.read_only, config.is_sensitive, config.documentation or None
    )
