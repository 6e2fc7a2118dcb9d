"""The swarm, in the size that fits into every test run. `make simulate SEEDS=n` runs as many seeds as asked."""

from __future__ import annotations

import pytest

from simulation.raft.run import run_seed

SEEDS_PER_TEST = 20


@pytest.mark.parametrize("first", range(0, 200, SEEDS_PER_TEST))
def test_no_fault_breaks_an_invariant_and_every_group_recovers(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        run_seed(seed)


def test_a_seed_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    assert run_seed(15, trace=first.append) == run_seed(15, trace=second.append)
    assert first == second
    assert first


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(100_000, 103_000, 100))
def test_no_fault_breaks_an_invariant_in_thousands_of_seeds(first: int) -> None:
    for seed in range(first, first + 100):
        run_seed(seed)
