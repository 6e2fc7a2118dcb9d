"""The time of a run: warm-up, then measurement; and the progress that a worker tells meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from chronik.bench.tally import Progress, Tally

TELL_EVERY_NS = 250_000_000
_NS_PER_S = 1_000_000_000


class Window:
    """Starts now. What happens before `measure_from_ns` is warm-up and not counted."""

    def __init__(self, warmup_s: float, duration_s: float, tell: Callable[[Progress], None]) -> None:
        self.start_ns = time.monotonic_ns()
        self.measure_from_ns = self.start_ns + round(warmup_s * _NS_PER_S)
        self.end_ns = self.measure_from_ns + round(duration_s * _NS_PER_S)
        self.tally = Tally()
        self.progress = Progress()
        self._tell = tell
        self._tell_at_ns = self.start_ns + TELL_EVERY_NS
        self._cpu_at_measure: float | None = None

    def measuring(self, at_ns: int) -> bool:
        """Whether something that happened then counts."""
        return self.measure_from_ns <= at_ns < self.end_ns

    def running(self, now_ns: int) -> bool:
        """Whether the run goes on; tells progress when that is due."""
        if now_ns >= self._tell_at_ns:
            self._tell_at_ns = now_ns + TELL_EVERY_NS
            self.progress.errors = self.tally.errors
            self._tell(self.progress)
        if self._cpu_at_measure is None and now_ns >= self.measure_from_ns:
            self._cpu_at_measure = time.process_time()
        return now_ns < self.end_ns

    def close(self) -> Tally:
        """The tally, with its time and CPU filled in. A run that ended early counts until now."""
        ended_ns = min(time.monotonic_ns(), self.end_ns)
        self.tally.duration_s = max(ended_ns - self.measure_from_ns, 0) / _NS_PER_S
        self.tally.cpu_s = time.process_time() - (self._cpu_at_measure or 0.0)
        return self.tally
