"""`chronik start`: read the configuration, run one node in the foreground until a signal ends it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

EXIT_CANNOT_START = 2


def start(
    *,
    config: Annotated[Path | None, Parameter(help="A TOML file with any of these options.")] = None,
    node_id: Annotated[str | None, Parameter(help="This node's id in the cluster, 1 or more.")] = None,
    data_dir: Annotated[str | None, Parameter(help="Where everything is kept. Default ./data")] = None,
    kafka: Annotated[str | None, Parameter(help="HOST:PORT for Kafka clients. Default 127.0.0.1:9092")] = None,
    advertise: Annotated[str | None, Parameter(help="HOST:PORT that clients are told to use.")] = None,
    peer: Annotated[str | None, Parameter(help="HOST:PORT for the other nodes. Default 127.0.0.1:9192")] = None,
    advertise_peer: Annotated[str | None, Parameter(help="HOST:PORT that the other nodes are told to use.")] = None,
    http: Annotated[str | None, Parameter(help="HOST:PORT for health and metrics, or 'off'.")] = None,
    voters: Annotated[str | None, Parameter(help="First members: 1@host:port,2@host:port,… (peer addresses).")] = None,
    join: Annotated[str | None, Parameter(help="HOST:PORT of a member's peer address, to join its cluster.")] = None,
    rack: Annotated[str | None, Parameter(help="The rack of this node; replicas prefer different racks.")] = None,
    host_name: Annotated[str | None, Parameter(help="The machine of this node; replicas spread over these.")] = None,
    log_format: Annotated[str | None, Parameter(help="text or json")] = None,
    log_level: Annotated[str | None, Parameter(help="debug, info, warning or error")] = None,
    set_: Annotated[
        tuple[str, ...], Parameter(name="--set", help="A Kafka broker setting, NAME=VALUE. May be repeated.")
    ] = (),
) -> None:
    """Run a node in this process until it is told to end."""
    from chronik.config import ConfigError, load_config

    flags = {
        "node_id": node_id,
        "data_dir": data_dir,
        "kafka": kafka,
        "advertise": advertise,
        "peer": peer,
        "advertise_peer": advertise_peer,
        "http": http,
        "voters": voters,
        "join": join,
        "rack": rack,
        "host_name": host_name,
        "log_format": log_format,
        "log_level": log_level,
    }
    try:
        node_config = load_config(config, flags=flags, broker_flags=_broker_settings(set_))
    except ConfigError as error:
        _refuse(error)
    _import_structlog_alone()
    from chronik.node import EXIT_FAILED, CannotGoOn, CannotStart, run_node

    try:
        run_node(node_config)
    except CannotStart as error:
        _refuse(error)
    except CannotGoOn as error:
        _refuse(error, EXIT_FAILED)


def _import_structlog_alone() -> None:
    """structlog takes rich in, where it is installed, for tracebacks that a node never prints: a sixth of a start."""
    loaded = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
        if loaded is not None:
            sys.modules["rich"] = loaded


def _broker_settings(pairs: tuple[str, ...]) -> dict[str, str]:
    from chronik.config import ConfigError

    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: write it as NAME=VALUE, for example --set num.partitions=3")
        settings[name.strip()] = value.strip()
    return settings


def _refuse(error: Exception, code: int = EXIT_CANNOT_START) -> None:
    print(f"chronik: {error}", file=sys.stderr)
    sys.exit(code)
