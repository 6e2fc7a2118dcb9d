"""`chronik cluster status` says in words what a table of numbers hides."""

from __future__ import annotations

from typing import Any

import pytest

from chronik.cli import cluster


@pytest.mark.parametrize(("reachable", "said"), [(1, True), (2, False)])
def test_a_cluster_without_a_quorum_is_said_to_have_none(
    reachable: int, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    view: dict[str, Any] = {"cluster_id": None, "controller": None, "node_id": 1, "voters": [1, 2, 3]}
    cluster._show_cluster({**view, "voters_reachable": reachable})
    out = capsys.readouterr().out
    assert "cluster not known yet, controller none" in out
    assert ("no quorum: node 1 reaches 1 of 3 voters; start the others" in out) is said
