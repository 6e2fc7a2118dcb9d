"""Offsets that retention takes while a task reads them: an error that names them, or a gap that is recorded."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

from chronik.client import Cluster, TopicPartition
from chronik.client.admin.topics import delete_records
from chronik.pipeline.positions import DataLoss
from chronik.pipeline.range_reader import consumer_settings, read_range
from chronik.pipeline.ranges import OffsetRange

RECORDS = 6
KEPT_FROM = 4


@pytest.fixture
def place(topic: Callable[..., str], produce: Callable[..., None]) -> TopicPartition:
    """A partition whose records are a batch each, so that they can be read one by one."""
    name = topic()
    for n in range(RECORDS):
        produce(name, [b"%d" % n])
    return TopicPartition(name, 0)


def read_while_records_go(
    cluster: Cluster, place: TopicPartition, found: list[int], *, fail_on_data_loss: bool
) -> None:
    """Gather the offsets of a range of which a part is deleted once its first record was read."""
    one_by_one = consumer_settings(partition_max_bytes=1)
    piece = OffsetRange(*place, 0, RECORDS)
    for batch in read_range(cluster, piece, one_by_one, columns=["offset"], fail_on_data_loss=fail_on_data_loss):
        if not found:
            delete_records(cluster, {place: KEPT_FROM})
        found += batch.column("offset").to_pylist()


def first_lost(text: str, place: TopicPartition) -> int:
    """Where the gap starts that a text tells of. One more record than was asked for may have been on its way."""
    told = re.search(rf"offsets (\d+) to {KEPT_FROM - 1} of {place} .* are not there", text)
    assert told, text
    return int(told[1])


def test_offsets_that_go_away_in_the_middle_of_a_read_are_an_error_with_their_range(
    cluster: Cluster, place: TopicPartition
) -> None:
    found: list[int] = []
    with pytest.raises(DataLoss) as raised:
        read_while_records_go(cluster, place, found, fail_on_data_loss=True)
    assert found == list(range(first_lost(str(raised.value), place)))


def test_or_a_gap_that_is_recorded(cluster: Cluster, place: TopicPartition, caplog: pytest.LogCaptureFixture) -> None:
    found: list[int] = []
    with caplog.at_level(logging.WARNING):
        read_while_records_go(cluster, place, found, fail_on_data_loss=False)
    assert found == [*range(first_lost(caplog.text, place)), *range(KEPT_FROM, RECORDS)]
