"""`chronik cluster drain` says what is left to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from chronik.cli import cluster

STUCK = [{"topic": "t", "partition": 0, "reason": "no other broker is online that has no replica of it ([1, 2])"}]


def answering(monkeypatch: pytest.MonkeyPatch, *, stuck: list[dict[str, Any]], failed: int = 0) -> None:
    """A cluster whose plan has one move, of which the outcome is known at once."""

    @contextmanager
    def opened(bootstrap: str | None) -> Iterator[Any]:
        yield SimpleNamespace(brokers=lambda: [None])

    def administer(cluster: object, action: str, *arguments: object, **options: object) -> dict[str, Any]:
        if action == "progress":
            return {"running": False, "done": 1 - failed, "failed": failed, "total": 1, "failure": None}
        listed = [{"topic": "t", "partition": 1, "before": [3], "after": [1]}]
        return {"moves": 1, "copies": 1, "listed": listed, "stuck": stuck}

    monkeypatch.setattr(cluster, "open_cluster", opened)
    monkeypatch.setattr(cluster, "administer", administer)


def test_a_drain_that_moved_everything_tells_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, stuck=[])
    cluster.drain(3, yes=True)
    assert "chronik cluster remove-node 3" in capsys.readouterr().out


def test_a_drain_that_left_something_fails_and_says_how_to_go_on_or_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, stuck=STUCK)
    with pytest.raises(SystemExit):
        cluster.drain(3, yes=True)
    said = capsys.readouterr()
    assert "cannot move t-0: no other broker" in said.out
    assert "1 partition(s) could not be moved" in said.err and "chronik cluster undrain 3" in said.err


def test_moves_that_were_refused_are_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, stuck=[], failed=1)
    with pytest.raises(SystemExit):
        cluster.rebalance(yes=True)
    assert "1 were refused" in capsys.readouterr().err
