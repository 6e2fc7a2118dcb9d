"""Mistakes that the simulation must find: each is a small, plausible mutation of the code, applied while a seed runs.

`BUGS` maps a name to what plants it and a seed that is known to find it. When the simulation changes, search new ones
with `python -m simulation.transactions.run --bugs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from chronik.coordination.loader import Status
from chronik.coordination.log_writer import LogWriter
from chronik.protocol.errors import ErrorCode
from chronik.storage.producers import ProducerStates
from chronik.transactions import state
from chronik.transactions.marker_delivery import MarkerDelivery
from chronik.transactions.marker_writer import MarkerWriter
from chronik.transactions.membership import Membership
from chronik.transactions.shard import Slot, TransactionShard
from chronik.transactions.state import Transaction
from simulation.swarm import PlantedBug


@contextmanager
def _marker_without_epoch_check() -> Iterator[None]:
    """Whatever marker arrives is written, however late it comes."""
    with (
        patch.object(MarkerWriter, "_is_written", staticmethod(lambda partition, marker: False)),
        patch.object(ProducerStates, "check_marker", lambda self, batch, marker: None),
    ):
        yield


@contextmanager
def _answered_before_the_decision_is_committed() -> Iterator[None]:
    """A change counts, and is answered, as soon as it is handed to the log."""
    original = LogWriter.add

    def add(self: LogWriter, records: Any, apply: Any, reply: Any, dropped: Any = None) -> None:
        original(self, records, None, None)
        apply(0)
        if reply is not None:
            reply(ErrorCode.NONE)

    with patch.object(LogWriter, "add", add):
        yield


@contextmanager
def _delayed_end_ends_the_next_transaction() -> Iterator[None]:
    original = state.end

    def end(txn: Transaction, producer_id: int, epoch: int, *rest: Any) -> Transaction:
        return original(txn, producer_id, txn.epoch if epoch < txn.epoch else epoch, *rest)

    with patch.object(state, "end", end):
        yield


@contextmanager
def _stable_offset_passes_an_open_transaction() -> Iterator[None]:
    with patch.object(ProducerStates, "first_unstable", lambda self: None):
        yield


@contextmanager
def _zombie_is_not_fenced() -> Iterator[None]:
    """A new instance gets the epoch of the old one."""
    original = state._bumped

    def bumped(txn: Transaction, expected: int | None) -> tuple[int, int]:
        return (txn.epoch, txn.last_epoch) if txn.epoch >= 0 else original(txn, expected)

    with patch.object(state, "_bumped", bumped):
        yield


@contextmanager
def _new_instance_leaves_the_open_transaction() -> Iterator[None]:
    """InitProducerId raises the epoch and forgets what was open."""

    def fence(txn: Transaction, now_ms: int) -> Transaction:
        return msgspec.structs.replace(
            txn, state=state.State.EMPTY, epoch=txn.epoch + 1, partitions=frozenset(), updated_ms=now_ms
        )

    with patch.object(state, "fence", fence):
        yield


@contextmanager
def _complete_without_all_markers() -> Iterator[None]:
    """Delivery gives up after one try."""

    async def deliver(self: MarkerDelivery, txn: Transaction, epoch: Callable[[], int]) -> None:
        await self._attempt(txn, set(txn.partitions), epoch())

    with patch.object(MarkerDelivery, "deliver", deliver):
        yield


@contextmanager
def _decisions_of_the_last_coordinator_are_left() -> Iterator[None]:
    def resume(self: TransactionShard) -> None:
        self.status = Status.ACTIVE

    with patch.object(TransactionShard, "resume", resume):
        yield


@contextmanager
def _join_without_the_log() -> Iterator[None]:
    """A partition has joined when the coordinator remembers it; the log is not told."""
    original = TransactionShard.change

    def change(self: TransactionShard, slot: Slot, to: Transaction) -> Any:
        if to.state is not state.State.ONGOING:
            return original(self, slot, to)
        slot.current, slot.is_written = to, True
        done: Any = self.partition._node.loop.create_future()  # type: ignore[attr-defined]
        done.set_result(ErrorCode.NONE)
        return done

    with patch.object(TransactionShard, "change", change):
        yield


@contextmanager
def _append_without_joining() -> Iterator[None]:
    async def ask(self: Membership, name: str, producer_id: int, epoch: int, places: Any, *, join: bool) -> Any:
        return dict.fromkeys(places, ErrorCode.NONE)

    with patch.object(Membership, "ask", ask):
        yield


@contextmanager
def _log_takes_old_epochs() -> Iterator[None]:
    """A batch that comes after the end of its transaction opens one that nobody ends."""
    with patch.object(ProducerStates, "check_epoch", lambda self, batch, entry=None: None):
        yield


_LATE = {"twice": 0.3, "late_s": 0.5, "seconds": 20.0}
_RESTLESS = {"crash_rate": 0.4, "move_rate": 1.5, "sync_s": 0.1, "seconds": 20.0}

_CROWDED = {"twice": 0.9, "late_s": 0.05, "latency_s": 0.03, "sync_s": 0.002, "data_partitions": 1, "seconds": 20.0}

BUGS: dict[str, PlantedBug] = {
    "marker without epoch check": PlantedBug(_marker_without_epoch_check, 0, _LATE),
    "answered before the decision is committed": PlantedBug(_answered_before_the_decision_is_committed, 0, _RESTLESS),
    "delayed end ends the next transaction": PlantedBug(_delayed_end_ends_the_next_transaction, 0, _LATE),
    "stable offset passes an open transaction": PlantedBug(_stable_offset_passes_an_open_transaction, 0),
    "zombie is not fenced": PlantedBug(_zombie_is_not_fenced, 0, {"new_instance_rate": 0.5}),
    "new instance leaves the open transaction": PlantedBug(
        _new_instance_leaves_the_open_transaction, 0, {"new_instance_rate": 0.5}
    ),
    "complete without all markers": PlantedBug(_complete_without_all_markers, 2, _RESTLESS),
    "decisions of the last coordinator are left": PlantedBug(_decisions_of_the_last_coordinator_are_left, 0, _RESTLESS),
    "join without the log": PlantedBug(_join_without_the_log, 0, _RESTLESS),
    "append without joining": PlantedBug(_append_without_joining, 0),
    "log takes old epochs": PlantedBug(_log_takes_old_epochs, 7, _CROWDED),
}
