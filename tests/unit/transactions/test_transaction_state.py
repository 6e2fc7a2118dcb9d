"""The rules of a transactional id, one by one. The numbers are those of `chronik.transactions.state`."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.transactions import state
from chronik.transactions.state import (
    EPOCH_MAX,
    KIP_890,
    NO_EPOCH,
    PREVIOUS,
    NeedsProducerId,
    State,
    Transaction,
)

P0, P1 = ("orders", 0), ("orders", 1)
OLD = 0
TIMEOUT_MS = 60_000


def begun(epoch: int = 0, *, producer_id: int = 7, now_ms: int = 0) -> Transaction:
    return Transaction("t", producer_id, epoch=epoch, timeout_ms=TIMEOUT_MS, updated_ms=now_ms)


def opened(epoch: int = 0, version: int = KIP_890) -> Transaction:
    return state.add_partitions(begun(epoch), 7, epoch, [P0], version, 100)


def prepared(version: int = KIP_890, *, commit: bool = True) -> Transaction:
    return state.end(opened(0, version), 7, 0, commit, version, None, 200)


def code_of(call: object, *args: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*args)  # type: ignore[operator]
    return caught.value.code


# --- Rule 1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [OLD, KIP_890])
def test_another_producer_id_does_not_belong_to_the_id(version: int) -> None:
    assert code_of(state.add_partitions, opened(), 8, 0, [P1], version, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert code_of(state.end, opened(), 8, 0, True, version, None, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("epoch", [3, 5])
@pytest.mark.parametrize("version", [OLD, KIP_890])
def test_another_epoch_is_fenced(version: int, epoch: int) -> None:
    txn = opened(4)
    assert code_of(state.add_partitions, txn, 7, epoch, [P1], version, 0) is ErrorCode.PRODUCER_FENCED
    assert code_of(state.end, txn, 7, epoch, True, version, None, 0) is ErrorCode.PRODUCER_FENCED
    assert code_of(state.verify_partitions, txn, 7, epoch, [P0]) is ErrorCode.PRODUCER_FENCED


# --- Rules 2 to 4 -----------------------------------------------------------------------------------------------------


def test_the_first_instance_gets_epoch_0_and_each_next_one_the_next() -> None:
    first = state.init_producer(Transaction("t", 7), None, TIMEOUT_MS, None, 5)
    assert (first.told, first.state, first.timeout_ms) == ((7, 0), State.EMPTY, TIMEOUT_MS)
    assert state.init_producer(first, None, TIMEOUT_MS, None, 6).told == (7, 1)


@pytest.mark.parametrize(("version", "raised"), [(OLD, 5), (KIP_890, 6)])
def test_an_open_transaction_is_aborted_under_an_epoch_its_producer_lacks(version: int, raised: int) -> None:
    fence = state.init_producer(opened(4, version), None, TIMEOUT_MS, None, 5)
    assert (fence.state, fence.epoch, fence.partitions) == (State.PREPARE_ABORT, raised, frozenset({P0}))
    assert code_of(state.init_producer, fence, None, TIMEOUT_MS, None, 6) is ErrorCode.CONCURRENT_TRANSACTIONS
    done = state.complete(fence, 7)
    assert code_of(state.end, done, 7, 4, False, version, None, 8) is ErrorCode.PRODUCER_FENCED
    assert state.init_producer(done, None, TIMEOUT_MS, None, 8).told == (7, raised + 1)


def test_an_instance_that_names_its_epoch_must_be_the_current_one() -> None:
    txn = begun(4)
    assert state.init_producer(txn, (7, 4), TIMEOUT_MS, None, 5).told == (7, 5)
    assert code_of(state.init_producer, txn, (7, 3), TIMEOUT_MS, None, 5) is ErrorCode.PRODUCER_FENCED
    assert code_of(state.init_producer, txn, (8, 4), TIMEOUT_MS, None, 5) is ErrorCode.PRODUCER_FENCED


def test_an_instance_that_did_not_hear_the_answer_gets_it_again() -> None:
    bumped = state.init_producer(begun(4), (7, 4), TIMEOUT_MS, None, 5)
    assert state.init_producer(bumped, (7, 4), TIMEOUT_MS, None, 6).told == (7, 5)


def test_a_zombie_that_names_an_old_epoch_does_not_abort_the_transaction_of_its_successor() -> None:
    assert code_of(state.init_producer, opened(4), (7, 3), TIMEOUT_MS, None, 5) is ErrorCode.PRODUCER_FENCED


def test_an_id_that_was_forgotten_begins_again_whatever_it_names() -> None:
    assert state.init_producer(Transaction("t", 9), (7, 4), TIMEOUT_MS, None, 5).told == (9, 0)


def test_used_up_epochs_are_followed_by_a_new_producer_id() -> None:
    last = begun(EPOCH_MAX - 1)
    with pytest.raises(NeedsProducerId):
        state.init_producer(last, None, TIMEOUT_MS, None, 5)
    rotated = state.init_producer(last, (7, EPOCH_MAX - 1), TIMEOUT_MS, 99, 5)
    assert (rotated.told, rotated.previous_producer_id) == ((99, 0), 7)
    assert state.init_producer(rotated, (7, EPOCH_MAX - 1), TIMEOUT_MS, None, 6).told == (99, 0)


def test_the_fence_of_the_last_epoch_does_not_overflow_and_is_handed_to_nobody() -> None:
    fence = state.fence(opened(EPOCH_MAX - 1), 5)
    assert fence.epoch == EPOCH_MAX
    done = state.complete(fence, 6)
    assert code_of(state.end, done, 7, EPOCH_MAX - 1, False, KIP_890, None, 7) is ErrorCode.PRODUCER_FENCED
    assert state.init_producer(done, None, TIMEOUT_MS, 99, 8).told == (99, 0)


# --- Rules 5 and 6 ----------------------------------------------------------------------------------------------------


def test_the_first_partition_opens_a_transaction_and_more_join_it() -> None:
    txn = state.add_partitions(begun(), 7, 0, [P0], OLD, 100)
    assert (txn.state, txn.start_ms) == (State.ONGOING, 100)
    more = state.add_partitions(txn, 7, 0, [P1], OLD, 150)
    assert (more.partitions, more.start_ms) == (frozenset({P0, P1}), 100)
    assert state.add_partitions(more, 7, 0, [P0], OLD, 160) is more


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [OLD, KIP_890])
def test_nothing_begins_before_the_last_transaction_is_complete(version: int, commit: bool) -> None:
    txn = prepared(version, commit=commit)
    producer_id, epoch = txn.told
    for call, args in (
        (state.add_partitions, (producer_id, epoch, [P1], version, 0)),
        (state.verify_partitions, (producer_id, epoch, [P0])),
        (state.init_producer, (None, TIMEOUT_MS, None, 0)),
    ):
        assert code_of(call, txn, *args) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [OLD, KIP_890])
def test_the_same_end_again_is_no_error_and_the_other_is(version: int, commit: bool) -> None:
    deciding = prepared(version, commit=commit)
    assert code_of(state.end, deciding, 7, 0, commit, version, None, 0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert code_of(state.end, deciding, 7, 0, not commit, version, None, 0) is ErrorCode.INVALID_TXN_STATE
    done = state.complete(deciding, 300)
    assert state.end(done, 7, 0, commit, version, None, 0) is done
    assert code_of(state.end, done, 7, 0, not commit, version, None, 0) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", [OLD, KIP_890])
def test_a_transaction_that_was_not_opened_cannot_be_committed(version: int) -> None:
    assert code_of(state.end, begun(), 7, 0, True, version, None, 0) is ErrorCode.INVALID_TXN_STATE


def test_every_state_follows_only_those_in_the_table() -> None:
    for before in State:
        for after in State:
            txn = msgspec.structs.replace(begun(), state=before)
            if before in PREVIOUS[after]:
                assert state._moved(txn, after, 1).state is after
            else:
                with pytest.raises(AssertionError):
                    state._moved(txn, after, 1)


# --- Rules 7 and 8 ----------------------------------------------------------------------------------------------------


def test_the_end_of_a_transaction_raises_the_epoch_for_its_markers_and_its_producer() -> None:
    deciding = prepared()
    assert (deciding.epoch, deciding.told) == (1, (7, 1))
    assert state.complete(deciding, 5).told == (7, 1)


def test_a_delayed_end_never_touches_the_next_transaction() -> None:
    following = state.add_partitions(state.complete(prepared(), 300), 7, 1, [P1], KIP_890, 400)
    for commit in (True, False):
        assert code_of(state.end, following, 7, 0, commit, KIP_890, None, 500) is ErrorCode.PRODUCER_FENCED


def test_a_delayed_partition_never_joins_the_next_transaction() -> None:
    done = state.complete(prepared(), 300)
    assert code_of(state.add_partitions, done, 7, 0, [P0], KIP_890, 400) is ErrorCode.PRODUCER_FENCED


def test_a_client_may_abort_before_anything_joined() -> None:
    aborted = state.end(begun(4), 7, 4, False, KIP_890, None, 5)
    assert (aborted.state, aborted.told, aborted.partitions) == (State.PREPARE_ABORT, (7, 5), frozenset())


def test_an_abort_of_the_next_transaction_waits_for_the_last_one() -> None:
    assert code_of(state.end, prepared(), 7, 1, False, KIP_890, None, 0) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_last_epoch_ends_with_a_new_producer_id_and_retries_are_answered_alike() -> None:
    last = opened(EPOCH_MAX - 1)
    with pytest.raises(NeedsProducerId):
        state.end(last, 7, EPOCH_MAX - 1, True, KIP_890, None, 5)
    deciding = state.end(last, 7, EPOCH_MAX - 1, True, KIP_890, 99, 5)
    assert (deciding.producer_id, deciding.epoch, deciding.told) == (7, EPOCH_MAX, (99, 0))
    again = (7, EPOCH_MAX - 1, True, KIP_890, None, 6)
    assert code_of(state.end, deciding, *again) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert code_of(state.end, deciding, 99, 0, False, KIP_890, None, 6) is ErrorCode.CONCURRENT_TRANSACTIONS
    done = state.complete(deciding, 7)
    assert (done.told, done.previous_producer_id) == ((99, 0), 7)
    assert state.end(done, *again) is done


def test_older_clients_keep_their_epoch() -> None:
    assert state.complete(prepared(OLD), 5).told == (7, 0)


def test_a_client_that_joins_by_writing_but_ends_the_old_way_keeps_its_epoch_in_its_markers() -> None:
    """Markers of version 2 must be above the epoch of the records: this one must not claim to be of version 2."""
    deciding = state.end(opened(0, KIP_890), 7, 0, True, OLD, None, 5)
    assert (deciding.epoch, deciding.client_version) == (0, OLD)


# --- Rules 9 and 10 ---------------------------------------------------------------------------------------------------


def test_a_transaction_is_overdue_after_its_timeout_and_only_while_it_is_open() -> None:
    txn = opened()
    assert not state.is_overdue(txn, 100 + TIMEOUT_MS)
    assert state.is_overdue(txn, 101 + TIMEOUT_MS)
    assert not state.is_overdue(prepared(), 10 * TIMEOUT_MS)
    assert not state.is_overdue(begun(), 10 * TIMEOUT_MS)


def test_only_idle_ids_are_forgotten() -> None:
    assert state.is_forgettable(begun(now_ms=100), 1000, 1100)
    assert not state.is_forgettable(begun(now_ms=101), 1000, 1100)
    assert not state.is_forgettable(opened(), 1000, 10_000)
    assert not state.is_forgettable(prepared(), 1000, 10_000)


def test_verification_names_the_partitions_that_are_not_in_the_transaction() -> None:
    assert state.verify_partitions(opened(), 7, 0, [P0, P1]) == {
        P0: ErrorCode.NONE,
        P1: ErrorCode.TRANSACTION_ABORTABLE,
    }


# --- any history ------------------------------------------------------------------------------------------------------


@dataclass
class Instance:
    """A producer of KIP-890: what it believes to have."""

    producer_id: int
    epoch: int
    sent: list[tuple[int, int, bool]] = field(default_factory=list)


class AnyHistory(RuleBasedStateMachine):
    """Instances come and go, retry and lag; a decision is taken by the owner of the epoch, or by a fence."""

    def __init__(self) -> None:
        super().__init__()
        self.txn = Transaction("t", 1)
        self.instances: list[Instance] = []
        self.ids = 1
        self.number = 0
        self.decided: dict[int, State] = {}
        self.handed_out: set[tuple[int, int]] = set()

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def step(self, wanted: Transaction) -> None:
        before, self.txn = self.txn, wanted
        if wanted is before:
            return
        assert before.state in PREVIOUS[wanted.state]
        assert (wanted.producer_id, wanted.epoch) >= (before.producer_id, before.epoch) or before.epoch == NO_EPOCH
        if before.state is not State.ONGOING and wanted.state is State.ONGOING:
            self.number += 1
        if wanted.state in state.PREPARED and before.state is State.ONGOING:
            assert self.number not in self.decided, "a transaction was decided twice"
            self.decided[self.number] = wanted.state

    @initialize(epoch=st.sampled_from([NO_EPOCH, EPOCH_MAX - 4]))
    def begin(self, epoch: int) -> None:
        self.txn = msgspec.structs.replace(self.txn, epoch=epoch)

    @rule(expected=st.booleans(), which=st.integers(0, 5))
    def init(self, expected: bool, which: int) -> None:
        named = None
        if expected and self.instances:
            instance = self.instances[which % len(self.instances)]
            named = (instance.producer_id, instance.epoch)
        try:
            self.step(state.init_producer(self.txn, named, 1000, self.new_id(), 0))
        except KafkaError:
            return
        if self.txn.state is State.EMPTY:
            self.instances = [*self.instances[-3:], Instance(*self.txn.told)]

    @rule(which=st.integers(0, 5), place=st.sampled_from([P0, P1]))
    def add(self, which: int, place: tuple[str, int]) -> None:
        if self.instances:
            instance = self.instances[which % len(self.instances)]
            try:
                self.step(state.add_partitions(self.txn, instance.producer_id, instance.epoch, [place], KIP_890, 0))
            except KafkaError:
                return
            assert (instance.producer_id, instance.epoch) == (self.txn.producer_id, self.txn.epoch)

    @rule(which=st.integers(0, 5), commit=st.booleans())
    def end(self, which: int, commit: bool) -> None:
        if self.instances:
            instance = self.instances[which % len(self.instances)]
            request = (instance.producer_id, instance.epoch, commit)
            instance.sent.append(request)
            try:
                self.step(state.end(self.txn, *request, KIP_890, self.new_id(), 0))
            except KafkaError:
                return
            instance.producer_id, instance.epoch = self.txn.told

    @rule(which=st.integers(0, 5), position=st.integers(0, 20))
    def delayed_end(self, which: int, position: int) -> None:
        """A request from long ago arrives: it may repeat an answer, and change nothing."""
        sent = [request for instance in self.instances for request in instance.sent]
        current = {(i.producer_id, i.epoch) for i in self.instances}
        if sent:
            request = sent[position % len(sent)]
            if request[:2] in current:
                return
            before = self.txn
            try:
                after = state.end(self.txn, *request, KIP_890, self.new_id(), 0)
            except KafkaError:
                return
            assert after is before

    @rule()
    def time_out(self) -> None:
        if self.txn.state is State.ONGOING:
            self.step(state.fence(self.txn, 0))

    @rule()
    def complete(self) -> None:
        if self.txn.state in state.PREPARED:
            self.step(state.complete(self.txn, 0))

    @invariant()
    def epochs_stay_in_range(self) -> None:
        assert NO_EPOCH <= self.txn.epoch <= EPOCH_MAX
        assert all(instance.epoch < EPOCH_MAX for instance in self.instances)


AnyHistory.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestAnyHistory = AnyHistory.TestCase
