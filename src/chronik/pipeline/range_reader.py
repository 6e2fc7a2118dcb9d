"""What a task does: read ranges of offsets from the leaders of their partitions, and decode them into Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from chronik.client import ClientError, Cluster, ConsumerSettings, Isolation, OffsetOutOfRange, fetch_range
from chronik.pipeline.arrow_decoder import decode_batches
from chronik.pipeline.positions import lost
from chronik.pipeline.ranges import OffsetRange
from chronik.pipeline.source_options import DEFAULT_FETCH_BYTES, DEFAULT_PARTITION_FETCH_BYTES


def consumer_settings(
    isolation: Isolation = Isolation.READ_COMMITTED,
    *,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    partition_max_bytes: int = DEFAULT_PARTITION_FETCH_BYTES,
) -> ConsumerSettings:
    return ConsumerSettings(isolation=isolation, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)


def check_topic(cluster: Cluster, topic: str, topic_id: str) -> None:
    """Refuse what was read if the topic was made anew in the meantime: ClientError.

    Records are fetched by the id of their topic, and an id never comes back: if it is the right one at the end, it was
    all along.
    """
    if cluster.topic(topic).topic_id.hex() != topic_id:
        raise ClientError(f"topic {topic} was deleted and made anew since this was planned; what was read is not used")


def read_ranges(
    cluster: Cluster,
    ranges: Sequence[OffsetRange],
    settings: ConsumerSettings,
    *,
    columns: Sequence[str] | None = None,
    fail_on_data_loss: bool = True,
) -> Iterator[tuple[OffsetRange, pa.RecordBatch]]:
    """The records of ranges, range by range and in order, with the range that each Arrow batch is of."""
    for piece in ranges:
        for batch in read_range(cluster, piece, settings, columns=columns, fail_on_data_loss=fail_on_data_loss):
            yield piece, batch


def read_range(
    cluster: Cluster,
    piece: OffsetRange,
    settings: ConsumerSettings,
    *,
    columns: Sequence[str] | None = None,
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The records of one range. Leaders that change in the middle are followed; what retention takes is told of."""
    position = piece.start
    while position < piece.end:
        try:
            for fetched in fetch_range(cluster, piece.place, position, piece.end, settings):
                yield from decode_batches(
                    fetched.data,
                    list(fetched.visible()),
                    topic=piece.topic,
                    partition=piece.partition,
                    start=position,
                    end=piece.end,
                    columns=columns,
                )
                position = fetched.next_offset
            return
        except OffsetOutOfRange as error:
            resume = min(error.earliest, piece.end) if error.earliest > position else piece.end
            lost(piece.place, position, resume, "they went away while they were being read", fail_on_data_loss)
            position = resume
