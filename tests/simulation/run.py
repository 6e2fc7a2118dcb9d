"""Run every simulator over many seeds: `python -m simulation.run --seeds 1000`. Each folder here is one.

A simulator is a module `simulation.<name>.run` with `run_seeds(first, count) -> number of seeds that failed`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path


def simulators() -> list[str]:
    """The names of the simulators there are."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/run.py"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the simulators over many seeds.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds each")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--only", choices=simulators(), help="run only this simulator")
    arguments = parser.parse_args()
    failed = 0
    for name in [arguments.only] if arguments.only else simulators():
        print(f"── {name}", flush=True)
        failed += importlib.import_module(f"simulation.{name}.run").run_seeds(arguments.first, arguments.seeds)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
