"""One timer looks after all produce requests that wait."""

from __future__ import annotations

import asyncio

import pytest

from chronik.broker import produce_waits
from chronik.broker.produce_waits import ProduceWaits
from unit.broker.wire_client import eventually


class Patient:
    """Waits for so many looks, then leaves."""

    def __init__(self, waits: ProduceWaits, looks: int) -> None:
        self._waits = waits
        self._left = looks
        self.looks: list[float] = []

    def look(self, now: float) -> None:
        self.looks.append(now)
        if len(self.looks) >= self._left:
            self._waits.leave(self)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_waits, "LOOK_EVERY_S", 0.002)


async def test_all_are_looked_at_until_they_leave() -> None:
    waits = ProduceWaits()
    short, long = Patient(waits, 1), Patient(waits, 3)
    waits.enter(short)
    waits.enter(long)
    await eventually(lambda: len(waits) == 0, "both have left")
    assert len(short.looks) == 1
    assert long.looks == sorted(long.looks) and len(long.looks) == 3


async def test_one_that_comes_when_nobody_waits_any_more_is_looked_at() -> None:
    waits = ProduceWaits()
    for _ in range(3):
        patient = Patient(waits, 1)
        waits.enter(patient)
        await eventually(lambda: len(waits) == 0, "it has left")
        await asyncio.sleep(0)


async def test_one_that_left_in_time_is_not_looked_at() -> None:
    waits = ProduceWaits()
    gone, there = Patient(waits, 1), Patient(waits, 2)
    waits.enter(gone)
    waits.leave(gone)
    waits.leave(gone)
    waits.enter(there)
    await eventually(lambda: len(waits) == 0, "the other has left")
    assert gone.looks == []


async def test_one_that_fails_does_not_end_the_looking() -> None:
    waits = ProduceWaits()

    class Broken:
        def look(self, now: float) -> None:
            waits.leave(self)
            raise RuntimeError("no")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    waits.enter(Broken())
    patient = Patient(waits, 2)
    waits.enter(patient)
    await eventually(lambda: len(waits) == 0, "the one behind it has left, too")
    assert len(patient.looks) == 2
