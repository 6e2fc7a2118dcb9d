"""A query is for somebody: when its caller leaves, by Ctrl-C or because it was killed, the query is cancelled."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

CANCEL_EVERY_S = 0.5
"""A query is a row of jobs, and one that begins just after the others were cancelled is cancelled by the next call."""


@contextmanager
def cancelled_if_left(caller: socket.socket, cancel: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Watch a caller who has nothing more to say; gives what tells whether it has left.

    From the moment it leaves, `cancel` is called from another thread, again and again, until what is done here ends.
    """
    left = threading.Event()
    done = threading.Event()

    def watch() -> None:
        _wait_until_closed(caller)
        if done.is_set():
            return
        left.set()
        cancel()
        while not done.wait(CANCEL_EVERY_S):
            cancel()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield left.is_set
    finally:
        done.set()
        with suppress(OSError):  # it is not connected any more
            caller.shutdown(socket.SHUT_RD)
        watcher.join()


def _wait_until_closed(caller: socket.socket) -> None:
    with suppress(OSError):
        while caller.recv(4096):
            pass
