"""Ctrl-C in the middle of a person's own PySpark, with something in place of Spark that notes what it is told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from chronik.pipeline.interrupts import ended_by_ctrl_c

DEADLINE_S = 30.0


class Spark:
    """A session with one query and one job; `cancelled` is set when both were told to end."""

    def __init__(self) -> None:
        self.streams = self.sparkContext = self
        self.active = [self]
        self.told: list[str] = []
        self.cancelled = threading.Event()

    def stop(self) -> None:
        self.told.append("stop")

    def cancelAllJobs(self) -> None:  # as Spark names it
        self.told.append("cancel")
        self.cancelled.set()


@pytest.fixture
def in_java() -> Callable[[Callable[[], None]], None]:
    """Calls something as PySpark would be called back while it waits for Java."""
    names: dict[str, Any] = {"__name__": "py4j.clientserver"}
    exec("def call(what):\n    what()", names)
    call: Callable[[Callable[[], None]], None] = names["call"]
    return call


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_wait_for_java_is_ended_by_ending_what_it_waits_for(in_java: Callable[[Callable[[], None]], None]) -> None:
    spark = Spark()
    before = signal.getsignal(signal.SIGINT)

    def wait() -> None:
        interrupt()
        assert spark.cancelled.wait(DEADLINE_S)

    with pytest.raises(KeyboardInterrupt), ended_by_ctrl_c(spark):  # type: ignore[arg-type]
        in_java(wait)
    assert spark.told == ["stop", "cancel"] and signal.getsignal(signal.SIGINT) is before


def test_a_failure_that_it_causes_is_not_told_of(in_java: Callable[[Callable[[], None]], None]) -> None:
    def fail() -> None:
        interrupt()
        raise RuntimeError("job 7 was cancelled")

    with pytest.raises(KeyboardInterrupt), ended_by_ctrl_c(Spark()):  # type: ignore[arg-type]
        in_java(fail)
    with pytest.raises(RuntimeError, match="on its own"), ended_by_ctrl_c(Spark()):  # type: ignore[arg-type]
        raise RuntimeError("on its own")


def test_elsewhere_and_the_second_time_it_interrupts_at_once(in_java: Callable[[Callable[[], None]], None]) -> None:
    reached: list[str] = []

    def twice() -> None:
        interrupt()
        reached.append("once")
        interrupt()
        reached.append("twice")

    for run in (lambda: in_java(twice), twice):
        with pytest.raises(KeyboardInterrupt), ended_by_ctrl_c(Spark()):  # type: ignore[arg-type]
            run()
    assert reached == ["once"]
