"""The `chronik` command, also as `python -m chronik`."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """The entry point of the `chronik` script."""
    if sys.argv[1:2] == ["start"]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end_at_once)
    from chronik.cli.main import app

    app()


def _end_at_once(number: int, frame: object) -> NoReturn:
    """A node is told to end before its event loop listens to signals: nothing was begun that needs an end. No exception
    is raised for it, because a signal can come where Python drops them, in the middle of an import for instance."""
    os._exit(0)


if __name__ == "__main__":
    main()
