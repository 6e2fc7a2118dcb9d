"""What a worker counts and tells: progress while it runs, and the tally at the end. One line of JSON each."""

from __future__ import annotations

import msgspec

from chronik.bench.histogram import Histogram

ERRORS_NAMED_MAX = 20


class Ready(msgspec.Struct, tag="ready"):
    """The worker is connected and waits for the start."""


class Progress(msgspec.Struct, tag="progress"):
    """Counts since the start, warm-up included."""

    messages: int = 0
    errors: int = 0


class Failed(msgspec.Struct, tag="failed"):
    """The worker cannot go on; `reason` is for a person."""

    reason: str


class Tally(msgspec.Struct, kw_only=True, tag="tally"):
    """What was measured after the warm-up. `messages` are those that were acknowledged or read in time."""

    messages: int = 0
    message_bytes: int = 0
    operations: int = 0
    """Requests, transactions or commits, whatever the worker does."""

    errors: int = 0
    unsent: int = 0
    """Messages that were due and not sent when the time was over. Their wait is in the histogram."""

    duration_s: float = 0.0
    cpu_s: float = 0.0
    latency: Histogram = msgspec.field(default_factory=Histogram)
    error_kinds: dict[str, int] = msgspec.field(default_factory=dict)

    def failed(self, kind: str, count: int = 1) -> None:
        self.errors += count
        if kind in self.error_kinds or len(self.error_kinds) < ERRORS_NAMED_MAX:
            self.error_kinds[kind] = self.error_kinds.get(kind, 0) + count

    def add(self, other: Tally) -> None:
        """Take in what another worker measured at the same time."""
        self.messages += other.messages
        self.message_bytes += other.message_bytes
        self.operations += other.operations
        self.errors += other.errors
        self.unsent += other.unsent
        self.duration_s = max(self.duration_s, other.duration_s)
        self.cpu_s += other.cpu_s
        self.latency.add(other.latency)
        for kind, count in other.error_kinds.items():
            self.error_kinds[kind] = self.error_kinds.get(kind, 0) + count


AnyReport = Ready | Progress | Failed | Tally
