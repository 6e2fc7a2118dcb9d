"""Running other people's programs to their end."""

from __future__ import annotations

import subprocess

RUN_DEADLINE_S = 90.0


def run(*command: str, text_in: str | None = None) -> str:
    """Runs a program to its end and returns what it printed; a failure shows both streams."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=RUN_DEADLINE_S, input=text_in)
    assert result.returncode == 0, f"{command[0]} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout
