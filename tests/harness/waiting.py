"""Waiting for a condition, with a deadline: the only way a test lets time pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.02


def eventually(condition: Callable[[], T], what: str, deadline_s: float = 20.0) -> T:
    """Returns the first truthy answer of `condition`; after the deadline fails with `what` and the last answer."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    last: object = None
    while True:
        try:
            answer = condition()
            if answer:
                return answer
            last = answer
        except (OSError, AssertionError) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}; last seen: {last!r}")
        pause.wait(POLL_S)
