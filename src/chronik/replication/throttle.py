"""A limit on what leaders send to replicas that are being moved, so that moving them is not felt by clients.

As in Kafka, it holds only for the replicas that `leader.replication.throttled.replicas` of a topic names, only while
they are not in sync, and for all of them on a node together (`leader.replication.throttled.rate`, bytes per second).
Deliberate gap: the follower's rate is not limited by itself; a follower gets at most what its leaders may send.
"""

from __future__ import annotations

from collections.abc import Callable

BURST_S = 1.0  # what was not used may be used later, but no more than this much of it
PAUSE_S = 0.1  # how long a replica that used up the rate is left waiting

EVERY_REPLICA = ("*",)


class ReplicationThrottle:
    """A bucket that fills at the configured rate."""

    __slots__ = ("_clock", "_filled_at", "_rate", "_room")

    def __init__(self, rate: Callable[[], int], clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._room = 0.0
        self._filled_at = clock()

    def exhausted(self) -> bool:
        """Whether nothing may be sent at this moment."""
        now, rate = self._clock(), self._rate()
        self._room = min(self._room + (now - self._filled_at) * rate, rate * BURST_S)
        self._filled_at = now
        return self._room <= 0

    def spend(self, size: int) -> None:
        """So much was sent; one answer may overdraw, the next ones wait for it."""
        self._room -= size


def names(throttled: tuple[str, ...], partition: int, node_id: int) -> bool:
    """Whether a topic's list of throttled replicas (`partition:broker` pairs, or `*`) has this one."""
    return throttled == EVERY_REPLICA or f"{partition}:{node_id}" in throttled
