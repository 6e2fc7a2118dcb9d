"""Runs seeds of the simulation of groups, or searches seeds that find the planted bugs.

    python -m simulation.groups.run --seeds 1000 [--start 0]
    python -m simulation.groups.run --seed 17
    python -m simulation.groups.run --bugs [--limit 300]

Run it in `tests/`. A failing seed is printed and replays exactly.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext

from harness.quiet import quiet_logs
from simulation.groups.planted_bugs import BUGS, PlantedBug
from simulation.groups.world import World


def find_violation(seed: int, bug: PlantedBug | None = None) -> Exception | None:
    """Runs one seed; what it broke, or None."""
    with bug.plant() if bug is not None else nullcontext():
        try:
            World(seed).run()
        except Exception as error:
            return error
    return None


def _run_seeds(start: int, count: int) -> int:
    began = shown = time.monotonic()
    for seed in range(start, start + count):
        violation = find_violation(seed)
        if violation is not None:
            print(f"seed {seed}: {violation!r}\nreplay it with --seed {seed}", flush=True)
            return 1
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{seed + 1 - start} of {count} seeds, {(seed + 1 - start) / (shown - began):.1f}/s", flush=True)
    print(f"{count} seeds without a violation in {time.monotonic() - began:.1f} s")
    return 0


def _search_bugs(limit: int) -> int:
    missed = 0
    for name, bug in BUGS.items():
        found = next(((seed, v) for seed in range(limit) if (v := find_violation(seed, bug)) is not None), None)
        missed += found is None
        print(f"{name}: {'NOT FOUND' if found is None else f'seed {found[0]}: {str(found[1])[:100]}'}", flush=True)
    return 1 if missed else 0


@quiet_logs()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("--limit", type=int, default=300)
    options = parser.parse_args()
    if options.bugs:
        return _search_bugs(options.limit)
    if options.seed is not None:
        world = World(options.seed)
        world.run()
        print(f"seed {options.seed}: no violation; {world.checker.counts}")
        return 0
    return _run_seeds(options.start, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
