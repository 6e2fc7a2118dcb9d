"""The life of a transactional id: every state, every transition, and the rules between them. Pure: no IO, no clock.

Rule 1   A transactional id has one producer id and one epoch at a time. Whoever comes with another producer id gets
         INVALID_PRODUCER_ID_MAPPING, whoever comes with another epoch is a zombie and gets PRODUCER_FENCED.
Rule 2   A new instance (InitProducerId) raises the epoch. If a transaction is open it is aborted first, under a raised
         epoch, so that its producer is fenced from that moment on; the instance asks again when that is done.
Rule 3   An instance that names its producer id and epoch (KIP-360) must be the current one, or the one that did not
         hear the answer to its last InitProducerId: that one gets the same answer again.
Rule 4   Epochs end at EPOCH_MAX. The last one that a producer is given is EPOCH_MAX - 1; then comes a new producer id.
Rule 5   The first partition opens a transaction. It ends once: PREPARE_COMMIT and PREPARE_ABORT are decisions that are
         never taken back, by nobody; nothing else begins before they are complete (CONCURRENT_TRANSACTIONS).
Rule 6   To ask for the same end again is no error: the answer is the same. To ask for the other is INVALID_TXN_STATE.
Rule 7   Under KIP-890 (client version 2) the end of a transaction raises the epoch: markers carry the raised one, and
         the producer is given it with the answer. What was sent for the last transaction carries an old epoch, so it
         can never touch the next. A producer that did not hear the answer comes with the epoch just below: that is the
         same request again. A fence therefore raises the epoch by two, so that it is never taken for that.
Rule 8   Clients before KIP-890 keep their epoch over many transactions. A delayed EndTxn or AddPartitionsToTxn of such
         a client can still reach its next transaction; only their upgrade helps.
Rule 9   An open transaction that is older than its timeout is aborted, and its producer fenced.
Rule 10  An id that was not used for long, and has nothing open, is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from chronik.protocol.errors import ErrorCode, KafkaError

Place = tuple[str, int]
"""Topic name and partition index."""

EPOCH_MAX = 0x7FFF
NO_EPOCH = -1
NO_PRODUCER_ID = -1
NO_TIME = -1
KIP_890 = 2
"""The client version (`transaction.version`) from which on the end of a transaction raises the epoch."""


class State(IntEnum):
    """Kafka's states, with the numbers they have in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that Kafka's tools show."""
        return self.name.title().replace("_", "")


PREVIOUS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.ONGOING: frozenset({State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    # A client of KIP-890 may abort a transaction that nothing was added to.
    State.PREPARE_ABORT: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.PREPARE_EPOCH_FENCE: frozenset(),  # Kafka's name for a fence on its way; here it is one with PREPARE_ABORT
}
"""Which states a state may follow."""

PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
IDLE = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
_COMPLETE_OF = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


class NeedsProducerId(Exception):
    """The epochs of the producer id are used up (Rule 4): ask again with a new one."""


class Transaction(msgspec.Struct, frozen=True):
    """What is known of a transactional id. A change makes a new value; the coordinator writes it before it counts.

    `last_epoch` is not in the log: after a change of coordinator, Rule 3 knows no retries.
    """

    transactional_id: str
    producer_id: int
    epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: State = State.EMPTY
    partitions: frozenset[Place] = frozenset()
    start_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= EPOCH_MAX - 1

    @property
    def commits(self) -> bool:
        """Whether a prepared transaction commits."""
        return self.state is State.PREPARE_COMMIT

    @property
    def told(self) -> tuple[int, int]:
        """Producer id and epoch that the producer goes on with."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.epoch


# --- InitProducerId ---------------------------------------------------------------------------------------------------


def init_producer(
    txn: Transaction, expected: tuple[int, int] | None, timeout_ms: int, new_producer_id: int | None, now_ms: int
) -> Transaction:
    """A producer begins (Rules 2 to 4). When the result is PREPARE_ABORT, it asks again once that is complete.

    `expected` is the producer id and epoch that it says it has. Raises NeedsProducerId, or KafkaError.
    """
    if txn.state in PREPARED:
        raise concurrent(txn)
    if expected is not None:
        _check_expected(txn, *expected)
    if txn.state is State.ONGOING:
        if expected is not None and expected[1] != txn.epoch:
            raise fenced(txn, expected[1])
        return fence(txn, now_ms)
    if txn.is_exhausted and (expected is None or expected[1] == txn.epoch):
        if new_producer_id is None:
            raise NeedsProducerId
        return _moved(
            txn,
            State.EMPTY,
            now_ms,
            producer_id=new_producer_id,
            previous_producer_id=txn.producer_id,
            epoch=0,
            last_epoch=NO_EPOCH if expected is None else txn.epoch,
            timeout_ms=timeout_ms,
        )
    epoch, last = _bumped(txn, None if expected is None else expected[1])
    return _moved(txn, State.EMPTY, now_ms, epoch=epoch, last_epoch=last, timeout_ms=timeout_ms)


def _check_expected(txn: Transaction, producer_id: int, epoch: int) -> None:
    """The id was forgotten meanwhile, or it is this one, or the one before that this one followed."""
    followed = producer_id == txn.previous_producer_id and epoch >= EPOCH_MAX - 1
    if txn.epoch != NO_EPOCH and producer_id != txn.producer_id and not followed:
        raise fenced(txn, epoch)


def _bumped(txn: Transaction, expected_epoch: int | None) -> tuple[int, int]:
    """The epoch to give out and the one before it."""
    if expected_epoch is None:
        return txn.epoch + 1, NO_EPOCH
    if txn.epoch in (NO_EPOCH, expected_epoch):
        return txn.epoch + 1, txn.epoch
    if expected_epoch == txn.last_epoch:
        return txn.epoch, txn.last_epoch
    raise fenced(txn, expected_epoch)


# --- partitions -------------------------------------------------------------------------------------------------------


def add_partitions(
    txn: Transaction, producer_id: int, epoch: int, places: Iterable[Place], client_version: int, now_ms: int
) -> Transaction:
    """Partitions join the transaction; the first opens it (Rule 5). The same object when they are in it already."""
    if txn.state in PREPARED:
        raise concurrent(txn)  # before anything else: the producer may be ahead of us, with the next producer id
    check_producer(txn, producer_id, epoch)
    joined = txn.partitions.union(places)
    if txn.state is State.ONGOING:
        return txn if joined == txn.partitions else _moved(txn, State.ONGOING, now_ms, partitions=joined)
    return _moved(
        txn,
        State.ONGOING,
        now_ms,
        partitions=joined,
        start_ms=now_ms,
        client_version=client_version,
    )


def verify_partitions(
    txn: Transaction, producer_id: int, epoch: int, places: Iterable[Place]
) -> dict[Place, ErrorCode]:
    """Whether partitions are in the open transaction; asked by their leaders for clients before KIP-890."""
    check_producer(txn, producer_id, epoch)
    if txn.state in PREPARED:
        raise concurrent(txn)
    return {place: ErrorCode.NONE if place in txn.partitions else ErrorCode.TRANSACTION_ABORTABLE for place in places}


# --- the end ----------------------------------------------------------------------------------------------------------


def end(
    txn: Transaction,
    producer_id: int,
    epoch: int,
    commit: bool,
    client_version: int,
    new_producer_id: int | None,
    now_ms: int,
) -> Transaction:
    """A producer ends its transaction. The same object when it is ended that way already (Rules 5 to 7)."""
    if client_version >= KIP_890:
        return _end_raising(txn, producer_id, epoch, commit, client_version, new_producer_id, now_ms)
    check_producer(txn, producer_id, epoch)
    if txn.state is State.ONGOING:
        decision = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        return _moved(txn, decision, now_ms, client_version=client_version)
    return _ended_already(txn, commit)


def _end_raising(
    txn: Transaction,
    producer_id: int,
    epoch: int,
    commit: bool,
    client_version: int,
    new_producer_id: int | None,
    now_ms: int,
) -> Transaction:
    followed = txn.previous_producer_id == producer_id and epoch == EPOCH_MAX - 1 and txn.epoch == 0
    raised = txn.producer_id == producer_id and txn.epoch == epoch + 1 and txn.client_version >= KIP_890
    handed_out = txn.epoch < EPOCH_MAX or txn.next_producer_id != NO_PRODUCER_ID
    if (raised and handed_out and txn.state not in (State.EMPTY, State.ONGOING)) or (
        followed and txn.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    ):
        return _ended_already(txn, commit)
    if txn.state in PREPARED and (producer_id, epoch) == txn.told:
        raise concurrent(txn)  # it is about the next transaction already
    check_producer(txn, producer_id, epoch)
    if txn.state in PREPARED:
        raise fenced(txn, epoch)  # an epoch that nobody was given
    if txn.state is not State.ONGOING and commit:
        raise invalid(txn, "there is no transaction to commit")
    if txn.is_exhausted and new_producer_id is None:
        raise NeedsProducerId
    return _moved(
        txn,
        State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
        now_ms,
        epoch=txn.epoch + 1,
        last_epoch=txn.epoch,
        next_producer_id=new_producer_id if txn.is_exhausted and new_producer_id is not None else NO_PRODUCER_ID,
        start_ms=txn.start_ms if txn.state is State.ONGOING else now_ms,
        client_version=client_version,
    )


def _ended_already(txn: Transaction, commit: bool) -> Transaction:
    wanted = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT) if commit else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
    if txn.state not in wanted:
        raise invalid(txn, f"it cannot be {'committed' if commit else 'aborted'}")
    if txn.state in PREPARED:
        raise concurrent(txn)
    return txn


def fence(txn: Transaction, now_ms: int) -> Transaction:
    """Aborts the open transaction under an epoch that its producer does not have (Rules 2, 7 and 9)."""
    raised = txn.epoch + (2 if txn.client_version >= KIP_890 else 1)
    return _moved(txn, State.PREPARE_ABORT, now_ms, epoch=min(raised, EPOCH_MAX), last_epoch=NO_EPOCH)


def complete(txn: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    producer_id, epoch = txn.told
    return _moved(
        txn,
        _COMPLETE_OF[txn.state],
        now_ms,
        partitions=frozenset(),
        producer_id=producer_id,
        epoch=epoch,
        previous_producer_id=txn.producer_id if producer_id != txn.producer_id else txn.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


# --- time -------------------------------------------------------------------------------------------------------------


def is_overdue(txn: Transaction, now_ms: int) -> bool:
    """Rule 9."""
    return txn.state is State.ONGOING and txn.start_ms + txn.timeout_ms < now_ms


def is_forgettable(txn: Transaction, expiration_ms: int, now_ms: int) -> bool:
    """Rule 10."""
    return txn.state in IDLE and txn.updated_ms + expiration_ms <= now_ms


# --- refusals ---------------------------------------------------------------------------------------------------------


def check_producer(txn: Transaction, producer_id: int, epoch: int) -> None:
    """Rule 1."""
    if txn.producer_id != producer_id:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"transactional id {txn.transactional_id} has producer id {txn.producer_id}, not {producer_id}",
        )
    if txn.epoch != epoch:
        raise fenced(txn, epoch)


def fenced(txn: Transaction, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"transactional id {txn.transactional_id} is at epoch {txn.epoch}, not {epoch}: a newer instance has taken "
        "over, or the transaction timed out; begin again with a new producer",
    )


def concurrent(txn: Transaction) -> KafkaError:
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the last transaction of {txn.transactional_id} is still being completed; try again",
    )


def invalid(txn: Transaction, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"transactional id {txn.transactional_id} is {txn.state.label}: {why}"
    )


def _moved(txn: Transaction, state: State, now_ms: int, **changes: object) -> Transaction:
    assert txn.state in PREVIOUS[state], f"{txn.state.label} cannot become {state.label}"
    if state is State.EMPTY:
        changes["start_ms"] = NO_TIME
    made: Transaction = msgspec.structs.replace(txn, state=state, updated_ms=now_ms, **changes)
    return made
