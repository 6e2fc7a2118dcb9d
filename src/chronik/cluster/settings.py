"""How long things may take in the life of a broker, all in seconds on the monotonic clock, and how they depend on
each other: a lease ends before the session in which it was granted, so that a broker that is declared dead has
already stopped acknowledging."""

from __future__ import annotations

import msgspec

from chronik.metadata.configs import ConfigView

LEASE_SHARE_OF_SESSION = 0.8  # the rest is the margin for clocks that do not run equally fast


class Timings(msgspec.Struct, frozen=True):
    """The guide: beats every 0.3 s, a session of 1.5 s."""

    beat_s: float = 0.3
    session_s: float = 1.5
    lease_s: float = 1.2
    tick_s: float = 0.1
    retry_s: float = 0.05
    retry_max_s: float = 1.0
    propose_s: float = 5.0
    rebalance_every_s: float = 10.0

    @property
    def beat_timeout_s(self) -> float:
        """Shorter than a lease, so that a lost answer leaves time for another try."""
        return self.lease_s / 2


def timings_from(view: ConfigView) -> Timings:
    """The timings a node was configured with."""
    session_s = view.broker_int("broker.session.timeout.ms") / 1000
    return Timings(
        beat_s=min(view.broker_int("broker.heartbeat.interval.ms") / 1000, session_s / 4),
        session_s=session_s,
        lease_s=session_s * LEASE_SHARE_OF_SESSION,
        tick_s=min(0.1, session_s / 10),
        rebalance_every_s=float(view.broker_int("leader.imbalance.check.interval.seconds")),
    )
