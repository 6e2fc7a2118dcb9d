"""How offsets are dealt out to tasks and to rounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.client.metadata import TopicPartition
from chronik.pipeline.ranges import OFFSETS_PER_TASK, OffsetRange, deal, share
from chronik.pipeline.tables.ingest_task import TaskReport
from chronik.pipeline.tables.kept_topic import contiguous, stopped_by

ranges = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300_000)), max_size=12).map(
    lambda pairs: [OffsetRange("t", index, start, start + size) for index, (start, size) in enumerate(pairs)]
)


@settings(max_examples=100, deadline=None)
@given(ranges, st.integers(0, 20))
def test_every_offset_is_read_by_exactly_one_task(wanted: list[OffsetRange], min_tasks: int) -> None:
    tasks = deal(wanted, min_tasks)
    pieces = sorted((p.partition, p.start, p.end) for task in tasks for p in task)
    for piece in wanted:
        at = piece.start
        for partition, start, end in pieces:
            if partition == piece.partition:
                assert start == at and end > start
                at = end
        assert at == piece.end
    if not min_tasks:
        assert all(len(task) == 1 or sum(p.size for p in task) <= OFFSETS_PER_TASK for task in tasks)


def test_large_ranges_are_split_into_at_least_as_many_tasks_as_asked() -> None:
    assert len(deal([OffsetRange("t", 0, 0, 1_000_000)], 8)) == 8


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=8), st.integers(1, 600))
def test_a_limit_is_kept_and_no_partition_starves(pairs: list[tuple[int, int]], limit: int) -> None:
    starts = {TopicPartition("t", i): start for i, (start, _) in enumerate(pairs)}
    ends = {TopicPartition("t", i): start + waiting for i, (start, waiting) in enumerate(pairs)}
    shared = share(starts, ends, limit)
    assert all(starts[p] <= shared[p] <= ends[p] for p in ends)
    assert all(shared[p] > starts[p] for p in ends if ends[p] > starts[p])
    assert sum(shared[p] - starts[p] for p in ends) <= max(limit + len(pairs), 1)


def test_what_was_read_behind_a_gap_does_not_count() -> None:
    reports = [
        TaskReport("t", [(0, 0, 10), (1, 0, 5)], [10, 5]),
        TaskReport("t", [(0, 10, 20)], [14]),
        TaskReport("t", [(0, 20, 30)], [30]),
        TaskReport("t", [(1, 5, 9)], error="no leader"),
    ]
    assert contiguous({0: 0, 1: 0}, reports) == {0: 14, 1: 5}


def test_a_bad_record_stops_a_topic_when_everything_before_it_has_landed() -> None:
    reports = [
        TaskReport("t", [(0, 0, 10)], [7]),  # it ended early: too many days
        TaskReport("t", [(1, 0, 5), (0, 10, 20), (2, 0, 5)], [5, 14, 0], stopped="offset 14 of t-0: bad"),
    ]
    landed = contiguous({0: 0, 1: 0, 2: 0}, reports)
    assert landed == {0: 7, 1: 5, 2: 0} and stopped_by(reports, landed) is None
    reports[0].reached = [10]
    assert stopped_by(reports, contiguous({0: 0, 1: 0, 2: 0}, reports)) == "offset 14 of t-0: bad"
