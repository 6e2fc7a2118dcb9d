"""What a fetch brought: raw batches, which of them a reader sees, and their records.

No control batches are seen, and with READ_COMMITTED nothing of aborted transactions. A broker names the aborted
transactions that touch a fetch, by producer and first offset; where one ends is told by its marker in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from chronik.client.metadata import TopicPartition
from chronik.protocol.records import BatchInfo, Buffer, read_records
from chronik.protocol.records.control import read_end_transaction_marker


class ConsumerRecord(msgspec.Struct):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class FetchedBatches(msgspec.Struct):
    """What one fetch brought for one partition: whole batches of magic 2, untouched.

    `batches` gives their headers, with positions in `data`. The first batch may begin before `fetch_offset`.
    `aborted` names the aborted transactions among them as (producer id, first offset); it is only filled for
    READ_COMMITTED.
    """

    place: TopicPartition
    fetch_offset: int
    data: memoryview
    batches: list[BatchInfo]
    aborted: list[tuple[int, int]]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int

    @property
    def next_offset(self) -> int:
        """Where the next fetch goes on."""
        return self.batches[-1].next_offset

    def visible(self) -> Iterator[BatchInfo]:
        """The batches whose records a reader is to see."""
        return visible_batches(self.data, self.batches, self.aborted)

    def records(self) -> Iterator[ConsumerRecord]:
        """The records a reader is to see, from the offset that was asked for on."""
        topic, partition = self.place
        for info in self.visible():
            for r in read_records(self.data[info.position : info.end]):
                if r.offset >= self.fetch_offset:
                    yield ConsumerRecord(topic, partition, r.offset, r.timestamp, r.key, r.value, list(r.headers))


def visible_batches(
    data: Buffer, batches: Sequence[BatchInfo], aborted: Sequence[tuple[int, int]]
) -> Iterator[BatchInfo]:
    """The batches to show, in order. `aborted` holds (producer id, first offset) of aborted transactions.

    With READ_UNCOMMITTED, `aborted` is empty and only control batches are left out.
    """
    if not aborted:
        yield from (info for info in batches if not info.is_control)
        return
    view = memoryview(data)
    waiting = sorted(aborted, key=lambda pair: pair[1], reverse=True)
    open_producers: set[int] = set()
    for info in batches:
        while waiting and waiting[-1][1] <= info.last_offset:
            open_producers.add(waiting.pop()[0])
        if info.is_control:
            if info.producer_id in open_producers and info.record_count:  # compaction empties markers in the end
                marker = read_end_transaction_marker(view[info.position : info.end])
                if marker is not None and not marker.committed:
                    open_producers.discard(info.producer_id)
        elif not (info.is_transactional and info.producer_id in open_producers):
            yield info
