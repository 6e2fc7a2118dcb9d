"""Server-side assignors: properties that hold for whatever members subscribe to."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.groups.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from chronik.groups.consumer_state import Assignment

TOPICS = [bytes([number]) * 16 for number in range(1, 5)]
MEMBERS = [f"m{number}" for number in range(6)]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Subscriber], dict[bytes, int]]:
    topics = {topic: draw(st.integers(1, 9)) for topic in TOPICS[: draw(st.integers(0, 4))]}
    subscribers = []
    for member in MEMBERS[: draw(st.integers(1, 6))]:
        read = draw(st.frozensets(st.sampled_from(sorted(topics)), max_size=4)) if topics else frozenset()
        target: dict[bytes, frozenset[int]] = {
            topic: draw(st.frozensets(st.integers(0, 10), max_size=4)) for topic in sorted(read)
        }
        subscribers.append(Subscriber(member, None, read, target))
    return subscribers, topics


def places(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic, partition) for topic, partitions in assignment.items() for partition in partitions}


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from(sorted(ASSIGNORS)))
def test_everything_that_is_read_is_assigned_once_to_somebody_who_reads_it(
    world: tuple[list[Subscriber], dict[bytes, int]], name: str
) -> None:
    subscribers, topics = world
    found = ASSIGNORS[name](subscribers, topics)
    given_out = [place for assignment in found.values() for place in places(assignment)]
    read = {topic for s in subscribers for topic in s.topics}
    assert len(given_out) == len(set(given_out)), "a partition was given twice"
    assert set(given_out) == {(topic, p) for topic, count in topics.items() if topic in read for p in range(count)}
    for s in subscribers:
        assert found[s.member_id].keys() <= s.topics


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_uniform_is_as_even_as_subscriptions_allow(world: tuple[list[Subscriber], dict[bytes, int]]) -> None:
    subscribers, topics = world
    found = assign_uniform(subscribers, topics)
    loads = {member: len(places(assignment)) for member, assignment in found.items()}
    for giver in subscribers:
        for taker in subscribers:
            movable = {topic for topic, _ in places(found[giver.member_id])} & taker.topics
            assert not movable or loads[giver.member_id] - loads[taker.member_id] < 2


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_what_is_assigned_evenly_stays_where_it_is(world: tuple[list[Subscriber], dict[bytes, int]]) -> None:
    subscribers, topics = world
    for name in ASSIGNORS:
        found = ASSIGNORS[name](subscribers, topics)
        again = ASSIGNORS[name](
            [Subscriber(s.member_id, s.instance_id, s.topics, found[s.member_id]) for s in reversed(subscribers)],
            topics,
        )
        assert again == found


def test_uniform_moves_no_more_than_a_newcomer_needs() -> None:
    topic = TOPICS[0]
    before = assign_uniform([Subscriber(m, None, frozenset({topic}), {}) for m in ("a", "b")], {topic: 6})
    after = assign_uniform(
        [Subscriber(m, None, frozenset({topic}), before.get(m, {})) for m in ("a", "b", "c")], {topic: 6}
    )
    for member in ("a", "b"):
        assert places(after[member]) < places(before[member])
    assert len(places(after["c"])) == 2


def test_range_brings_partitions_of_the_same_number_together() -> None:
    subscribers = [Subscriber(m, None, frozenset(TOPICS[:2]), {}) for m in ("a", "b")]
    found = assign_range(subscribers, {TOPICS[0]: 4, TOPICS[1]: 4})
    for assignment in found.values():
        assert assignment[TOPICS[0]] == assignment[TOPICS[1]]
    assert found["a"][TOPICS[0]] == {0, 1}


def test_range_does_not_move_static_members_that_get_a_new_member_id() -> None:
    topics = {TOPICS[0]: 4}
    first = assign_range([Subscriber(m, i, frozenset(topics), {}) for m, i in (("a", "1"), ("b", "2"))], topics)
    second = assign_range([Subscriber(m, i, frozenset(topics), {}) for m, i in (("z", "1"), ("b", "2"))], topics)
    assert second["z"] == first["a"]
