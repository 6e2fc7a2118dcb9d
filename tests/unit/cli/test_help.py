"""The help of every command shows how it is used."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from chronik.cli.main import app

COMMANDS = {
    "start": (),
    "topic": ("create", "list", "describe", "alter", "delete"),
    "group": ("list", "describe", "delete", "reset-offsets"),
    "txn": ("list", "describe", "abort"),
    "cluster": ("start", "status", "describe", "add-node", "remove-node", "drain", "undrain", "rebalance"),
    "produce": (),
    "consume": (),
    "sql": (),
}
LEAVES = [(noun, *verb) for noun, verbs in COMMANDS.items() for verb in ([(v,) for v in verbs] or [()])]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_help_shows_an_example(words: tuple[str, ...]) -> None:
    page = io.StringIO()
    app.help_print(list(words), console=Console(file=page, width=400))
    usage, *rest = [line for line in page.getvalue().splitlines() if f"chronik {' '.join(words)}" in line]
    assert usage.startswith("Usage:")
    assert rest, page.getvalue()
