"""What the simulations of groups, replication and transactions share: running seeds, finding planted bugs, and the
command line of their `run` modules:

    python -m simulation.NAME.run --seeds 1000 [--start 17]     as many histories as asked, with progress
    python -m simulation.NAME.run --seed 17                     one history, replayed exactly
    python -m simulation.NAME.run --bugs [TEXT] [--limit 300]   for each planted bug the first seed that finds it

Run them in `tests/`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from harness.quiet import quiet_logs

SHOW_EVERY_S = 5.0
AS_DRAWN: Mapping[str, Any] = MappingProxyType({})


class PlantedBug(NamedTuple):
    """A mutation, and a seed that finds it. What takes two rare faults at once is looked for where they are common."""

    plant: Callable[[], AbstractContextManager[None]]
    seed: int
    changes: Mapping[str, Any] = AS_DRAWN
    """Conditions that replace what the seed draws."""


class World(Protocol):
    def run(self) -> None: ...


class Swarm:
    """One simulation: worlds by seed, and the bugs that it must find."""

    def __init__(
        self,
        name: str,
        world: Callable[[int, Mapping[str, Any]], World],
        bugs: Mapping[str, PlantedBug],
        starts: Sequence[int] = (0,),
    ) -> None:
        """`starts` are the first seeds of its kinds of histories: a run without `--start` has equally many of each."""
        self._starts = starts
        self._module = f"simulation.{name}.run"
        self._world = world
        self._bugs = bugs

    def violation(self, seed: int, bug: PlantedBug | None = None) -> Exception | None:
        """Runs one seed; what it broke, or None."""
        with bug.plant() if bug is not None else nullcontext():
            try:
                self._world(seed, AS_DRAWN if bug is None else bug.changes).run()
            except Exception as error:
                return error
        return None

    def check(self, seeds: Iterable[int]) -> None:
        """For tests: no seed may break anything."""
        for seed in seeds:
            found = self.violation(seed)
            if found is not None:
                replay = f"cd tests && python -m {self._module} --seed {seed}"
                raise AssertionError(f"seed {seed}: {found!r}; replay: {replay}") from found

    def check_finds(self, name: str, *, nearby: int = 0) -> None:
        """For tests: the bug is found by its pinned seed; when the simulation has changed since, by one nearby: then
        pin that one."""
        bug = self._bugs[name]
        if all(self.violation(seed, bug) is None for seed in (bug.seed, *range(nearby))):
            raise AssertionError(f"'{name}' is no longer found; search: python -m {self._module} --bugs '{name}'")

    @quiet_logs()
    def main(self, replay: Callable[[int], int]) -> int:
        """The command line; `replay` runs one seed and prints what there is to tell of it."""
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--seeds", type=int, default=100)
        parser.add_argument("--start", type=int)
        parser.add_argument("--seed", type=int)
        parser.add_argument("--bugs", nargs="?", const="", metavar="TEXT", help="only those with this in their name")
        parser.add_argument("--limit", type=int, default=300)
        options = parser.parse_args()
        if options.bugs is not None:
            return self._search(options.bugs, options.limit)
        if options.seed is not None:
            return replay(options.seed)
        return self._run(self._starts if options.start is None else (options.start,), options.seeds)

    def _run(self, starts: Sequence[int], count: int) -> int:
        began = shown = time.monotonic()
        for done in range(count):
            seed = starts[done % len(starts)] + done // len(starts)
            found = self.violation(seed)
            if found is not None:
                print(f"seed {seed}: {found!r}\nreplay it with --seed {seed}", flush=True)
                return 1
            if time.monotonic() - shown > SHOW_EVERY_S:
                shown = time.monotonic()
                print(f"{done + 1} of {count} seeds, {(done + 1) / (shown - began):.1f}/s", flush=True)
        print(f"{count} seeds without a violation in {time.monotonic() - began:.1f} s")
        return 0

    def _search(self, text: str, limit: int) -> int:
        missed = 0
        for name, bug in self._bugs.items():
            if text not in name:
                continue
            found = next(((seed, error) for seed in range(limit) if (error := self.violation(seed, bug))), None)
            missed += found is None
            told = f"NOT FOUND in {limit} seeds" if found is None else f"seed {found[0]}: {str(found[1])[:100]}"
            print(f"{name}: {told}", flush=True)
        return 1 if missed else 0
