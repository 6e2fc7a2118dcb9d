"""Transactions under faults: no promise is broken, and the simulation would notice if one were.

Hard case 41 is here: requests of clients and markers between nodes arrive late and twice, and no end, batch or marker
of one transaction ever touches a later one.
"""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.transactions.planted_bugs import BUGS
from simulation.transactions.run import TRANSACTIONS
from simulation.transactions.world import World

SEEDS_PER_TEST = 10
LONG_SEEDS = 2000
NEARBY_SEEDS = 40


@pytest.mark.parametrize("first", range(0, 40, SEEDS_PER_TEST))
def test_no_promise_is_broken_whatever_fails(first: int) -> None:
    TRANSACTIONS.check(range(first, first + SEEDS_PER_TEST))


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    TRANSACTIONS.check_finds(name, nearby=NEARBY_SEEDS)


def test_a_seed_replays_exactly() -> None:
    ends = []
    for _ in range(2):
        world = World(7)
        world.run()
        ends.append((world.now, world.history.counts, [log.batches for log in world.logs.values()]))
    assert ends[0] == ends[1]


def test_histories_do_something() -> None:
    """A simulation in which nothing commits, aborts or is read finds nothing."""
    counts: Counter[str] = Counter()
    for seed in range(10):
        world = World(seed)
        world.run()
        counts.update(world.history.counts)
    assert counts["committed"] > 50 and counts["aborted"] > 20 and counts["read"] > 100 and counts["instances"] > 30


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_histories() -> None:
    TRANSACTIONS.check(range(1000, 1000 + LONG_SEEDS))
