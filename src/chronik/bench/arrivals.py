"""When messages are due.

With a rate, message n is due at start + n/rate, whatever the broker does meanwhile: a broker that stalls makes later
messages late, and their latency counts from when they were due (no coordinated omission). Without a rate a full batch
is due whenever there is room for one.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

_NS_PER_S = 1_000_000_000


class Due(msgspec.Struct, frozen=True):
    """Messages to send as one batch: how many, when the first was due, and the time from each to the next."""

    count: int
    first_ns: int
    step_ns: int


class Arrivals(Protocol):
    def take(self, now_ns: int) -> Due | None:
        """The next batch, if one is to be sent now."""

    def next_at_ns(self) -> int:
        """When the next batch is to be sent, if it does not fill before."""

    def untaken(self, until_ns: int) -> Due | None:
        """What should have been sent before a time and was not."""


class AsFastAsPossible:
    def __init__(self, max_records: int) -> None:
        self._max_records = max_records

    def take(self, now_ns: int) -> Due | None:
        return Due(self._max_records, now_ns, 0)

    def next_at_ns(self) -> int:
        return 0

    def untaken(self, until_ns: int) -> Due | None:
        return None


class AtRate:
    """A batch is sent when it is full, or when its first message has waited for `linger_ns`."""

    def __init__(self, per_second: float, start_ns: int, max_records: int, linger_ns: int) -> None:
        if per_second <= 0:
            raise ValueError(f"a rate of {per_second:g} messages/s is not possible; use more than 0")
        self._step_ns = max(round(_NS_PER_S / per_second), 1)
        self._next_ns = start_ns
        self._max_records = max_records
        self._linger_ns = linger_ns

    def take(self, now_ns: int) -> Due | None:
        waiting = self._waiting(now_ns)
        if waiting < self._max_records and (waiting == 0 or now_ns < self._next_ns + self._linger_ns):
            return None
        taken = Due(min(waiting, self._max_records), self._next_ns, self._step_ns)
        self._next_ns += taken.count * self._step_ns
        return taken

    def next_at_ns(self) -> int:
        return self._next_ns + min(self._linger_ns, (self._max_records - 1) * self._step_ns)

    def untaken(self, until_ns: int) -> Due | None:
        waiting = self._waiting(until_ns - self._linger_ns - 1)  # younger ones wait for their batch, not for the broker
        return Due(waiting, self._next_ns, self._step_ns) if waiting else None

    def _waiting(self, now_ns: int) -> int:
        return 0 if now_ns < self._next_ns else (now_ns - self._next_ns) // self._step_ns + 1
