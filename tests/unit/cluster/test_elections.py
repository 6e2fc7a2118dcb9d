"""Who leads, as a table: the state of a partition and of the brokers in, the decision out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.cluster.elections import WAIT, Decision, Standing, choose_leader, decide
from chronik.metadata.commands import FinishedAssignment, IsrChange, LeaderChange
from chronik.metadata.model import NO_LEADER, PartitionInfo

TOPIC = b"t" * 16
ALL = frozenset({1, 2, 3, 4})


def partition(
    leader: int,
    replicas: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] = (1, 2, 3),
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionInfo:
    return PartitionInfo(leader, 5, 9, replicas, isr, adding, removing)


def up(*online: int, also_alive: tuple[int, ...] = (), lost: tuple[int, ...] = ()) -> Standing:
    return Standing(frozenset(online), frozenset(online) | frozenset(also_alive), frozenset(lost))


def elected(leader: int, isr: tuple[int, ...] | None = None, unclean: bool = False) -> LeaderChange:
    return LeaderChange(TOPIC, 0, leader, 9, isr, unclean)


CASES: list[tuple[str, PartitionInfo, Standing, dict[str, bool], Decision | None]] = [
    ("all is well", partition(1), up(1, 2, 3), {}, None),
    ("all is well with another leader", partition(2), up(1, 2, 3), {}, None),
    ("the leader died", partition(1), up(2, 3), {}, elected(2, (2, 3))),
    ("the leader died, its lease runs", partition(1), up(2, 3), {"stopped": False}, WAIT),
    ("the leader died, the next is drained", partition(1), up(3, also_alive=(2,)), {}, elected(3, (2, 3))),
    ("only a drained one is left", partition(1), up(also_alive=(2,)), {}, elected(2, (2,))),
    ("the leader died, out of sync is left", partition(1, isr=(1,)), up(2, 3), {}, elected(NO_LEADER, (1,))),
    ("and that is so already", partition(NO_LEADER, isr=(1,)), up(2, 3), {}, None),
    ("losing records is allowed", partition(1, isr=(1,)), up(3), {"unclean": True}, elected(3, None, True)),
    ("unclean waits too", partition(1, isr=(1,)), up(3), {"unclean": True, "stopped": False}, WAIT),
    ("unclean is the last resort", partition(1, isr=(1, 3)), up(2, 3), {"unclean": True}, elected(3, (3,))),
    ("nobody is left at all", partition(1), up(), {}, elected(NO_LEADER, (1, 2, 3))),
    ("the last in sync returns", partition(NO_LEADER, isr=(1,)), up(1, 2, 3), {}, elected(1, (1,))),
    ("a vacant partition waits", partition(NO_LEADER), up(1, 2, 3), {"stopped": False}, WAIT),
    ("a vacant partition is filled", partition(NO_LEADER), up(1, 2, 3), {}, elected(1, (1, 2, 3))),
    ("a follower died", partition(1), up(1, 2), {}, IsrChange(TOPIC, 0, 5, 9, (1, 2))),
    ("a follower died, perhaps the leader too", partition(1), up(1, 2), {"outlived": False}, WAIT),
    ("the leader is drained", partition(1), up(2, 3, also_alive=(1,)), {}, elected(NO_LEADER)),
    ("a drained leader is the only one", partition(1, isr=(1,)), up(2, 3, also_alive=(1,)), {}, None),
    ("balancing", partition(2), up(1, 2, 3), {"balance": True}, elected(NO_LEADER)),
    ("balancing, preferred not in sync", partition(2, isr=(2, 3)), up(1, 2, 3), {"balance": True}, None),
    ("balancing, preferred is drained", partition(2), up(2, 3, also_alive=(1,)), {"balance": True}, None),
    (
        "a wiped broker leaves the ISR",
        partition(NO_LEADER, isr=(1, 2)),
        up(3, lost=(1,)),
        {},
        elected(NO_LEADER, (2,)),
    ),
    ("alone and wiped stays", partition(NO_LEADER, (1,), (1,)), up(3, lost=(1,)), {}, None),
    (
        "new replicas are in sync",
        partition(1, (2, 3, 4, 1), (1, 2, 3, 4), (4,), (1,)),
        up(1, 2, 3, 4),
        {},
        FinishedAssignment(TOPIC, 0, 9),
    ),
    ("a new replica lags", partition(1, (2, 3, 4, 1), (1, 2, 3), (4,), (1,)), up(1, 2, 3, 4), {}, None),
    (
        "nothing that stays is in sync",
        partition(1, (2, 3, 1), (1,), (), (1,)),
        up(1, 2, 3),
        {},
        None,
    ),
    (
        "during a move those that stay are preferred",
        partition(NO_LEADER, (2, 3, 1), (1, 3), (), (1,)),
        up(1, 2, 3),
        {},
        elected(3, (1, 3)),
    ),
    (
        "during a move those that go are better than none",
        partition(NO_LEADER, (2, 3, 1), (1,), (), (1,)),
        up(1, 2, 3),
        {},
        elected(1, (1,)),
    ),
]


@pytest.mark.parametrize(("name", "state", "standing", "options", "expected"), CASES, ids=[case[0] for case in CASES])
def test_decisions(
    name: str, state: PartitionInfo, standing: Standing, options: dict[str, bool], expected: Decision | None
) -> None:
    decision = decide(
        TOPIC,
        0,
        state,
        standing,
        stopped=lambda: options.get("stopped", True),
        outlived=lambda gone: options.get("outlived", True),
        unclean=lambda: options.get("unclean", False),
        balance=options.get("balance", False),
    )
    assert decision == expected


members = st.lists(st.integers(1, 4), unique=True, min_size=1, max_size=4).map(tuple)


@settings(max_examples=100, deadline=None)
@given(members, st.data())
def test_without_unclean_elections_nobody_leads_who_is_not_in_sync_and_alive(
    replicas: tuple[int, ...], data: st.DataObject
) -> None:
    isr = tuple(data.draw(st.lists(st.sampled_from(replicas), unique=True)))
    alive = data.draw(st.frozensets(st.integers(1, 4)))
    online = data.draw(st.frozensets(st.sampled_from(sorted(alive)))) if alive else frozenset()
    leader = data.draw(st.sampled_from([NO_LEADER, *isr]))
    state = partition(leader, replicas, isr)
    standing = Standing(online, alive)
    decision = decide(
        TOPIC, 0, state, standing, stopped=lambda: True, outlived=lambda gone: True, unclean=lambda: False
    )
    if isinstance(decision, LeaderChange) and decision.leader != NO_LEADER:
        assert decision.leader in isr and decision.leader in alive
        assert decision.leader == choose_leader(state, standing)
        assert decision.isr is not None and decision.leader in decision.isr
    if leader not in alive and set(isr) & alive:
        assert isinstance(decision, LeaderChange) and decision.leader != NO_LEADER
