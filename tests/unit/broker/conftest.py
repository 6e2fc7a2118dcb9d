"""Broker tests run on uvloop, as the broker does: turn budgets and write batching depend on it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from unit.broker.serving import ServedNode


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start_node(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[ServedNode]]]:
    """Starts nodes that are stopped after the test."""
    started: list[ServedNode] = []

    async def start(**options: Any) -> ServedNode:
        node = await ServedNode.start(data_dir=tmp_path, **options)
        started.append(node)
        return node

    yield start
    for node in started:
        await node.stop()


@pytest.fixture
async def node(start_node: Callable[..., Awaitable[ServedNode]]) -> ServedNode:
    """A node that is a cluster of its own."""
    return await start_node()
