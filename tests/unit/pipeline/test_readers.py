"""Where readers of `format("chronik")` begin and end, with a cluster that only answers questions about offsets."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from chronik.client import Cluster, Isolation, TopicPartition
from chronik.client.offsets import EARLIEST, LATEST, OffsetAt
from chronik.pipeline import batch_reader, positions, stream_reader
from chronik.pipeline.batch_reader import BatchReader, RangesPartition
from chronik.pipeline.positions import DataLoss
from chronik.pipeline.source_options import read_options
from chronik.pipeline.stream_reader import StreamReader

PLACE = TopicPartition("t", 0)


class Log:
    """One partition: where it begins, where it ends, and where those must stop who see no open transaction."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.start, self.stable, self.end = 0, 10, 10
        self.times: list[int] = []
        for module in (batch_reader, positions):
            monkeypatch.setattr(module, "list_offsets", self.list_offsets)
        for module in (batch_reader, stream_reader):
            monkeypatch.setattr(module, "partitions_of", lambda *_: [PLACE])

    def list_offsets(
        self,
        _: Cluster,
        wanted: dict[TopicPartition, int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAt]:
        return {place: OffsetAt(self._at(time, isolation), -1, 0) for place, time in wanted.items()}

    def _at(self, time: int, isolation: Isolation) -> int:
        if time == EARLIEST:
            return self.start
        if time == LATEST:
            return self.stable if isolation is Isolation.READ_COMMITTED else self.end
        found = [offset for offset, at in enumerate(self.times) if at >= time]
        return found[0] if found else -1


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def options(**given: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", **given}


def batch(**given: str) -> BatchReader:
    return BatchReader(read_options(options(**given)), ["value"])


def planned(reader: BatchReader) -> list[tuple[int, int]]:
    tasks = [task for task in reader.partitions() if isinstance(task, RangesPartition)]
    return [(piece.start, piece.end) for task in tasks for piece in task.ranges]


def stream(**given: str) -> StreamReader:
    return StreamReader(read_options(options(**given)), ["value"])


def test_a_filter_for_times_before_1970_leaves_out_no_record_without_a_timestamp(log: Log) -> None:
    log.times = [-1, -1, 5_000]
    log.stable = log.end = 3
    for year, wanted in ((1960, [(0, 3)]), (1971, [])):
        reader = batch()
        reader.pushFilters([GreaterThanOrEqual(("timestamp",), datetime(year, 1, 1, tzinfo=UTC))])
        assert planned(reader) == wanted


def test_a_batch_that_is_to_start_behind_the_end_of_the_log_is_told_so(log: Log) -> None:
    start = json.dumps({"t": {"0": 12}})
    with pytest.raises(DataLoss, match=r"offsets 10 to 11 of t-0 .* the log ends at offset 10"):
        batch(startingOffsets=start).partitions()
    assert planned(batch(startingOffsets=start, failOnDataLoss="false")) == []
    log.end = 12  # a transaction is open, nothing is lost
    assert planned(batch(startingOffsets=start)) == []


def test_a_stream_that_starts_behind_the_first_record_of_an_open_transaction_waits_for_its_end(log: Log) -> None:
    log.stable, log.times = 4, [1_000 * n for n in range(10)]
    reader = stream(startingTimestamp="6000")
    start = reader.initialOffset()
    assert start == {"t": {"0": 6}}
    for limit in (ReadAllAvailable(), ReadMaxRows(2)):
        assert reader.latestOffset(start, limit) == start
    log.stable = 10
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"t": {"0": 10}}
    (task,) = reader.partitions(start, end)
    assert isinstance(task, RangesPartition) and [(p.start, p.end) for p in task.ranges] == [(6, 10)]


def test_a_log_that_is_shorter_than_where_a_stream_is_loses_it_offsets(log: Log) -> None:
    reader, start = stream(), {"t": {"0": 12}}
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss, match="offsets 10 to 11 of t-0"):
        reader.partitions(start, end)
