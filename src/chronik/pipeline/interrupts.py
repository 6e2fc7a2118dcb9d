"""Ctrl-C while a person's own PySpark runs: its queries and jobs end, and nothing is said about how that is done.

PySpark's own way is to talk to Java in the middle of talking to Java, of which it then prints every detail.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def ended_by_ctrl_c(spark: SparkSession) -> Iterator[None]:
    """Let Ctrl-C end what is done here as KeyboardInterrupt. A second one ends it wherever it is."""
    asked = threading.Event()

    def handle(_: int, frame: FrameType | None) -> None:
        again = asked.is_set()
        asked.set()
        if again or not _talks_to_java(frame):
            raise KeyboardInterrupt
        threading.Thread(target=_end_all, args=(spark,), daemon=True).start()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
        if asked.is_set():
            raise KeyboardInterrupt
    except Exception:
        if asked.is_set():  # what ended is what was told to
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _talks_to_java(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False


def _end_all(spark: SparkSession) -> None:
    """End queries and jobs: whoever waits for them goes on. Runs beside what waits, which Java has not answered yet."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # Java is gone, and everything with it
        for query in spark.streams.active:
            query.stop()
        spark.sparkContext.cancelAllJobs()
