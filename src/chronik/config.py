"""The typed configuration of one node: defaults < TOML file < CHRONIK_* environment < flags.

Here live the options of `chronik start` and how they are read and checked. Kafka's own broker settings
(`num.partitions`, `log.retention.ms`, …) travel through the `broker` table unread: their names, types and
defaults are defined in `chronik.metadata.configs`, which checks them when the node starts.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

ENV_PREFIX = "CHRONIK_"
ENV_BROKER_PREFIX = "CHRONIK_BROKER_"
HTTP_OFF = "off"


class ConfigError(Exception):
    """A configuration that cannot be used; its text says what to change."""


class Address(msgspec.Struct, frozen=True):
    """A host and a port. IPv6 hosts are kept without brackets and written with them."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Voter(msgspec.Struct, frozen=True):
    """A member of the first Raft configuration: its node id and its peer address."""

    node_id: int
    address: Address


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `chronik start` can be told. One field per option; the same name in TOML and in the environment."""

    node_id: int
    data_dir: Path
    kafka: Address
    advertise: Address
    peer: Address
    advertise_peer: Address
    http: Address | None
    voters: tuple[Voter, ...]
    join: Address | None
    rack: str | None
    host_name: str
    log_format: str
    log_level: str
    broker: dict[str, str]


DEFAULTS: dict[str, str] = {
    "node_id": "1",
    "data_dir": "./data",
    "kafka": "127.0.0.1:9092",
    "advertise": "",
    "peer": "127.0.0.1:9192",
    "advertise_peer": "",
    "http": "127.0.0.1:6092",
    "voters": "",
    "join": "",
    "rack": "",
    "host_name": "",
    "log_format": "text",
    "log_level": "info",
}
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


def load_config(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
    broker_flags: Mapping[str, str] | None = None,
) -> NodeConfig:
    """Merges the four sources, later ones winning, and checks the result."""
    values = dict(DEFAULTS)
    broker: dict[str, str] = {}
    if file is not None:
        file_values, file_broker = _read_file(file)
        values.update(file_values)
        broker.update(file_broker)
    env_values, env_broker = _read_environment(os.environ if environment is None else environment)
    values.update(env_values)
    broker.update(env_broker)
    values.update({key: value for key, value in (flags or {}).items() if value is not None})
    broker.update(broker_flags or {})
    return _build(values, broker)


def parse_address(text: str, option: str, default_port: int | None = None) -> Address:
    """Reads `host:port`, `[v6]:port` and, where a default port is known, `host` or a bare IPv6 address."""
    host, port_text = _split_address(text.strip())
    if port_text is None:
        if default_port is None:
            raise ConfigError(f"{option}: '{text}' has no port; write it as HOST:PORT, for example 127.0.0.1:9092")
        port = default_port
    else:
        if not port_text.isdigit() or int(port_text) > 65535:
            raise ConfigError(f"{option}: '{port_text}' in '{text}' is not a port; use a number from 0 to 65535")
        port = int(port_text)
    if not host:
        raise ConfigError(f"{option}: '{text}' has no host; write it as HOST:PORT, for example 127.0.0.1:9092")
    return Address(host, port)


def _split_address(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket:
            return "", None
        return host, rest[1:] if rest.startswith(":") else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def parse_voters(text: str) -> tuple[Voter, ...]:
    """Reads `1@host:port,2@host:port,…`."""
    voters: list[Voter] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        id_text, at, address = part.partition("@")
        if not at or not id_text.isdigit():
            raise ConfigError(f"voters: '{part}' is not ID@HOST:PORT; for example 1@127.0.0.1:9192,2@127.0.0.1:9193")
        voters.append(Voter(_node_id(id_text, "voters"), parse_address(address, "voters")))
    ids = [voter.node_id for voter in voters]
    if len(set(ids)) != len(ids):
        raise ConfigError("voters: a node id appears twice; every voter needs an id of its own")
    return tuple(voters)


def _read_file(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from error
    broker_table = document.pop("broker", {})
    if not isinstance(broker_table, dict):
        raise ConfigError(f"config file {path}: 'broker' must be a table of Kafka settings")
    values: dict[str, str] = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        if name not in DEFAULTS:
            raise ConfigError(f"config file {path}: unknown key '{key}'; known keys are {', '.join(sorted(DEFAULTS))}")
        values[name] = _as_text(value)
    return values, {key: _as_text(value) for key, value in _flatten(broker_table)}


def _flatten(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """`num.partitions = 3` in TOML is a nested table: put the dots back."""
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        pairs.extend(_flatten(value, f"{name}.") if isinstance(value, dict) else [(name, value)])
    return pairs


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_as_text(item) for item in value)
    return str(value)


def _read_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    values: dict[str, str] = {}
    broker: dict[str, str] = {}
    for key, value in environment.items():
        if key.startswith(ENV_BROKER_PREFIX):
            broker[key.removeprefix(ENV_BROKER_PREFIX).lower().replace("_", ".")] = value
        elif key.startswith(ENV_PREFIX):
            name = key.removeprefix(ENV_PREFIX).lower()
            if name in DEFAULTS:
                values[name] = value
    return values, broker


def _build(values: Mapping[str, str], broker: dict[str, str]) -> NodeConfig:
    node_id = _node_id(values["node_id"], "node_id")
    kafka = parse_address(values["kafka"], "kafka")
    peer = parse_address(values["peer"], "peer")
    voters = parse_voters(values["voters"])
    join = parse_address(values["join"], "join") if values["join"] else None
    if voters and join is not None:
        raise ConfigError("voters and join exclude each other: a first member lists the voters, a later one joins")
    own = next((voter for voter in voters if voter.node_id == node_id), None)
    if voters and own is None:
        raise ConfigError(f"node {node_id} is not among the voters; add {node_id}@HOST:PORT, or use join instead")
    return NodeConfig(
        node_id=node_id,
        data_dir=Path(values["data_dir"]),
        kafka=kafka,
        advertise=_advertised("advertise", values["advertise"], kafka),
        peer=peer,
        advertise_peer=_advertised("advertise_peer", values["advertise_peer"], own.address if own else peer),
        http=None if values["http"] == HTTP_OFF else parse_address(values["http"], "http"),
        voters=voters or (() if join else (Voter(node_id, peer),)),
        join=join,
        rack=values["rack"] or None,
        host_name=values["host_name"] or socket.gethostname(),
        log_format=_one_of(values["log_format"], LOG_FORMATS, "log_format"),
        log_level=_one_of(values["log_level"], LOG_LEVELS, "log_level"),
        broker=broker,
    )


def _advertised(option: str, text: str, bound: Address) -> Address:
    address = parse_address(text, option, default_port=bound.port) if text else bound
    if _is_unspecified(address.host):
        raise ConfigError(
            f"{option}: nobody can connect to '{address.host}', which only means 'every interface'; set {option} to a "
            f"host name or address that others can reach, for example broker1:{address.port}"
        )
    return address


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _node_id(text: str, option: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 2**31 - 1:
        raise ConfigError(f"{option}: '{text}' is not a node id; use a whole number from 1 to 2147483647")
    return int(text)


def _one_of(value: str, allowed: tuple[str, ...], option: str) -> str:
    if value not in allowed:
        raise ConfigError(f"{option}: '{value}' is not one of {', '.join(allowed)}")
    return value
