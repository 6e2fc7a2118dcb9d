"""Batches of idempotent producers that a connection was refused, so that those sent behind them are refused alike.

A producer does not wait for one batch to be answered before it sends the next. When the first is refused for a reason
that soon passes (no leader yet, too few replicas in sync, no lease), the reason may be gone when the second comes, and
that one is out of sequence. To say so would be true and do harm: OUT_OF_ORDER_SEQUENCE_NUMBER is what a producer hears
when records were lost. librdkafka then takes a new epoch and sends again, in every partition, whatever was not
acknowledged: what had been written all the same is there twice. And a log that does not know the producer yet would
even take the second batch without the first. So the second is refused for the reason of the first, which every client
knows how to go on from: both again, in order.

Only for as long as requests can be under way: after that a gap is a gap. No IO here, and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chronik.protocol.errors import KafkaError
from chronik.protocol.records.header import BatchInfo, next_sequence

UNDER_WAY_S = 5.0
"""How long after a batch was refused the next may still have been sent without knowing of it."""

REMEMBERED_MAX = 1_000
"""Per connection, one for each producer and partition; beyond that, those refused first are forgotten."""


class _Refused(NamedTuple):
    producer_epoch: int
    next_sequence: int
    error: KafkaError
    until: float


class RefusedBatches:
    """Of one connection. A topic is known by its name or its id, as the request had it."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str | bytes, int, int], _Refused] = {}

    def __len__(self) -> int:
        return len(self._last)

    def remember(
        self, topic: str | bytes, partition: int, batches: Sequence[BatchInfo], error: KafkaError, now: float
    ) -> None:
        """Batches were refused; those that may be sent again as they are matter."""
        if not error.retriable or not batches or not batches[-1].has_producer_id:
            return
        last = batches[-1]
        key = (topic, partition, last.producer_id)
        self._last.pop(key, None)
        if len(self._last) >= REMEMBERED_MAX:
            del self._last[next(iter(self._last))]
        following = next_sequence(last.last_sequence)
        self._last[key] = _Refused(last.producer_epoch, following, error, now + UNDER_WAY_S)

    def before(self, topic: str | bytes, partition: int, batch: BatchInfo, now: float) -> KafkaError | None:
        """Why the batch was refused that comes directly before this one, if it was."""
        refused = self._last.get((topic, partition, batch.producer_id))
        if (
            refused is None
            or now >= refused.until
            or (refused.producer_epoch, refused.next_sequence) != (batch.producer_epoch, batch.base_sequence)
        ):
            return None
        return KafkaError(refused.error.code, refused.error.message)

    def forget(self, topic: str | bytes, partition: int, producer_id: int) -> None:
        """A batch of the producer was taken, so all before it are there as well."""
        self._last.pop((topic, partition, producer_id), None)
