"""Runs seeds of the simulation of transactions: `python -m simulation.transactions.run --seed 7`, `--seeds 1000`,
`--bugs` to search a seed for every planted bug."""

from __future__ import annotations

import argparse

from harness.quiet import quiet_logs
from simulation.transactions.history import Violation
from simulation.transactions.planted_bugs import BUGS, PlantedBug
from simulation.transactions.world import World

PROGRESS_EVERY = 100


def find_violation(seed: int, bug: PlantedBug | None = None) -> Exception | None:
    """What breaks in this seed, if anything does."""
    try:
        if bug is None:
            World(seed).run()
        else:
            with bug.plant():
                World(seed, dict(bug.changes)).run()
    except (Violation, AssertionError) as violation:
        return violation
    return None


@quiet_logs()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--bugs", action="store_true")
    options = parser.parse_args()
    if options.bugs:
        for name, bug in BUGS.items():
            found = next((seed for seed in range(options.seeds) if find_violation(seed, bug)), None)
            print(f"{name}: {found}, {find_violation(found, bug) if found is not None else 'not found'}", flush=True)
        return
    seeds = range(options.seeds) if options.seed is None else [options.seed]
    for seed in seeds:
        violation = find_violation(seed)
        if violation is not None:
            raise SystemExit(f"seed {seed}: {violation!r}")
        if seed % PROGRESS_EVERY == PROGRESS_EVERY - 1:
            print(f"{seed + 1} seeds", flush=True)
    print(f"{len(seeds)} seeds, no promise broken")


if __name__ == "__main__":
    main()
