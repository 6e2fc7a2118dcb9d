"""One real node for the tests of a module, and every client that PyPI has for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from harness.clients.legacy import LegacyKafkaPython
from harness.clients.message import Client
from harness.clients.registry import CLIENTS, make_client
from harness.node_process import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("node"), http=True).start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def clients(node: NodeProcess) -> Iterator[dict[str, Client]]:
    made = {name: make_client(name, node.bootstrap) for name in CLIENTS}
    yield made
    for client in made.values():
        if isinstance(client, LegacyKafkaPython):
            client.close()


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def fresh_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of this test's own, not yet started, for tests that kill or configure it."""
    made = NodeProcess(tmp_path)
    yield made
    made.close()
