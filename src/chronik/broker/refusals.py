"""One log line per refused request or connection, rate-limited by reason.

What lives here: the limiter and nothing else. A client that sends garbage in a loop must not be able to fill the disk
with our complaints about it, and what was left out is counted and told with the next line.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import structlog

log = structlog.get_logger(__name__)

LINES_PER_WINDOW_MAX = 5
WINDOW_S = 10.0
REASONS_MAX = 256
"""Reasons remembered at a time; they come from our own code, so this is only a backstop."""


class Refusals:
    """Logs refusals at warning level, a few per reason and window; counts all of them."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self.total = 0

    def say(self, what: str, **details: object) -> bool:
        """Log one refusal. Returns whether a line was written."""
        self.total += 1
        now = self._clock()
        window = self._windows.get(what)
        if window is None or now - window.started >= WINDOW_S:
            suppressed = window.suppressed if window is not None else 0
            if window is None and len(self._windows) >= REASONS_MAX:
                self._windows.clear()
            window = self._windows[what] = _Window(now)
            if suppressed:
                details["similar_lines_left_out"] = suppressed
        if window.lines >= LINES_PER_WINDOW_MAX:
            window.suppressed += 1
            return False
        window.lines += 1
        log.warning(what, **details)
        return True


class _Window:
    __slots__ = ("lines", "started", "suppressed")

    def __init__(self, started: float) -> None:
        self.started = started
        self.lines = 0
        self.suppressed = 0
