"""Run the Raft simulator: `python -m simulation.raft.run --seeds 1000`, or `--seed 17 --trace` to replay one.

With `--bug NAME` the core is broken on purpose first (see `mutations.py`), to see that the simulator notices. With
`--pin` every bug (or that one) is searched for, and seeds that find it are written to `pinned_seeds.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from chronik.raft.errors import SafetyViolation
from harness.quiet import quiet_logs
from simulation.raft.checkers.checker import Violation
from simulation.raft.mutations import MUTATIONS
from simulation.raft.world import World

FAILURES_MAX = 10
SEARCH_MAX = 5000
PINS = 3
PINNED = Path(__file__).with_name("pinned_seeds.json")


def run_seed(seed: int, *, trace: Callable[[str], None] | None = None) -> Counter[str]:
    """Run one seed to its end; raises `Violation` if anything is wrong."""
    world = World(seed, trace=trace)
    with quiet_logs():
        try:
            return world.run()
        except SafetyViolation as error:
            raise world.violated("SafetyViolation", str(error)) from error


def run_seeds(first: int, count: int) -> int:
    """Run many seeds with progress; the number of seeds that failed."""
    started = last_shown = time.monotonic()
    total: Counter[str] = Counter()
    failed: list[int] = []
    for done, seed in enumerate(range(first, first + count), 1):
        try:
            total.update(run_seed(seed))
        except Violation as violation:
            failed.append(seed)
            print(f"\nFAILED {violation}\n  replay: python -m simulation.raft.run --seed {seed} --trace", flush=True)
        except Exception:
            print(f"\nseed {seed} crashed the simulation", flush=True)
            raise
        if time.monotonic() - last_shown > 1 or done == count:
            last_shown = time.monotonic()
            rate = done / (last_shown - started)
            print(f"\r{done}/{count} seeds, {len(failed)} failed, {rate:.1f} seeds/s ", end="", flush=True)
        if len(failed) >= FAILURES_MAX:
            break
    seconds = time.monotonic() - started
    print(f"\n{seconds:.1f} s; " + ", ".join(f"{name} {number}" for name, number in sorted(total.items())))
    return len(failed)


def find(bug: str, seeds: Iterable[int], *, enough: int = 1) -> list[tuple[float, int, str]]:
    """Search for seeds that expose a planted bug: how long each took, the seed, and who noticed; quickest first."""
    found: list[tuple[float, int, str]] = []
    with MUTATIONS[bug].planted():
        for seed in seeds:
            started = time.monotonic()
            try:
                run_seed(seed)
            except Violation as violation:
                found.append((time.monotonic() - started, seed, violation.checker))
            if len(found) >= enough:
                break
    return sorted(found)


def pinned_seeds() -> dict[str, list[int]]:
    """For every planted bug a few seeds that exposed it when they were pinned."""
    return msgspec.json.decode(PINNED.read_bytes(), type=dict[str, list[int]])


def pin(only: str | None = None) -> int:
    """Find quick seeds for every bug (or for one), and write them down."""
    pinned = pinned_seeds() if PINNED.exists() else {}
    for bug in [only] if only else MUTATIONS:
        found = find(bug, range(SEARCH_MAX), enough=PINS)
        if not found:
            print(f"{bug}: no seed below {SEARCH_MAX} exposes it")
            return 1
        pinned[bug] = [seed for _, seed, _ in found]
        seen = ", ".join(f"{seed} ({checker}, {seconds:.2f} s)" for seconds, seed, checker in found)
        print(f"{bug}: {seen}", flush=True)
        PINNED.write_bytes(msgspec.json.format(msgspec.json.encode(pinned)) + b"\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate Raft groups under faults; every seed is another world.")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run only this one")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--bug", choices=sorted(MUTATIONS), help="plant this bug first")
    parser.add_argument("--pin", action="store_true", help="find and write down a seed for every planted bug")
    arguments = parser.parse_args()
    if arguments.pin:
        return pin(arguments.bug)
    with MUTATIONS[arguments.bug].planted() if arguments.bug else contextlib.nullcontext():
        if arguments.seed is None:
            return 1 if run_seeds(arguments.first, arguments.seeds) else 0
        try:
            counts = run_seed(arguments.seed, trace=print if arguments.trace else None)
        except Violation as violation:
            print(f"FAILED {violation}")
            return 1
        print(f"seed {arguments.seed}: " + ", ".join(f"{name} {number}" for name, number in sorted(counts.items())))
        return 0


if __name__ == "__main__":
    sys.exit(main())
