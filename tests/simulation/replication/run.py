"""Runs seeds of the simulation of replication; see `simulation.swarm`. A seed by itself is told step by step.

Seeds from `SLOW_READS_FROM` on are histories in which leaders' reads wait for the disk; half of a run is of those.
"""

from __future__ import annotations

import sys

from simulation.replication.conditions import SLOW_READS_FROM
from simulation.replication.planted_bugs import BUGS
from simulation.replication.world import World
from simulation.swarm import Swarm

REPLICATION = Swarm("replication", World, BUGS, starts=(0, SLOW_READS_FROM))


def _replay(seed: int) -> int:
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


if __name__ == "__main__":
    sys.exit(REPLICATION.main(_replay))
