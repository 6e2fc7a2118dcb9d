"""The simulator must notice every bug of `mutations.py`: with a pinned seed always, by search in the long form."""

from __future__ import annotations

import pytest

from simulation.raft.checkers.checker import Violation
from simulation.raft.mutations import MUTATIONS
from simulation.raft.run import SEARCH_MAX, find, pinned_seeds, run_seed

SEARCH_FROM = 500_000


@pytest.mark.parametrize("bug", MUTATIONS)
def test_the_pinned_seed_of_a_bug_exposes_it(bug: str) -> None:
    seed = pinned_seeds()[bug]
    with MUTATIONS[bug].planted(), pytest.raises(Violation):
        run_seed(seed)
        pytest.fail(f"seed {seed} no longer exposes {bug}: run `python -m simulation.raft.run --pin`")


def test_the_pinned_seeds_are_innocent_without_the_bugs() -> None:
    for seed in sorted(set(pinned_seeds().values())):
        run_seed(seed)


def test_a_bug_is_gone_when_it_was_planted_and_pulled_out_again() -> None:
    bug = MUTATIONS["acknowledge-before-sync"]
    seed = pinned_seeds()["acknowledge-before-sync"]
    with bug.planted(), pytest.raises(Violation):
        run_seed(seed)
    run_seed(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_search_over_fresh_seeds_finds_every_bug(bug: str) -> None:
    assert find(bug, range(SEARCH_FROM, SEARCH_FROM + SEARCH_MAX)), f"{SEARCH_MAX} seeds do not expose: {bug}"
