"""What a log remembers of its producers: sequences for idempotence, open transactions for the last stable offset.

Rules, as Kafka ≥ 2.5 has them:
1. A batch whose sequence range was appended among the producer's last five is a duplicate: answered with the offset it
   got then, and not appended again.
2. The next batch of a producer carries the next sequence; any other is OUT_OF_ORDER_SEQUENCE_NUMBER. A new epoch begins
   at 0. A producer nobody remembers may begin anywhere (its state expired, or its records were deleted).
3. An epoch below the known one is INVALID_PRODUCER_EPOCH.
4. A transaction is open from its first batch to its marker. It is decided for readers when the marker is below the high
   watermark: until then the last stable offset stays before it.

No IO here; the file format is in `producer_snapshot`.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import NamedTuple

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import BatchInfo
from chronik.protocol.records.control import EndTransactionMarker
from chronik.protocol.records.header import next_sequence

BATCHES_REMEMBERED = 5
"""Per producer, as many as it may have in flight."""

PRODUCERS_MAX = 20_000
"""Per partition. Beyond that, those that have been silent longest are forgotten, never one with an open transaction."""

EVICTED_AT_ONCE = PRODUCERS_MAX // 20

VERIFICATIONS_MAX = 10_000
"""Per partition: producers whose transaction is being verified. Beyond that, the oldest have to ask again."""

NO_OFFSET = -1
NO_SEQUENCE = -1

_tokens = count(1)
"""No token is given twice: this state is made anew when its log is cut, and may then know nothing of earlier ones."""


class RememberedBatch(NamedTuple):
    """Where a batch of a producer went."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction whose marker was appended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    committed: bool


class ProducerEntry:
    """The state of one producer in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_offset",
        "producer_id",
        "seen_ms",
        "timestamp",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int, seen_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.batches: list[RememberedBatch] = []
        self.transaction_start = NO_OFFSET
        self.timestamp = -1
        self.last_offset = NO_OFFSET
        self.seen_ms = seen_ms

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, batch: BatchInfo) -> RememberedBatch | None:
        if batch.producer_epoch != self.epoch:
            return None
        first, last = batch.base_sequence, batch.last_sequence
        for known in self.batches:
            if known.base_sequence == first and known.last_sequence == last:
                return known
        return None


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("_guards", "_undecided", "changed_at", "entries", "open")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.open: dict[int, int] = {}
        """First offset → producer id of the open transactions, in order of their offsets."""
        self._undecided: dict[int, int] = {}
        """First offset → marker offset of ended transactions whose marker is not below the high watermark yet."""
        self.changed_at = NO_OFFSET
        """The last offset that changed anything here: truncation above it leaves the state as it is."""
        self._guards: dict[int, int] = {}

    def check(self, batch: BatchInfo, before: BatchInfo | None = None) -> RememberedBatch | None:
        """Whether a client's batch may be appended: None, or the batch that it duplicates; raises KafkaError.

        `before` is the batch of the same producer that precedes it in the same append.
        """
        if batch.base_sequence < 0:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"producer {batch.producer_id} sent a batch without a sequence; idempotent batches need one",
            )
        entry = self.entries.get(batch.producer_id)
        if entry is None and before is None:
            return None
        if entry is not None:
            self.check_epoch(batch, entry)
            duplicate = entry.find_duplicate(batch)
            if duplicate is not None:
                return duplicate
            self._check_transaction_flag(batch, entry)
        if before is not None:
            epoch, last = before.producer_epoch, before.last_sequence
        elif entry is not None:
            epoch, last = entry.epoch, entry.last_sequence
        if batch.producer_epoch != epoch:
            if batch.base_sequence != 0:
                raise _out_of_order(batch, f"a new epoch ({batch.producer_epoch}, after {epoch}) begins at 0")
        elif batch.base_sequence != next_sequence(last):
            raise _out_of_order(batch, f"the last one appended was {last}")
        return None

    def check_epoch(self, batch: BatchInfo, entry: ProducerEntry | None = None) -> None:
        entry = entry or self.entries.get(batch.producer_id)
        if entry is not None and batch.producer_epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} sent epoch {batch.producer_epoch}, the current one is {entry.epoch}: "
                "a newer instance has taken over",
            )

    def check_internal(self, batch: BatchInfo) -> None:
        """Whether a coordinator's batch, which has no sequence, may be appended."""
        entry = self.entries.get(batch.producer_id)
        if entry is not None:
            self.check_epoch(batch, entry)
            self._check_transaction_flag(batch, entry)

    def check_marker(self, batch: BatchInfo, marker: EndTransactionMarker) -> None:
        """Whether a transaction marker may be appended."""
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return
        self.check_epoch(batch, entry)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker for producer {batch.producer_id} comes from coordinator epoch {marker.coordinator_epoch}, "
                f"epoch {entry.coordinator_epoch} has written since",
            )

    @staticmethod
    def _check_transaction_flag(batch: BatchInfo, entry: ProducerEntry) -> None:
        if entry.transaction_start >= 0 and not batch.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id} sent a batch outside of its open transaction; "
                "commit or abort the transaction first",
            )

    def apply(self, batch: BatchInfo, now_ms: int) -> None:
        """A data batch with a producer id was appended at the offsets it carries."""
        entry = self._entry_at_epoch(batch, now_ms)
        last_offset = batch.last_offset
        if batch.base_sequence >= 0:
            batches = entry.batches
            batches.append(
                RememberedBatch(
                    batch.base_sequence, batch.last_sequence, batch.base_offset, last_offset, batch.max_timestamp
                )
            )
            if len(batches) > BATCHES_REMEMBERED:
                del batches[0]
        entry.last_offset = last_offset
        entry.timestamp = batch.max_timestamp
        if entry.transaction_start < 0 and batch.is_transactional:
            entry.transaction_start = batch.base_offset
            self.open[batch.base_offset] = batch.producer_id
            self._guards.pop(batch.producer_id, None)
        self.changed_at = last_offset

    def apply_marker(self, batch: BatchInfo, marker: EndTransactionMarker, now_ms: int) -> CompletedTransaction | None:
        """A transaction marker was appended; the transaction it ended, if one was open here."""
        entry = self._entry_at_epoch(batch, now_ms)
        entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)
        entry.timestamp = batch.max_timestamp
        entry.last_offset = batch.last_offset
        self._guards.pop(batch.producer_id, None)
        self.changed_at = batch.last_offset
        first = entry.transaction_start
        if first < 0:
            return None
        entry.transaction_start = NO_OFFSET
        self.open.pop(first, None)
        self._undecided[first] = batch.last_offset
        return CompletedTransaction(batch.producer_id, first, batch.last_offset, marker.committed)

    def _entry_at_epoch(self, batch: BatchInfo, now_ms: int) -> ProducerEntry:
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            if len(self.entries) >= PRODUCERS_MAX:
                self._evict()
            entry = ProducerEntry(batch.producer_id, batch.producer_epoch, now_ms)
            self.entries[batch.producer_id] = entry
        elif batch.producer_epoch > entry.epoch:
            entry.epoch = batch.producer_epoch
            entry.batches.clear()
        entry.seen_ms = now_ms
        return entry

    def _evict(self) -> None:
        idle = (entry for entry in self.entries.values() if entry.transaction_start < 0)
        for entry in heapq.nsmallest(EVICTED_AT_ONCE, idle, key=lambda entry: entry.seen_ms):
            del self.entries[entry.producer_id]

    def add_loaded(self, entry: ProducerEntry) -> None:
        """Take over an entry from a snapshot; open transactions must come in any order, then `sort_open`."""
        self.entries[entry.producer_id] = entry
        self.changed_at = max(self.changed_at, entry.last_offset)
        if entry.transaction_start >= 0:
            self.open[entry.transaction_start] = entry.producer_id

    def sort_open(self) -> None:
        self.open = dict(sorted(self.open.items()))

    def stable_end_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once a transaction is complete: the next open one, or just after the marker."""
        return next(iter(self.open), completed.marker_offset + 1)

    def first_unstable(self) -> int | None:
        """The first offset that is not decided yet, or None when all are."""
        first = next(iter(self.open), None)
        if self._undecided:
            earliest = min(self._undecided)
            return earliest if first is None else min(first, earliest)
        return first

    def high_watermark_moved(self, high_watermark: int) -> None:
        if self._undecided:
            self._undecided = {first: marker for first, marker in self._undecided.items() if marker >= high_watermark}

    def expire(self, now_ms: int, idle_ms: int) -> int:
        """Forget producers that have been silent for longer, except in a transaction; how many that were."""
        gone = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_start < 0 and now_ms - entry.seen_ms > idle_ms
        ]
        for producer_id in gone:
            del self.entries[producer_id]
        return len(gone)

    def begin_verification(self, producer_id: int, producer_epoch: int) -> int | None:
        """A token for asking the coordinator about a transaction, or None when one is open here already.

        The token loses its worth when a marker arrives meanwhile: what the coordinator said is then of the past.
        """
        entry = self.entries.get(producer_id)
        if entry is not None and entry.transaction_start >= 0 and entry.epoch == producer_epoch:
            return None
        token = self._guards.get(producer_id)
        if token is None:
            if len(self._guards) >= VERIFICATIONS_MAX:
                del self._guards[next(iter(self._guards))]
            token = self._guards[producer_id] = next(_tokens)
        return token

    def check_verification(self, producer_id: int, token: int) -> None:
        entry = self.entries.get(producer_id)
        if entry is not None and entry.transaction_start >= 0:
            return
        if self._guards.get(producer_id) != token:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"the transaction of producer {producer_id} ended while its batch was being verified",
            )


def _out_of_order(batch: BatchInfo, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id} (epoch {batch.producer_epoch}) sent sequence {batch.base_sequence}, but {why}",
    )
