"""The streaming side of `format("chronik")`: the driver decides on ranges, batch by batch, and tasks read them.

An offset, as Spark keeps it in a checkpoint, is {topic: {partition: next offset}}. A partition that it does not name is
new, and read from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from chronik.client import LATEST, Cluster, Isolation, TopicPartition
from chronik.pipeline.batch_reader import RangesPartition, read_task
from chronik.pipeline.positions import check_not_lost, latest, partitions_of, resolve
from chronik.pipeline.ranges import OffsetRange, deal, share
from chronik.pipeline.source_options import OptionError, Position, ReadOptions

StreamOffset = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = list(columns)
        self._target: dict[TopicPartition, int] | None = None
        self._cluster: Cluster | None = None

    def initialOffset(self) -> StreamOffset:
        cluster = self._connected()
        places = partitions_of(cluster, self.options.subscription)
        return as_offset(resolve(cluster, places, self.options.starting or Position(offset=LATEST), self.options))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.options.max_offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def reportLatestOffset(self) -> StreamOffset:
        return as_offset(self._ends())

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        begin = of_offset(start)
        ends = self._not_behind(begin, self._ends() if self._target is None else self._target)
        if isinstance(limit, ReadMaxRows):
            ends = share(begin, ends, limit.max_rows)
        # A topic that went away keeps its place: the query goes on when it comes back.
        return as_offset({**begin, **ends})

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        begin = of_offset(start)
        ranges = [
            OffsetRange(*place, begin.get(place, 0), until)
            for place, until in of_offset(end).items()
            if begin.get(place, 0) != until
        ]
        if not ranges:
            return []
        options = self.options
        kept = check_not_lost(self._connected(), ranges, options.isolation, fail=options.fail_on_data_loss)
        return [RangesPartition(tuple(task)) for task in deal(kept, self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        yield from read_task(self.options, self.columns, partition)

    def commit(self, end: StreamOffset) -> None:
        """Nothing to do: Spark's checkpoint holds the position, and logs are shortened by retention alone."""

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_cluster": None}  # a copy goes to every task; connections stay with the driver

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.options.bootstrap)
        return self._cluster

    def _not_behind(
        self, begin: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Ends, of which none is before its beginning unless the log has become shorter.

        A stream may begin, by a time or an offset that was given, behind the first record of an open transaction. It
        cannot read there yet, and nothing of it is lost.
        """
        held_back = [place for place, end in ends.items() if end < begin.get(place, 0)]
        if not held_back:
            return ends
        written = latest(self._connected(), held_back, Isolation.READ_UNCOMMITTED)
        return {**ends, **{place: begin[place] for place in held_back if written[place] >= begin[place]}}

    def _ends(self) -> dict[TopicPartition, int]:
        cluster = self._connected()
        return latest(cluster, partitions_of(cluster, self.options.subscription), self.options.isolation)


class RefusedStream(DataSourceStreamReader):
    """Says why a stream cannot be read when it is asked for its first offsets; said earlier, Spark would lose it."""

    def __init__(self, why: str) -> None:
        self._why = why

    def initialOffset(self) -> StreamOffset:
        raise OptionError(self._why)

    def latestOffset(self, *_: object) -> StreamOffset:
        raise OptionError(self._why)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise OptionError(self._why)


def as_offset(positions: Mapping[TopicPartition, int]) -> StreamOffset:
    offset: StreamOffset = {}
    for (topic, partition), position in sorted(positions.items()):
        offset.setdefault(topic, {})[str(partition)] = position
    return offset


def of_offset(offset: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): position
        for topic, positions in offset.items()
        for partition, position in positions.items()
    }
