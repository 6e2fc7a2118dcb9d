"""Carrying out a plan: a bounded number of reassignments at a time, each finished before the next begins.

The reassignments themselves live in the image and go on whoever dies; what is lost with this node is only the rest of
the plan, which can be made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import structlog

from chronik.cluster.rebalance import Move
from chronik.metadata.commands import MAX_CHANGES_PER_COMMAND, AssignPartition, Reassignment
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import Result
from chronik.metadata.store import MetadataStore, as_kafka_error

MOVES_AT_ONCE = 20  # so many partitions are being copied at the same time; a rate is in `move_throttle`
MOVE_STALLED_S = 600.0
BEGIN_ATTEMPTS = 10  # each of a few seconds: longer than a cluster is without a controller
BEGIN_RETRY_S = 0.5

log = structlog.get_logger()


class Progress(msgspec.Struct, frozen=True):
    """How far a plan has come."""

    done: int
    failed: int
    total: int


class MovesStalled(Exception):
    """No reassignment finished for a long time; the text says which are waiting and for whom."""


async def carry_out(
    store: MetadataStore,
    moves: Sequence[Move],
    *,
    at_once: int = MOVES_AT_ONCE,
    progress: Callable[[Progress], None] | None = None,
    stalled_s: float = MOVE_STALLED_S,
) -> Progress:
    """Moves everything; returns when all is moved or refused. Raises MovesStalled, and what proposing raises."""
    waiting = list(reversed(moves))
    under_way: list[Move] = []
    done = failed = 0
    while waiting or under_way:
        batch = [waiting.pop() for _ in range(min(len(waiting), at_once - len(under_way), MAX_CHANGES_PER_COMMAND))]
        if batch:
            started = await _begin(store, batch)
            failed += len(batch) - len(started)
            under_way.extend(started)
        if under_way and not await store.wait_until(partial(_any_over, under_way), stalled_s):
            raise MovesStalled(_complaint(store.image, under_way, stalled_s))
        still = [move for move in under_way if not _over(store.image, move)]
        done += len(under_way) - len(still)
        under_way = still
        if progress is not None:
            progress(Progress(done, failed, len(moves)))
    return Progress(done, failed, len(moves))


async def _begin(store: MetadataStore, batch: list[Move]) -> list[Move]:
    """Asking for what is under way already changes nothing, so one whose outcome is not known is asked for again."""
    command = AssignPartition([Reassignment(move.topic_id, move.partition, move.after) for move in batch])
    for attempt in range(1, BEGIN_ATTEMPTS + 1):
        try:
            result = await store.propose(command)
            break
        except Exception as error:
            if attempt == BEGIN_ATTEMPTS or not as_kafka_error(error).retriable:
                raise
            log.warning("moves are asked for again", moves=len(batch), attempt=attempt, reason=str(error))
            await asyncio.sleep(BEGIN_RETRY_S)
    lines = result.value if isinstance(result.value, list) else []
    return [move for move, line in zip(batch, lines, strict=True) if isinstance(line, Result) and line.ok]


def _any_over(moves: list[Move], image: MetadataImage) -> bool:
    return any(_over(image, move) for move in moves)


def _over(image: MetadataImage, move: Move) -> bool:
    partition = image.partition_by_id(move.topic_id, move.partition)
    return partition is None or not partition.reassigning


def _complaint(image: MetadataImage, moves: list[Move], stalled_s: float) -> str:
    first = moves[0]
    partition = image.partition_by_id(first.topic_id, first.partition)
    late = [replica for replica in partition.adding if replica not in partition.isr] if partition is not None else []
    return (
        f"{len(moves)} reassignment(s) made no progress for {stalled_s:.0f} s, among them "
        f"{first.topic}-{first.partition}, which waits for broker(s) {late} to catch up; check that they are online"
    )
