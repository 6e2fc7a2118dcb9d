"""Runs seeds of the replication simulation, or searches seeds that find the planted bugs.

    python -m simulation.replication.run --seeds 1000 [--start 0]     as many histories as asked, with progress
    python -m simulation.replication.run --seed 17                    one history, told step by step
    python -m simulation.replication.run --bugs [--limit 2000]        for each planted bug the first seed that finds it

Run it in `tests/`. A failing seed is printed and replays exactly.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext

from harness.quiet import quiet_logs
from simulation.replication.planted_bugs import BUGS, PlantedBug
from simulation.replication.world import World


def find_violation(seed: int, bug: PlantedBug | None = None) -> Exception | None:
    """Runs one seed; what it broke, or None."""
    with bug.plant() if bug is not None else nullcontext():
        try:
            World(seed, bug.changes if bug is not None else None).run()
        except Exception as error:
            return error
    return None


def _run_seeds(start: int, count: int) -> int:
    began = shown = time.monotonic()
    for seed in range(start, start + count):
        violation = find_violation(seed)
        if violation is not None:
            print(f"seed {seed}: {violation}\nreplay it with --seed {seed}", flush=True)
            return 1
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{seed + 1 - start} of {count} seeds, {(seed + 1 - start) / (shown - began):.1f}/s", flush=True)
    print(f"{count} seeds without a violation in {time.monotonic() - began:.1f} s")
    return 0


def _tell(seed: int) -> int:
    world = World(seed, tell=True)
    try:
        world.run()
    except Exception as error:
        print("\n".join(world.story))
        print(f"{world.conditions}\nseed {seed}: {error!r} {error.__cause__ or ''}")
        return 1
    print("\n".join(world.story))
    print(f"{world.conditions}\nseed {seed}: no violation; {world.history.counts}")
    return 0


def _search_bugs(limit: int, only: str) -> int:
    missed = 0
    for name, bug in BUGS.items():
        if only not in name:
            continue
        for seed in range(limit):
            violation = find_violation(seed, bug)
            if violation is not None:
                print(f"{name}: seed {seed}: {str(violation)[:100]}", flush=True)
                break
        else:
            missed += 1
            print(f"{name}: NOT FOUND in {limit} seeds", flush=True)
    return 1 if missed else 0


@quiet_logs()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("--bug", default="")
    parser.add_argument("--limit", type=int, default=1000)
    options = parser.parse_args()
    if options.bugs or options.bug:
        return _search_bugs(options.limit, options.bug)
    if options.seed is not None:
        return _tell(options.seed)
    return _run_seeds(options.start, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
