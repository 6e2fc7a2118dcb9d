"""Runs seeds of the simulation of transactions; see `simulation.swarm`."""

from __future__ import annotations

import sys

from simulation.swarm import Swarm
from simulation.transactions.planted_bugs import BUGS
from simulation.transactions.world import World

TRANSACTIONS = Swarm("transactions", World, BUGS)


def _replay(seed: int) -> int:
    world = World(seed)
    world.run()
    print(f"seed {seed}: no violation; {dict(world.history.counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(TRANSACTIONS.main(_replay))
