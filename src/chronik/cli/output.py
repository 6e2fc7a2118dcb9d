"""How results are shown: a table for people, JSON for scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec


def show_json(document: Any) -> None:
    """One JSON document on standard output, with line breaks that a person can read too."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
    """A plain table; `empty` is said instead where there is nothing to show."""
    if not rows:
        print(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        numeric = all(isinstance(row[columns.index(column)], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # Cells are what they are: brackets and colons in them are no mark-up.
    Console(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False).print(table)
