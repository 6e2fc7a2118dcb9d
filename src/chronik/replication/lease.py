"""The lease under which this node acts as a leader: for as long as the controller has promised to elect nobody else.

A node renews it with every heartbeat that the controller answers, up to a time on the monotonic clock that is counted
from when the heartbeat was *sent*. A leader looks at it before each acknowledgement; when it has lapsed (the process
was stopped, the controller is out of reach) nothing is acknowledged until it is renewed. A lease says nothing about
which partitions a node leads, and metadata says nothing about the lease: an acknowledgement needs both.

A node that is the only voter is the controller itself, and nothing can be agreed upon while it is stopped: as long as
that is so (`alone`) it needs no heartbeat, and a stall of the process costs no client an error.

Who sends heartbeats, and how long the controller waits, is not here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Lease:
    """Held until a monotonic time. Not held before the first renewal."""

    __slots__ = ("_alone", "_clock", "_until", "renewals")

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, alone: Callable[[], bool] | None = None) -> None:
        self._clock = clock
        self._alone = alone
        self._until = -math.inf
        self.renewals = 0

    @classmethod
    def permanent(cls, clock: Callable[[], float] = time.monotonic) -> Lease:
        """One that never lapses, for tests and tools."""
        lease = cls(clock)
        lease.renew(math.inf)
        return lease

    def renew(self, until_monotonic: float) -> None:
        """The controller elects nobody in this node's place before that time. Answers may arrive out of order."""
        self.renewals += 1
        if until_monotonic > self._until:
            self._until = until_monotonic

    def revoke(self) -> None:
        """The controller no longer counts this node in, or the node leaves: the promise is given back."""
        self._until = -math.inf

    def held(self) -> bool:
        if self._clock() < self._until:
            return True
        return self._until > -math.inf and self._alone is not None and self._alone()

    def lapsed_for_s(self) -> float:
        """How long ago it lapsed; 0 while it is held, and when it never was."""
        if self._until == -math.inf or self.held():
            return 0.0
        return self._clock() - self._until

    def remaining_s(self) -> float:
        """How long it is still held, for status pages; 0 when it has lapsed."""
        return max(0.0, self._until - self._clock())
