"""From options to offsets: asks the cluster which partitions there are and where reading starts and ends."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping

from chronik.client import EARLIEST, LATEST, Cluster, Isolation, TopicPartition
from chronik.client.admin.topics import list_topics
from chronik.client.offsets import list_offsets
from chronik.pipeline.ranges import OffsetRange
from chronik.pipeline.source_options import OptionError, Position, ReadOptions, Subscription

log = logging.getLogger(__name__)


SOURCE_REMEDY = "Set failOnDataLoss=false to go on without them, or start anew at another offset"
TABLE_REMEDY = "Start with --allow-gaps to go on without them"
QUERY_REMEDY = "Ask again: the answer is then of what is there"


class DataLoss(Exception):
    """Offsets that were to be read are not in the log any more. The text names them and says what to do.

    What that is depends on who reads: a reader other than the source gives a remedy of its own.
    """

    def __init__(self, gap: str, remedy: str = SOURCE_REMEDY) -> None:
        super().__init__(gap, remedy)  # so that it survives the way from one process to another
        self.gap = gap
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.gap}. {self.remedy}"


def partitions_of(cluster: Cluster, subscription: Subscription) -> list[TopicPartition]:
    """The partitions of a subscription, as they are now."""
    if subscription.partitions:
        for place in subscription.partitions:
            known = cluster.topic(place.topic).partitions
            if place.partition not in known:
                raise OptionError(f"topic {place.topic} has no partition {place.partition}; it has {len(known)}")
        return list(subscription.partitions)
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        topics = [topic for topic in list_topics(cluster) if pattern.fullmatch(topic.name)]
        return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
    for name in subscription.topics:
        cluster.doubt(name)  # a query runs for long: partitions are added while it does
    return [TopicPartition(name, index) for name in subscription.topics for index in cluster.topic(name).partitions]


def earliest(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    return {place: at.offset for place, at in list_offsets(cluster, dict.fromkeys(places, EARLIEST)).items()}


def latest(cluster: Cluster, places: Iterable[TopicPartition], isolation: Isolation) -> dict[TopicPartition, int]:
    """Where a reader's view ends: with read_committed, before the first open transaction."""
    wanted = dict.fromkeys(places, LATEST)
    return {place: at.offset for place, at in list_offsets(cluster, wanted, isolation=isolation).items()}


def resolve(
    cluster: Cluster, places: list[TopicPartition], position: Position, options: ReadOptions
) -> dict[TopicPartition, int]:
    """The offset of a position in each partition."""
    if position.offset is not None:
        wanted = dict.fromkeys(places, position.offset)
    elif position.offsets is not None:
        wanted = _for_each(position.offsets, places, "offsets")
    else:
        times = (
            dict.fromkeys(places, position.timestamp_ms)
            if position.timestamp_ms is not None
            else _for_each(position.timestamps or {}, places, "timestamps")
        )
        return _at_times(cluster, times, options, starting=position is options.starting)
    found = {place: offset for place, offset in wanted.items() if offset >= 0}
    first = earliest(cluster, [place for place, offset in wanted.items() if offset == EARLIEST])
    last = latest(cluster, [place for place, offset in wanted.items() if offset == LATEST], options.isolation)
    return {**found, **first, **last}


def _for_each(
    given: Mapping[TopicPartition, int], places: list[TopicPartition], what: str
) -> dict[TopicPartition, int]:
    missing = sorted(set(places) - set(given))
    unknown = sorted(set(given) - set(places))
    if missing or unknown:
        problem = f"{missing[0]} is missing" if missing else f"{unknown[0]} is not among what is read"
        raise OptionError(f"the {what} must be given for exactly the partitions that are read; {problem}")
    return {place: given[place] for place in places}


def _at_times(
    cluster: Cluster, times: Mapping[TopicPartition, int], options: ReadOptions, *, starting: bool
) -> dict[TopicPartition, int]:
    found = {place: at.offset for place, at in list_offsets(cluster, times).items()}
    nothing_newer = sorted(place for place, offset in found.items() if offset < 0)
    if nothing_newer and starting and not options.latest_when_no_record_is_that_new:
        place = nothing_newer[0]
        raise OptionError(
            f"{place} has no record at or after timestamp {times[place]}; choose an earlier time, or set "
            "startingOffsetsByTimestampStrategy=latest to start at the end there"
        )
    if starting:
        return {**found, **latest(cluster, nothing_newer, options.isolation)}
    ends = latest(cluster, times, options.isolation)
    return {place: min(offset, ends[place]) if offset >= 0 else ends[place] for place, offset in found.items()}


def check_not_lost(
    cluster: Cluster, ranges: Iterable[OffsetRange], isolation: Isolation, *, fail: bool
) -> list[OffsetRange]:
    """The parts of ranges that are there; what is not is an error, or a gap that the log records."""
    wanted = list(ranges)
    places = {piece.place for piece in wanted}
    first, last = earliest(cluster, places), latest(cluster, places, isolation)
    kept: list[OffsetRange] = []
    for piece in wanted:
        begin, end = first[piece.place], last[piece.place]
        if piece.size and piece.end > end:  # nobody knows when they come, if ever: a task would wait for them
            lost(piece.place, max(end, piece.start), piece.end, f"the log ends at offset {end}", fail)
            piece = OffsetRange(piece.topic, piece.partition, min(piece.start, end), end)
        if piece.end < piece.start:
            lost(piece.place, piece.end, piece.start, "the log is shorter than it was, the topic was re-created", fail)
            kept.append(OffsetRange(piece.topic, piece.partition, min(begin, piece.end), piece.end))
        elif piece.start < begin and piece.size:
            lost(piece.place, piece.start, min(begin, piece.end), "retention or DeleteRecords removed them", fail)
            kept.append(OffsetRange(piece.topic, piece.partition, min(begin, piece.end), piece.end))
        else:
            kept.append(piece)
    return kept


def lost(place: TopicPartition, start: int, end: int, why: str, fail: bool) -> None:
    """Raise DataLoss, or record the gap as a warning."""
    gap = f"offsets {start} to {end - 1} of {place} ({end - start} offsets) were to be read and are not there: {why}"
    if fail:
        raise DataLoss(gap)
    log.warning("%s; going on without them", gap)
