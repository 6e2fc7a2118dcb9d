"""The batch side of `format("chronik")`: ranges fixed when the query is planned, read by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from chronik.client import EARLIEST, Cluster, Isolation, TopicPartition
from chronik.client.offsets import list_offsets
from chronik.pipeline.positions import check_not_lost, latest, lost, partitions_of, resolve
from chronik.pipeline.pushdown import NarrowingReader
from chronik.pipeline.range_reader import consumer_settings, read_ranges
from chronik.pipeline.ranges import OffsetRange, deal
from chronik.pipeline.source_options import Position, ReadOptions


@dataclass
class RangesPartition(InputPartition):
    """What one task reads."""

    ranges: tuple[OffsetRange, ...]


class BatchReader(NarrowingReader):
    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = list(columns)

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        with Cluster(options.bootstrap) as cluster:
            places = partitions_of(cluster, options.subscription)
            starts = resolve(cluster, places, options.starting or Position(offset=EARLIEST), options)
            ends = resolve(cluster, places, options.ending, options)
            self._check_starts(cluster, starts, ends)
            ranges = [OffsetRange(*place, starts[place], max(ends[place], starts[place])) for place in places]
            kept = check_not_lost(cluster, ranges, options.isolation, fail=options.fail_on_data_loss)
            dealt = deal(self._bounded(cluster, kept), options.min_partitions)
        return [RangesPartition(tuple(task)) for task in dealt] or [RangesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        yield from read_task(self.options, self.columns, partition)

    def _check_starts(
        self, cluster: Cluster, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Tell of offsets to start at that the log does not reach: those who gave them knew a log that was longer."""
        if self.options.starting is None or self.options.starting.offsets is None:
            return
        beyond = [place for place, start in starts.items() if start > ends[place]]
        # Not the end of what can be read: behind it there may be a transaction that is open.
        for place, end in latest(cluster, beyond, Isolation.READ_UNCOMMITTED).items() if beyond else ():
            if starts[place] > end:
                fail = self.options.fail_on_data_loss
                lost(place, end, starts[place], f"the log ends at offset {end}", fail)

    def _bounded(self, cluster: Cluster, ranges: list[OffsetRange]) -> list[OffsetRange]:
        bounds = self.bounds
        admitted = [piece for piece in ranges if bounds.admits(piece.place)]
        from_time: dict[object, int] = {}
        # A time before 1970 narrows nothing: records without a timestamp have −1, and nobody can be asked for those.
        if bounds.from_timestamp_ms is not None and bounds.from_timestamp_ms >= 0 and admitted:
            wanted = dict.fromkeys((piece.place for piece in admitted), bounds.from_timestamp_ms)
            found = list_offsets(cluster, wanted)
            from_time = {
                piece.place: found[piece.place].offset if found[piece.place].offset >= 0 else piece.end
                for piece in admitted
            }
        return [
            OffsetRange(
                piece.topic,
                piece.partition,
                max(piece.start, bounds.first_offset, from_time.get(piece.place, 0)),
                piece.end if bounds.end_offset is None else min(piece.end, bounds.end_offset),
            )
            for piece in admitted
        ]


def read_task(options: ReadOptions, columns: Sequence[str], partition: RangesPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task, over connections of its own."""
    settings = consumer_settings(
        options.isolation, max_bytes=options.max_fetch_bytes, partition_max_bytes=options.max_partition_fetch_bytes
    )
    with Cluster(options.bootstrap) as cluster:
        for _, batch in read_ranges(
            cluster,
            partition.ranges,
            settings,
            columns=columns,
            fail_on_data_loss=options.fail_on_data_loss,
        ):
            if batch.num_rows:
                yield batch
