"""Broker tests run on uvloop, as the broker does: turn budgets and write batching depend on it."""

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
