"""Run every simulator over many seeds: `python -m simulation.run --seeds 1000`, in `tests/`.

A simulator is a module `simulation.<name>.run` that takes `--seeds n`, shows its progress, and fails if a seed does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def simulators() -> list[str]:
    """The names of the simulators there are."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/run.py"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the simulators over many seeds.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds each")
    parser.add_argument("--only", choices=simulators(), help="run only this simulator")
    arguments = parser.parse_args()
    failed = []
    for name in [arguments.only] if arguments.only else simulators():
        print(f"── {name}", flush=True)
        command = [sys.executable, "-m", f"simulation.{name}.run", "--seeds", str(arguments.seeds)]
        if subprocess.run(command, cwd=Path(__file__).parent.parent, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
