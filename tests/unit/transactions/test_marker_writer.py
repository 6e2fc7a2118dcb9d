"""Markers on `__consumer_offsets`: when the group coordinator hears of them, and when it must not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from chronik.cluster.internal_topics import OFFSETS_TOPIC
from chronik.protocol.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic
from chronik.storage.partition_log import ProducerInfo
from chronik.transactions.marker_writer import MarkerWriter
from chronik.transactions.state import KIP_890

PRODUCER, EPOCH = 7, 5
NO_TRANSACTION = -1


class OffsetsPartition:
    """A partition whose log has the marker of the producer's last transaction, and commits when the test says so."""

    topic, index, end_offset = OFFSETS_TOPIC, 0, 12

    def __init__(self) -> None:
        self.open_from = NO_TRANSACTION
        self.commit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log = SimpleNamespace(producer=self._producer)

    def _producer(self, producer_id: int) -> ProducerInfo:
        return ProducerInfo(producer_id, EPOCH, -1, -1, 0, self.open_from)

    def require_leader(self) -> None:
        return None

    def committed(self, offset: int) -> asyncio.Future[None]:
        return self.commit


def again() -> WritableTxnMarker:
    """The marker that the log has already."""
    return WritableTxnMarker(
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
        transaction_result=True,
        coordinator_epoch=0,
        transaction_version=KIP_890,
        topics=[WritableTxnMarkerTopic(name=OFFSETS_TOPIC, partition_indexes=[0])],
    )


def writer_to(partition: OffsetsPartition, told: list[tuple[int, int, bool]]) -> MarkerWriter:
    replicas: Any = SimpleNamespace(partition=lambda topic, index: partition)
    return MarkerWriter(replicas, lambda: 0, lambda *what: told.append(what))


async def test_a_marker_that_comes_again_counts_once_it_is_committed() -> None:
    partition, told = OffsetsPartition(), []  # type: ignore[var-annotated]
    answer = writer_to(partition, told).write([again()])
    await asyncio.sleep(0)
    assert told == [] and not answer.done()
    partition.commit.set_result(None)
    (result,) = await answer
    assert (told, result.topics[0].partitions[0].error_code) == ([(0, PRODUCER, True)], 0)


async def test_a_marker_that_comes_again_does_not_end_the_transaction_that_began_while_it_waited() -> None:
    partition, told = OffsetsPartition(), []  # type: ignore[var-annotated]
    answer = writer_to(partition, told).write([again()])
    partition.open_from = 11  # the producer goes on in the epoch of the marker
    partition.commit.set_result(None)
    (result,) = await answer
    assert (told, result.topics[0].partitions[0].error_code) == ([], 0)
