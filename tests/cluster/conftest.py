"""Three real nodes on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster_view import wait_until_agreed
from harness.node_process import NodeProcess, three_nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Three nodes of one cluster, not started."""
    made = three_nodes(tmp_path)
    yield made
    for node in made:
        node.close()


@pytest.fixture
def cluster(nodes: list[NodeProcess]) -> list[NodeProcess]:
    """Three nodes, started; not necessarily in agreement yet."""
    for node in nodes:
        node.start(wait=False)
    for node in nodes:
        node.wait_ready()
    return nodes


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """Three nodes for a whole module, in agreement; every test leaves them as it found them."""
    made = three_nodes(tmp_path_factory.mktemp("trio"))
    for node in made:
        node.start(wait=False)
    wait_until_agreed(made, brokers=[1, 2, 3])
    yield made
    for node in made:
        node.close()
