"""Groups under message loss, late messages, members that come and go, and coordinators that move and die."""

from __future__ import annotations

import pytest

from simulation.groups.planted_bugs import BUGS
from simulation.groups.run import GROUPS
from simulation.groups.world import World


@pytest.mark.parametrize("seed", range(8))
def test_groups_keep_their_promises(seed: int) -> None:
    world = World(seed)
    world.run()
    assert world.checker.counts["answers"] > 50


def test_a_seed_is_the_same_run_every_time() -> None:
    counts = []
    for _ in range(2):
        world = World(5)
        world.run()
        counts.append((world.checker.counts, world.log.end))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_finds_a_planted_bug(name: str) -> None:
    GROUPS.check_finds(name)


@pytest.mark.long
def test_many_seeds() -> None:
    GROUPS.check(range(1000, 1300))
