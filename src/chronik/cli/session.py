"""What all commands that talk to a cluster share: where it is, and how a failure is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

from cyclopts import Parameter

from chronik.client.cluster import Cluster
from chronik.client.errors import ClientError
from chronik.protocol.errors import KafkaError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
EXIT_FAILED = 1

Bootstrap = Annotated[
    str | None, Parameter(help="HOST:PORT,… of any nodes. Default $CHRONIK_BOOTSTRAP, then 127.0.0.1:9092")
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, for scripts.")]


def bootstrap_address(bootstrap: str | None) -> str:
    return bootstrap or os.environ.get("CHRONIK_BOOTSTRAP") or DEFAULT_BOOTSTRAP


@contextmanager
def open_cluster(bootstrap: str | None) -> Iterator[Cluster]:
    """Connects for the length of a command; what goes wrong becomes one line on standard error and exit code 1."""
    with failures_told(), Cluster(bootstrap_address(bootstrap)) as cluster:
        yield cluster


@contextmanager
def failures_told() -> Iterator[None]:
    """Turns the errors that a person can act on into one line."""
    try:
        yield
    except KafkaError as error:
        fail(f"{error.message or error.code.name} ({error.code.name})")
    except (ClientError, ValueError) as error:
        fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(text: str) -> NoReturn:
    """Ends the command with one line that says why."""
    print(f"chronik: {text}", file=sys.stderr)
    sys.exit(EXIT_FAILED)


def settings_of(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Reads NAME=VALUE pairs."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            fail(f"{option} {pair}: write it as NAME=VALUE, for example {option} retention.ms=86400000")
        settings[name.strip()] = value.strip()
    return settings
