"""Running the `chronik` command as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

COMMAND_DEADLINE_S = 60.0


def chronik(*arguments: str, text_in: str | None = None, code: int = 0) -> str:
    """Runs a command to its end, checks its exit code, and returns what it printed (its complaint, when it failed)."""
    result = subprocess.run(
        [sys.executable, "-m", "chronik", *arguments],
        input=text_in,
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
    )
    assert result.returncode == code, (
        f"chronik {' '.join(arguments)}: code {result.returncode}\n{result.stdout}\n{result.stderr}"
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout if code == 0 else result.stderr


def chronik_json(*arguments: str) -> Any:
    return json.loads(chronik(*arguments, "--json"))
