"""What a person sees while tables are kept: a table on a terminal, lines elsewhere, JSON for scripts."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol

import msgspec

from chronik.pipeline.tables.keeper import TopicProgress

_MEGABYTE = 1_000_000


class Display(Protocol):
    """Where progress goes."""

    def show(self, progress: TopicProgress) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class Lines:
    """A line per topic and round, or a JSON document per line."""

    def __init__(self, *, json: bool) -> None:
        self._json = json

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.stdout.flush()

    def show(self, progress: TopicProgress) -> None:
        if self._json:
            print(msgspec.json.encode(progress).decode(), flush=True)
        elif progress.error is not None:
            print(f"{progress.topic}: {progress.error}", file=sys.stderr, flush=True)
        else:
            print(line_of(progress), flush=True)


class Board:
    """A table on a terminal that is kept up to date: totals per topic."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._topics: dict[str, TopicProgress] = {}
        self._began = time.monotonic()
        self._console = Console(stderr=True, markup=False, emoji=False)
        self._live = Live(self._table(), console=self._console, refresh_per_second=4)

    def __enter__(self) -> Board:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def show(self, progress: TopicProgress) -> None:
        if progress.error is not None:
            self._console.print(f"{progress.topic}: {progress.error}", style="red")
        total = self._topics.setdefault(progress.topic, TopicProgress(topic=progress.topic))
        for name in ("rows", "value_bytes", "files", "dead_letters", "rescued"):
            setattr(total, name, getattr(total, name) + getattr(progress, name))
        total.lag, total.version, total.seconds = progress.lag, progress.version, progress.seconds
        self._live.update(self._table())

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("topic", "rows", "MB/s", "lag", "files", "dead letters", "rescued", box=None)
        elapsed = max(time.monotonic() - self._began, 0.001)
        for topic, total in sorted(self._topics.items()):
            rate = total.value_bytes / _MEGABYTE / elapsed
            cells = (total.rows, f"{rate:.2f}", total.lag, total.files, total.dead_letters, total.rescued)
            table.add_row(topic, *map(str, cells))
        return table


def display(*, json: bool) -> Display:
    return Board() if sys.stderr.isatty() and not json else Lines(json=json)


def line_of(progress: TopicProgress) -> str:
    """One round of one topic, for a log."""
    rate = progress.value_bytes / _MEGABYTE / max(progress.seconds, 0.001)
    text = f"{progress.topic}: {progress.rows} rows, {rate:.2f} MB/s, {progress.files} files, lag {progress.lag}"
    if progress.dead_letters:
        text += f", {progress.dead_letters} dead letters"
    if progress.rescued:
        text += f", {progress.rescued} rescued"
    return f"{text}, table version {progress.version}"
