"""A leader that loses touch with one follower while nobody is dead: how long writes wait for it, in simulated time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulation.replication.history import TOPIC
from simulation.replication.world import World

RATES = ("reset_rate", "cut_rate", "crash_rate", "pause_rate", "move_rate", "reassign_rate", "all_crash_rate")
CALM = dict.fromkeys((*RATES, "slow_share", "slow_sync_share", "acks_one_share"), 0.0)
CUT_AFTER_S = 5.0
ROOM_S = 0.5  # for the command that changes the ISR, and the pace of the producers


@pytest.mark.parametrize(("lag_limit_s", "noticed_s"), [(30.0, 1.0), (2.0, 0.2)])
def test_writes_wait_for_it_hardly_longer_than_the_lag_limit(lag_limit_s: float, noticed_s: float) -> None:
    settings = {"nodes": 3, "partitions": 1, "min_isr": 2, "lag_limit_s": lag_limit_s, "cuts_delay": False}
    world = World(1, {**CALM, **settings, "produce_rate": 40.0, "producers": 4, "seconds": lag_limit_s + 10})
    acknowledged_at: list[float] = []
    acknowledge = world.history.acknowledge

    def note(*args: object) -> None:
        acknowledged_at.append(world.now)
        acknowledge(*args)  # type: ignore[arg-type]

    world.history.acknowledge = note  # type: ignore[method-assign]

    def cut() -> None:
        info = world.controller.image.topics[TOPIC].partitions[0]
        follower = next(node_id for node_id in info.replicas if node_id != info.leader)
        for way in ((info.leader, follower), (follower, info.leader)):
            world.network.cut(*way, seconds=lag_limit_s + 10)

    world.at(world.now + CUT_AFTER_S, cut)
    world.run()
    gap_s = max(after - before for before, after in pairwise(acknowledged_at))
    assert lag_limit_s <= gap_s <= lag_limit_s + noticed_s + ROOM_S
