"""Live progress on standard error: a moving line on a terminal, plain lines elsewhere, nothing when asked for."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from chronik.bench.tally import Progress

if TYPE_CHECKING:
    from rich.status import Status

PLAIN_EVERY_S = 2.0


class LiveProgress:
    """Shows the rate since the last look. Standard output stays free for the result."""

    def __init__(self, what: str, unit: str = "messages") -> None:
        self._what = what
        self._unit = unit
        self._started = self._seen_at = self._printed_at = time.monotonic()
        self._seen = Progress()
        self._status: Status | None = None

    def __enter__(self) -> LiveProgress:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(self._what)
            self._status.start()
        else:
            print(f"{self._what} …", file=sys.stderr, flush=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._status is None and now - self._printed_at < PLAIN_EVERY_S:
            return
        rate = (progress.messages - self._seen.messages) / max(now - self._seen_at, 1e-9)
        text = f"{self._what}: {now - self._started:.0f} s, {progress.messages:,} {self._unit}, {rate:,.0f}/s"
        if progress.errors:
            text += f", {progress.errors:,} errors"
        if self._status is not None:
            self._status.update(text)
            if now - self._seen_at < 1.0:
                return
        else:
            print(text, file=sys.stderr, flush=True)
        self._printed_at = self._seen_at = now
        self._seen = Progress(progress.messages, progress.errors)
