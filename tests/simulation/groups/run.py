"""Runs seeds of the simulation of groups; see `simulation.swarm`."""

from __future__ import annotations

import sys

from simulation.groups.planted_bugs import BUGS
from simulation.groups.world import World
from simulation.swarm import Swarm

GROUPS = Swarm("groups", lambda seed, _: World(seed), BUGS)


def _replay(seed: int) -> int:
    world = World(seed)
    world.run()
    print(f"seed {seed}: no violation; {world.checker.counts}")
    return 0


if __name__ == "__main__":
    sys.exit(GROUPS.main(_replay))
