"""One real node and the foreign clients that `make interop` has fetched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from harness.node_process import NodeProcess
from harness.programs import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build() -> Path:
    folder = Path(os.environ.get("CHRONIK_BUILD", ROOT / ".build"))
    assert (folder / "kafka" / "libs").is_dir(), "the foreign clients are missing; run `make interop`"
    return folder


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("interop")).start()
    yield running
    running.close()


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def java_command(build: Path) -> Callable[..., list[str]]:
    """The command that runs a main class of Apache Kafka, or one of compat/java."""

    def command(name: str, *arguments: str) -> list[str]:
        class_path = f"{build / 'java'}:{build / 'kafka' / 'libs'}/*"
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        options.append("-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
        return ["java", *options, "-cp", class_path, name, *arguments]

    return command


@pytest.fixture(scope="session")
def java(java_command: Callable[..., list[str]]) -> Callable[..., str]:
    """Runs a main class to its end; what it printed."""

    def main_class(name: str, *arguments: str, text_in: str | None = None) -> str:
        return run(*java_command(name, *arguments), text_in=text_in)

    return main_class
