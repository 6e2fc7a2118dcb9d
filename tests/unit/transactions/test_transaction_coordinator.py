"""A coordinator and the leaders it writes to, on simulated nodes without faults: time, leadership, markers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic
from chronik.transactions.state import EPOCH_MAX, KIP_890, State
from harness.quiet import quiet_logs
from simulation.transactions.model import Info, TrueLog
from simulation.transactions.producers import produce
from simulation.transactions.world import DATA, SETTINGS, STATE, SimulatedNode, World

CALM = {
    "state_partitions": 1,
    "data_partitions": 2,
    "ids": 1,
    "latency_s": 0.001,
    "sync_s": 0.01,
    "lost": 0.0,
    "twice": 0.0,
    "timeout_ms": 5000,
}
P0, P1 = (DATA, 0), (DATA, 1)
OLD = 0


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet_logs():
        yield


class Pair:
    """Node 1 coordinates, node 2 leads the data."""

    def __init__(self) -> None:
        self.world = World(1, CALM)
        self.world.calm = True
        for place in ((STATE, 0), P0, P1):
            self.world.logs[place] = TrueLog(self.world, place, 1 if place[0] == STATE else 2)
        for node_id in (1, 2):
            self.world.nodes[node_id] = SimulatedNode(self.world, node_id)

    def node(self, node_id: int) -> SimulatedNode:
        return self.world.nodes[node_id]

    def ask(self, what: Callable[[SimulatedNode], Awaitable[Any]], node_id: int = 1) -> Any:
        """Runs a call on a node to its end."""
        task = self.start(what, node_id)
        self.world.run_until(self.world.now + 30, task.done)
        return task.result()

    def start(self, what: Callable[[SimulatedNode], Awaitable[Any]], node_id: int = 1) -> Any:
        node = self.node(node_id)

        async def run() -> Any:
            try:
                return await what(node)
            except KafkaError as error:
                return error.code

        return node.loop.create_task(run())

    def pass_time(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    # what producers do

    def init(self, timeout_ms: int = 5000) -> Any:
        return self.ask(lambda node: node.coordinator.init_producer_id("t", timeout_ms))

    def write(self, producer: tuple[int, int], place: tuple[str, int] = P0, value: int = 1) -> Any:
        return self.ask(lambda node: produce(node, "t", *producer, place, value, 0), 2)

    def end(self, producer: tuple[int, int], *, commit: bool, version: int = KIP_890) -> Any:
        return self.ask(lambda node: node.coordinator.end("t", *producer, commit, version))

    def marker(self, producer: tuple[int, int], *, coordinator_epoch: int = 0, version: int = KIP_890) -> ErrorCode:
        marker = WritableTxnMarker(
            producer_id=producer[0],
            producer_epoch=producer[1],
            transaction_result=True,
            coordinator_epoch=coordinator_epoch,
            transaction_version=version,
            topics=[WritableTxnMarkerTopic(name=DATA, partition_indexes=[0])],
        )

        async def write(node: SimulatedNode) -> Any:
            (result,) = await node.coordinator.markers.write([marker])
            return ErrorCode(result.topics[0].partitions[0].error_code)

        code: ErrorCode = self.ask(write, 2)
        return code

    def state(self) -> State:
        return self.node(1).coordinator.describe("t").state

    def markers_in(self, place: tuple[str, int]) -> int:
        return sum(batch.is_control for batch, _ in self.world.logs[place].batches)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_transaction_goes_its_way(pair: Pair) -> None:
    producer = pair.init()
    assert pair.write(producer, P0) == 0 and pair.write(producer, P1) == 0
    assert pair.state() is State.ONGOING
    assert pair.end(producer, commit=True) == (producer[0], producer[1] + 1)
    pair.pass_time(1)
    assert pair.state() is State.COMPLETE_COMMIT
    assert (pair.markers_in(P0), pair.markers_in(P1)) == (1, 1)


def test_the_answer_waits_for_the_decision_to_be_committed(pair: Pair) -> None:
    producer = pair.init()
    pair.write(producer)
    before = pair.world.logs[STATE, 0].high_watermark
    pair.end(producer, commit=True)
    assert pair.world.logs[STATE, 0].high_watermark > before


def test_who_comes_too_early_waits_for_the_transaction_before(pair: Pair) -> None:
    producer = pair.init()
    pair.write(producer)
    following = pair.end(producer, commit=True)
    assert pair.state() is State.PREPARE_COMMIT
    assert pair.write(following, value=2) == 2  # not CONCURRENT_TRANSACTIONS: after the batch and its marker


def test_who_waits_too_long_is_told_to_come_again(pair: Pair) -> None:
    producer = pair.init()
    pair.write(producer)
    following = pair.end(producer, commit=True)
    pair.world.nodes.pop(2)  # the marker finds nobody
    code = pair.ask(lambda node: node.coordinator.add_partitions("t", *following, [P1], KIP_890))
    assert code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_an_abandoned_transaction_is_aborted_after_its_timeout(pair: Pair) -> None:
    producer = pair.init(timeout_ms=2000)
    pair.write(producer)
    pair.pass_time(1.5)
    assert pair.state() is State.ONGOING
    pair.pass_time(2)
    assert pair.state() is State.COMPLETE_ABORT
    assert pair.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED
    assert pair.world.logs[P0].last_stable_offset == pair.world.logs[P0].end


def test_an_id_that_was_not_used_for_long_is_forgotten_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "transactional.id.expiration.ms", 2000)
    monkeypatch.setitem(SETTINGS, "transaction.remove.expired.transaction.cleanup.interval.ms", 500)
    pair = Pair()
    producer = pair.init()
    pair.pass_time(5)
    assert pair.end(producer, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    move(pair, 2)
    with pytest.raises(KafkaError, match="there is no transactional id"):
        pair.node(2).coordinator.describe("t")


def move(pair: Pair, leader: int) -> None:
    """Leadership of the transactions goes to another node, with all that is in the log."""
    log = pair.world.logs[STATE, 0]
    log.move(leader, log.end)
    for node in pair.world.nodes.values():
        node.loop.inside(node.learn, (STATE, 0), Info(log.leader, log.epoch))
    pair.pass_time(1)


def test_the_next_coordinator_knows_what_the_last_one_knew(pair: Pair) -> None:
    producer = pair.init()
    pair.write(producer)
    move(pair, 2)
    assert pair.end(producer, commit=True) is ErrorCode.NOT_COORDINATOR
    told = pair.ask(lambda node: node.coordinator.end("t", *producer, True, KIP_890), 2)
    assert told == (producer[0], producer[1] + 1)


def test_the_next_coordinator_finishes_what_the_last_one_decided(pair: Pair) -> None:
    producer = pair.init()
    pair.write(producer)
    leads_data = pair.world.nodes.pop(2)  # no marker gets through
    pair.end(producer, commit=True)
    pair.world.nodes[2] = leads_data
    move(pair, 2)
    assert pair.markers_in(P0) == 1
    assert pair.node(2).coordinator.describe("t").state is State.COMPLETE_COMMIT


def test_a_coordinator_that_loads_says_so(pair: Pair) -> None:
    pair.init()
    log = pair.world.logs[STATE, 0]
    log.move(2, log.end)
    node = pair.node(2)
    node.loop.inside(node.learn, (STATE, 0), Info(log.leader, log.epoch))
    assert node.coordinator.shards.are_loading
    with pytest.raises(KafkaError) as caught:
        node.coordinator.describe("t")
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    pair.pass_time(1)
    assert node.coordinator.describe("t").state is State.EMPTY


def test_used_up_epochs_are_followed_by_a_new_producer_id(pair: Pair) -> None:
    producer_id, _ = pair.init()
    slot = next(pair.node(1).coordinator.active()).get("t")
    assert slot is not None
    slot.current = type(slot.current)("t", producer_id, epoch=EPOCH_MAX - 1, timeout_ms=5000, updated_ms=1)
    last = (producer_id, EPOCH_MAX - 1)
    assert pair.write(last) == 0
    following = pair.end(last, commit=True)
    assert following[0] != producer_id and following[1] == 0
    assert pair.write(following, value=2) == 2
    assert pair.end(last, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_same_marker_again_is_written_once(pair: Pair) -> None:
    producer_id, epoch = pair.init()
    pair.write((producer_id, epoch))
    assert pair.marker((producer_id, epoch + 1)) is ErrorCode.NONE
    assert pair.marker((producer_id, epoch + 1)) is ErrorCode.NONE
    assert pair.markers_in(P0) == 1


def test_a_marker_that_comes_when_the_producer_has_gone_on_is_refused(pair: Pair) -> None:
    producer = pair.init()
    pair.write(producer)
    following = pair.end(producer, commit=True)
    pair.write(following, value=2)
    assert pair.marker(following) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert pair.markers_in(P0) == 1


def test_markers_of_a_coordinator_that_was_replaced_are_refused(pair: Pair) -> None:
    """What protects older clients, whose epoch stays the same."""
    producer = pair.init()
    assert pair.marker(producer, coordinator_epoch=4, version=OLD) is ErrorCode.NONE
    assert pair.marker(producer, coordinator_epoch=3, version=OLD) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert pair.marker(producer, coordinator_epoch=4, version=OLD) is ErrorCode.NONE


def test_a_transaction_without_partitions_ends_without_markers(pair: Pair) -> None:
    producer = pair.init()
    assert pair.end(producer, commit=False) == (producer[0], producer[1] + 1)
    pair.pass_time(0.5)
    assert pair.state() is State.COMPLETE_ABORT
    assert pair.markers_in(P0) == 0
