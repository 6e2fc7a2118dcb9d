"""The simulator must notice every bug of `mutations.py`: with a pinned seed always, by search in the long form."""

from __future__ import annotations

import pytest

from simulation.raft.checkers.checker import Violation
from simulation.raft.mutations import MUTATIONS
from simulation.raft.run import SEARCH_MAX, find, pinned_seeds, run_seed

SEARCH_FROM = 500_000


@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_pinned_seed_exposes_the_bug(bug: str) -> None:
    """Pinned are a few: what is harmless to the bug may still make a seed mean another world."""
    seeds = pinned_seeds()[bug]
    assert find(bug, seeds), (
        f"none of the seeds {seeds} exposes {bug} any more. If seeds mean other worlds since a change, find new ones: "
        f"python -m simulation.raft.run --pin --bug {bug}"
    )


def test_a_bug_is_gone_when_it_was_planted_and_pulled_out_again() -> None:
    seed = pinned_seeds()["acknowledge-before-sync"][0]
    with MUTATIONS["acknowledge-before-sync"].planted(), pytest.raises(Violation):
        run_seed(seed)
    run_seed(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_search_over_fresh_seeds_finds_every_bug(bug: str) -> None:
    assert find(bug, range(SEARCH_FROM, SEARCH_FROM + SEARCH_MAX)), f"{SEARCH_MAX} seeds do not expose: {bug}"
