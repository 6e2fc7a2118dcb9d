"""Results on disk: a line per measurement, so that a run that was interrupted goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec


class Entry(msgspec.Struct, kw_only=True):
    """One measurement of one system. `failure` says why there are no figures."""

    row: str
    system: str
    round: int
    figures: dict[str, float] = {}
    failure: str | None = None
    load_1m: float = 0.0
    at: str = ""


class Ledger:
    """Belongs to one state of the code: its file is named after that."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._entries: dict[tuple[str, str, int], Entry] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                self._keep(msgspec.json.decode(line, type=Entry))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def has(self, row: str, system: str, number: int) -> bool:
        """Whether a measurement was taken; one that failed is taken again."""
        entry = self._entries.get((row, system, number))
        return entry is not None and entry.failure is None

    def add(self, entry: Entry) -> None:
        self._keep(entry)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    def values(self, row: str, system: str, figure: str) -> list[float]:
        """One figure in all rounds."""
        return [
            entry.figures[figure]
            for entry in self._entries.values()
            if entry.row == row and entry.system == system and figure in entry.figures
        ]

    def failure(self, row: str, system: str) -> str | None:
        return next(
            (e.failure for e in self._entries.values() if e.row == row and e.system == system and e.failure), None
        )

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.row, entry.system, entry.round] = entry
