"""The first election after a start: as soon as a majority is connected, not after the silence of a leader.

A node that has just started has heard of no leader, so there is no silence to wait for. Once it is connected to a
majority it stands for election after a short random wait, one time; from then on the core's own clock decides. Where
there is a leader, those who hear it refuse the pre-vote, and nothing has happened.
"""

from __future__ import annotations

import random

from chronik.raft.driver_group import Group

WAIT_MIN_S = 0.02
WAIT_MAX_S = 0.12
"""Long enough for one node to be done before the next one begins; a leader that exists is heard within this time."""


class FirstElection:
    """One attempt per process."""

    def __init__(self, group: Group, rng: random.Random) -> None:
        self._group = group
        self._rng = rng
        self._begun = False

    def connected(self) -> None:
        """Another node is connected: perhaps there is a majority now."""
        group = self._group
        if self._begun or group.voters_reachable() <= len(group.core.configuration.voters) // 2:
            return
        self._begun = True
        group.loop.call_later(self._rng.uniform(WAIT_MIN_S, WAIT_MAX_S), self._stand)

    def _stand(self) -> None:
        group = self._group
        if group.out is None and not group.core.leader_id:
            group.core.campaign()
            group.touch()
