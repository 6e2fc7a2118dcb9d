"""Clusters of replicas under faults: no promise is broken, and the simulation would notice if one were."""

from __future__ import annotations

import pytest

from simulation.replication.conditions import SLOW_READS_FROM
from simulation.replication.planted_bugs import BUGS
from simulation.replication.run import REPLICATION
from simulation.replication.world import World

SEEDS_PER_TEST = 20
LONG_SEEDS = 3000
NEARBY_SEEDS = 80
SEEDS_OF_OLD_BUGS = (
    3467,  # a replica that was moved away and back before it heard of it was left behind
    4434,  # the same joined the ISR, then heard that it had been moved away, and deleted what it counted for
    10012,  # a log that was cut under a slow read was told of as the leader's, and a follower threw its own away
    10841,  # the same
)


@pytest.mark.parametrize("first", range(0, 120, SEEDS_PER_TEST))
def test_no_promise_is_broken_whatever_fails(first: int) -> None:
    REPLICATION.check(range(first, first + SEEDS_PER_TEST))


def test_no_promise_is_broken_while_reads_wait_for_the_disk() -> None:
    REPLICATION.check(range(SLOW_READS_FROM, SLOW_READS_FROM + SEEDS_PER_TEST))


def test_seeds_that_once_found_a_bug_stay_clean() -> None:
    REPLICATION.check(SEEDS_OF_OLD_BUGS)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    REPLICATION.check_finds(name, nearby=NEARBY_SEEDS)


@pytest.mark.parametrize("seed", [7, SLOW_READS_FROM + 7])
def test_a_seed_replays_exactly(seed: int) -> None:
    stories = []
    for _ in range(2):
        world = World(seed, tell=True)
        world.run()
        stories.append(world.story)
    assert stories[0] == stories[1]
    assert len(stories[0]) > 50


def test_histories_do_something() -> None:
    """A simulation in which nothing is acknowledged or elected finds nothing."""
    counts: dict[str, int] = {}
    for seed in range(10):
        world = World(seed)
        world.run()
        for name, count in world.history.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts["acknowledged"] > 500 and counts["elections"] > 30 and counts["read"] > 300
    assert counts["refused"] > 20 and counts["unknown"] > 0


def test_slow_reads_are_slow_and_change_nothing_else() -> None:
    plain = World(7)
    slow = World(7, {"slow_read_share": 0.7, "slow_read_s": 0.03})
    assert slow.rng.getstate() == plain.rng.getstate()
    for world in (slow, plain):
        world.run()
    assert all(node.slow_reads is None for node in plain.running())
    assert sum(node.slow_reads.waited for node in slow.running() if node.slow_reads is not None) > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [1000, SLOW_READS_FROM + 1000])
def test_no_promise_is_broken_in_thousands_of_histories(first: int) -> None:
    REPLICATION.check(range(first, first + LONG_SEEDS))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", BUGS)
def test_every_planted_bug_is_found_by_search(name: str) -> None:
    """By seeds that nobody chose."""
    assert any(REPLICATION.violation(seed, BUGS[name]) is not None for seed in range(5000, 6500)), name
