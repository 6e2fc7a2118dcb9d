"""Watches the event loop: measures how late its turns are and names what held it up.

The loop carries the heartbeats of the cluster, so nothing on it may take over 20 ms. A timer notices a late turn; a
thread takes a picture of the loop's stack while it is still stuck, so that the log says who was to blame.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback

import structlog

log = structlog.get_logger()

BEAT_S = 0.1
SLOW_TURN_S = 0.02
STUCK_S = 0.5
"""A turn this long is reported with the stack of the loop, while it lasts."""
REPORT_INTERVAL_S = 10.0


class LoopWatchdog:
    """Counts slow turns of the loop it was started on."""

    def __init__(self) -> None:
        self.slow_turns = 0
        self.lag_s = 0.0
        self.lag_max_s = 0.0
        self._beat_at = time.monotonic()
        self._reported_at = 0.0
        self._loop_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._loop_thread = threading.get_ident()
        self._beat_at = time.monotonic()
        self._handle = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._handle is not None:
            self._handle.cancel()

    def _beat(self) -> None:
        now = time.monotonic()
        lag = max(0.0, now - self._beat_at - BEAT_S)
        self.lag_s = lag
        self.lag_max_s = max(self.lag_max_s, lag)
        if lag > SLOW_TURN_S:
            self.slow_turns += 1
            if now - self._reported_at > REPORT_INTERVAL_S:
                self._reported_at = now
                log.debug("the event loop was late", late_ms=round(lag * 1000), slow_turns=self.slow_turns)
        self._beat_at = now
        self._handle = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _watch(self) -> None:
        reported = 0.0
        while not self._stopped.wait(STUCK_S / 2):
            beat_at = self._beat_at
            late = time.monotonic() - beat_at - BEAT_S
            if late < STUCK_S or beat_at == reported:
                continue
            reported = beat_at
            frame = sys._current_frames().get(self._loop_thread)
            where = "".join(traceback.format_stack(frame, limit=6)) if frame is not None else "unknown"
            log.warning("the event loop is stuck", late_ms=round(late * 1000), where=where)
