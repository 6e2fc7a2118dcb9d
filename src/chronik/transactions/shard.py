"""All transactional ids of one partition of `__transaction_state`, while this node leads it.

A change counts when its record is committed, not before: until then the id has a pending change and nobody else may
change it. What a shard does not do: decide anything (`state`), or send markers (`marker_delivery`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog

from chronik.coordination.loader import Status
from chronik.coordination.log_writer import LogWriter
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.wire import DecodeError
from chronik.transactions.records import parsed, raw, tombstone
from chronik.transactions.state import PREPARED, State, Transaction

if TYPE_CHECKING:
    from chronik.replication.partition import Partition

log = structlog.get_logger()

TRANSACTIONAL_IDS_MAX = 100_000
"""Per partition of the topic; more are refused until old ones expire."""


class Slot:
    """One transactional id: what counts, what is being written, and who waits for a change."""

    __slots__ = ("_waiting", "current", "is_written", "pending")

    def __init__(self, current: Transaction, *, is_written: bool = False) -> None:
        self.current = current
        self.is_written = is_written
        self.pending = False
        self._waiting: list[asyncio.Future[None]] = []

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next change, or when the time is over."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(timeout_s):
                await waiting
        except TimeoutError:
            return
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def settle(self) -> None:
        """What was being written counts now, or never will."""
        self.pending = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


class TransactionShard:
    """The ids of one partition, and its log."""

    def __init__(
        self,
        partition: Partition,
        clock_ms: Callable[[], int],
        on_prepared: Callable[[TransactionShard, Slot], None],
    ) -> None:
        self.partition = partition
        self.status = Status.LOADING
        self.writer = LogWriter(partition, clock_ms, too_large=ErrorCode.UNKNOWN_SERVER_ERROR)
        self._on_prepared = on_prepared
        self._slots: dict[str, Slot] = {}
        self._damaged = 0

    def get(self, transactional_id: str) -> Slot | None:
        return self._slots.get(transactional_id)

    def slots(self) -> Iterator[Slot]:
        """The ids that have something in the log."""
        return (slot for slot in self._slots.values() if slot.is_written)

    def open(self, transactional_id: str, producer_id: int) -> Slot:
        """The slot of an id, made when there is none; it is in the log only with its first change."""
        slot = self._slots.get(transactional_id)
        if slot is None:
            if len(self._slots) >= TRANSACTIONAL_IDS_MAX:
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{TRANSACTIONAL_IDS_MAX} transactional ids are kept here; use fewer, or wait until some expire",
                )
            slot = self._slots[transactional_id] = Slot(Transaction(transactional_id, producer_id))
        return slot

    # --- changes -------------------------------------------------------------------------------------------------

    def change(self, slot: Slot, to: Transaction) -> asyncio.Future[ErrorCode]:
        """Writes a change; it counts when it is committed, whether or not somebody still waits for the answer."""
        assert not slot.pending and self.status is Status.ACTIVE
        slot.pending = True
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def committed(offset: int) -> None:
            slot.current = to
            slot.is_written = True
            slot.settle()
            if to.state in PREPARED:
                self._on_prepared(self, slot)

        def reply(error: ErrorCode) -> None:
            if not done.done():
                done.set_result(error)

        self.writer.add([raw(to)], committed, reply, slot.settle)
        return done

    def forget(self, slot: Slot) -> None:
        """Removes an id, in the log and then here."""
        slot.pending = True
        name = slot.current.transactional_id

        def committed(offset: int) -> None:
            if self._slots.get(name) is slot:
                del self._slots[name]
            slot.settle()

        self.writer.add([tombstone(name)], committed, None, slot.settle)

    def forget_unwritten(self) -> None:
        """Drops ids whose first write failed and that nobody came back for."""
        for name, slot in list(self._slots.items()):
            if not slot.is_written and not slot.pending:
                del self._slots[name]

    # --- the log -------------------------------------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None, log_offset: int, producer_id: int | None) -> None:
        """Takes in one record."""
        try:
            record = parsed(key, value)
        except (DecodeError, ValueError) as error:
            self._damaged += 1
            if self._damaged == 1:
                log.error(
                    "a record of a transaction cannot be read and is skipped",
                    partition=self.partition.index,
                    offset=log_offset,
                    reason=str(error),
                )
            return
        if record is None:
            return
        name, txn = record
        if txn is None or txn.state is State.DEAD:
            self._slots.pop(name, None)
        else:
            self._slots[name] = Slot(txn, is_written=True)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """There are none in this topic."""

    def loaded(self) -> dict[str, int]:
        return {"transactional_ids": len(self._slots)}

    def resume(self) -> None:
        """The log is read. What the last coordinator decided is carried out, again if need be."""
        self.status = Status.ACTIVE
        for slot in list(self._slots.values()):
            if slot.current.state in PREPARED:
                self._on_prepared(self, slot)

    def close(self) -> None:
        """Another node coordinates from now on."""
        self.status = Status.CLOSED
        self.writer.close()
        for slot in self._slots.values():
            slot.settle()
        self._slots.clear()
