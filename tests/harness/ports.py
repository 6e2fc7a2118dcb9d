"""Ports for test processes, below the range from which the kernel picks ports of outgoing connections.

A port found free here stays free until its owner binds it, so a node can be restarted on the same address.
"""

from __future__ import annotations

import os
import random
import socket

FIRST_PORT = 12_000
LAST_PORT = 31_999

_random = random.Random(os.getpid())
_given: set[int] = set()


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on and that this process has not handed out before."""
    for _ in range(1000):
        port = _random.randint(FIRST_PORT, LAST_PORT)
        if port in _given:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise RuntimeError(f"no free port between {FIRST_PORT} and {LAST_PORT}")
