"""Plans that move replicas, what carrying them out looks like, and nodes that come and go on request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.cluster.membership import MembershipKeeper, replicas_on
from chronik.cluster.move_throttle import RATE, held_to
from chronik.cluster.moves import BEGIN_ATTEMPTS, MovesStalled, Progress, carry_out
from chronik.cluster.rebalance import Plan, plan_drain, plan_rebalance
from chronik.cluster.settings import Timings
from chronik.metadata import commands as c
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import BrokerInfo, BrokerStatus, NodeState, PartitionInfo, ResourceType, Result, TopicInfo
from chronik.metadata.store import MetadataStore
from harness.metadata_double import bring_up, local_store


def image_of(assignment: list[tuple[int, ...]], brokers: int, racks: int = 0) -> MetadataImage:
    image = MetadataImage()
    for node_id in range(1, brokers + 1):
        rack = f"rack-{node_id % racks}" if racks else None
        image.brokers[node_id] = BrokerInfo(
            node_id, "h", 1, "h", 1, rack, f"m{node_id}", bytes(16), bytes(16), 1, BrokerStatus.ONLINE, {}
        )
    partitions = tuple(PartitionInfo(replicas[0], 0, 0, replicas, replicas) for replicas in assignment)
    image.put_topic(TopicInfo("t", b"t" * 16, partitions), 1)
    return image


def after(image: MetadataImage, plan: Plan) -> list[tuple[int, ...]]:
    replicas = [partition.replicas for partition in image.topics["t"].partitions]
    for move in plan.moves:
        assert move.before == replicas[move.partition]
        replicas[move.partition] = move.after
    return replicas


def spread(counts: Counter[int], brokers: int) -> int:
    numbers = [counts[node_id] for node_id in range(1, brokers + 1)]
    return max(numbers) - min(numbers)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 6), st.data())
def test_a_rebalance_evens_out_replicas_and_leaders_and_keeps_every_replication_factor(
    brokers: int, data: st.DataObject
) -> None:
    members = st.lists(st.integers(1, brokers), unique=True, min_size=1, max_size=3).map(tuple)
    assignment = data.draw(st.lists(members, min_size=1, max_size=30))
    image = image_of(assignment, brokers)
    plan = plan_rebalance(image)
    result = after(image, plan)
    assert [len(set(replicas)) for replicas in result] == [len(replicas) for replicas in assignment]
    assert spread(Counter(replica for replicas in result for replica in replicas), brokers) <= 1
    assert plan_rebalance(image_of(result, brokers)).moves == [], "a balanced cluster is left alone"


def test_leaders_are_evened_out_without_copying_anything() -> None:
    image = image_of([(1, 2, 3)] * 9, 3)
    plan = plan_rebalance(image)
    assert all(move.copies == 0 for move in plan.moves)
    assert Counter(replicas[0] for replicas in after(image, plan)) == {1: 3, 2: 3, 3: 3}


def test_a_surplus_of_leaders_is_passed_on_over_a_broker_in_between() -> None:
    image = image_of([(1, 2), (1, 2), (1, 2), (2, 3), (2, 3), (3,)], 3)
    leaders = Counter(replicas[0] for replicas in after(image, plan_rebalance(image)))
    assert leaders == {1: 2, 2: 2, 3: 2}


def test_a_new_broker_gets_its_share_with_as_few_copies_as_possible() -> None:
    image = image_of([(1 + n % 2, 1 + (n + 1) % 2) for n in range(30)], 3)
    plan = plan_rebalance(image)
    assert spread(Counter(replica for replicas in after(image, plan) for replica in replicas), 3) <= 1
    assert sum(move.copies for move in plan.moves) == 20


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 5), st.data())
def test_a_drain_leaves_nothing_that_can_go_and_says_what_cannot(brokers: int, data: st.DataObject) -> None:
    members = st.lists(st.integers(1, brokers), unique=True, min_size=1, max_size=3).map(tuple)
    image = image_of(data.draw(st.lists(members, min_size=1, max_size=20)), brokers)
    plan = plan_drain(image, 1)
    left = [number for number, replicas in enumerate(after(image, plan)) if 1 in replicas]
    assert left == [number for _, number, _ in plan.stuck]
    assert all(len(image.topics["t"].partitions[number].replicas) == brokers for number in left)


def test_a_drain_goes_to_another_rack_if_there_is_one() -> None:
    image = image_of([(1, 2)] * 6, 4, racks=2)
    for replicas in after(image, plan_drain(image, 1)):
        assert replicas[0] == 3, "broker 4 is in the rack of broker 2"


def test_a_rebalance_puts_no_second_replica_on_a_host_that_has_one() -> None:
    """Brokers 1 and 2 share a machine, and 2 is new: it takes what 1 has not."""
    image = image_of([(1, 3), (1, 3), (3, 4), (4, 3), (3, 4), (4, 3)], 4)
    image.brokers[2] = msgspec.structs.replace(image.brokers[2], host_name=image.brokers[1].host_name)
    result = after(image, plan_rebalance(image))
    assert any(2 in replicas for replicas in result)
    assert not any({1, 2} <= set(replicas) for replicas in result), result


TOPIC = b"t" * 16


async def cluster_with(partitions: int) -> MetadataStore:
    store = local_store()
    await bring_up(store, 1, 2, 3)
    await store.propose(c.CreateTopic("t", TOPIC, ((1, 2),) * partitions))
    return store


async def catch_up(store: MetadataStore) -> None:
    """What leaders and the controller do, one partition at a time."""
    while True:
        await asyncio.sleep(0)
        for topic, number, state in list(store.image.each_partition()):
            if state.reassigning:
                change = c.IsrChange(topic.topic_id, number, state.leader_epoch, state.partition_epoch, state.replicas)
                await store.propose(c.UpdateIsr(state.leader, [change]))
                done = c.FinishedAssignment(topic.topic_id, number, state.partition_epoch + 1)
                await store.propose(c.FinishAssignment([done]))


async def test_a_plan_is_carried_out_a_few_at_a_time_with_progress() -> None:
    store = await cluster_with(10)
    most = 0

    def watch(delta: object) -> None:
        nonlocal most
        most = max(most, sum(state.reassigning for _, _, state in store.image.each_partition()))

    store.subscribe(watch)
    seen: list[Progress] = []
    helper = asyncio.create_task(catch_up(store))
    result = await carry_out(store, plan_drain(store.image, 1).moves, at_once=3, progress=seen.append)
    helper.cancel()
    assert result == Progress(10, 0, 10) == seen[-1]
    assert most == 3
    assert replicas_on(store.image, 1) == 0


def throttles(store: MetadataStore) -> dict[str, str]:
    """Every throttle setting there is, by the name of its broker or topic."""
    image = store.image
    return {
        name: value
        for resource, names in ((ResourceType.BROKER, map(str, image.brokers)), (ResourceType.TOPIC, image.topics))
        for name in names
        for setting, value in image.config_overrides(resource, name).items()
        if "throttled" in setting
    }


async def test_a_plan_with_a_rate_sets_it_and_puts_back_what_was_there() -> None:
    store = await cluster_with(2)
    own = c.ConfigChange(c.ConfigOperation.SET, RATE, "77")
    await store.propose(c.SetConfig(ResourceType.BROKER, "2", [own]))
    moves = plan_drain(store.image, 1).moves
    async with held_to(store, moves, None):
        assert throttles(store) == {"2": "77"}
    async with held_to(store, moves, 1000):
        assert throttles(store) == {"1": "1000", "2": "1000", "3": "1000", "t": "*"}
    assert throttles(store) == {"2": "77"}


async def test_the_rate_of_a_plan_that_fails_is_taken_back() -> None:
    store = await cluster_with(1)
    with pytest.raises(MovesStalled):
        async with held_to(store, plan_drain(store.image, 1).moves, 1000):
            await carry_out(store, plan_drain(store.image, 1).moves, stalled_s=0.05)
    assert throttles(store) == {}


async def test_a_plan_that_does_not_move_says_who_it_waits_for() -> None:
    store = await cluster_with(1)
    with pytest.raises(MovesStalled, match=r"t-0, which waits for broker\(s\) \[3\]"):
        await carry_out(store, plan_drain(store.image, 1).moves, stalled_s=0.05)


async def test_a_move_whose_outcome_is_not_known_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the cluster elects another controller: the plan is not given up for that."""
    monkeypatch.setattr("chronik.cluster.moves.BEGIN_RETRY_S", 0.001)
    store = await cluster_with(2)
    propose = store.propose
    refusals = [TimeoutError("nobody leads"), TimeoutError("the leader was lost")]

    async def sometimes(command: c.Command, timeout_s: float = 5.0) -> Result:
        if isinstance(command, c.AssignPartition) and refusals:
            await propose(command, timeout_s)  # it may have come through all the same
            raise refusals.pop()
        return await propose(command, timeout_s)

    monkeypatch.setattr(store, "propose", sometimes)
    catching_up = asyncio.create_task(catch_up(store))
    result = await carry_out(store, plan_drain(store.image, 1).moves)
    catching_up.cancel()
    assert result == Progress(2, 0, 2) and not refusals
    assert replicas_on(store.image, 1) == 0


async def test_a_move_that_cannot_be_asked_for_ends_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chronik.cluster.moves.BEGIN_RETRY_S", 0.001)
    store = await cluster_with(1)
    attempts: list[c.Command] = []

    async def never(command: c.Command, timeout_s: float = 5.0) -> Result:
        attempts.append(command)
        raise TimeoutError("nobody leads")

    monkeypatch.setattr(store, "propose", never)
    with pytest.raises(TimeoutError):
        await carry_out(store, plan_drain(store.image, 1).moves)
    assert len(attempts) == BEGIN_ATTEMPTS


class MembersDouble:
    def __init__(self, voters: set[int], observers: set[int]) -> None:
        self.voters, self.observers = voters, observers
        self.failures = 0
        self.added: list[int] = []

    def member_ids(self) -> set[int]:
        return self.voters | self.observers

    async def add_voter(self, node_id: int, timeout_s: float) -> None:
        if self.failures:
            self.failures -= 1
            raise TimeoutError("it has not caught up")
        self.added.append(node_id)
        self.observers.discard(node_id)
        self.voters.add(node_id)

    async def remove_voter(self, node_id: int, timeout_s: float) -> None:
        self.voters.discard(node_id)


async def until(condition: Callable[[], object], again: Callable[[], None]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        again()
        await asyncio.sleep(0.002)


async def test_nodes_are_added_and_removed_as_the_image_asks_also_when_it_takes_several_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chronik.cluster.membership.RETRY_S", 0.01)
    store = local_store()
    await bring_up(store, 1, 2)
    members = MembersDouble({1, 2}, {4})
    members.failures = 2
    keeper = MembershipKeeper(store, members, Timings())
    await store.propose(c.AddNode(4, b"4" * 16, "host-4", 9192))
    await store.propose(c.RemoveNode(2))
    await until(lambda: store.image.nodes[4].state == NodeState.MEMBER, keeper.run)
    await until(lambda: store.image.nodes[2].state == NodeState.REMOVED, keeper.run)
    assert members.voters == {1, 4}
    assert set(store.image.brokers) == {1}
    keeper.stop()


async def test_a_voter_that_lost_its_folder_is_added_again_although_its_id_votes() -> None:
    store = local_store()
    await bring_up(store, 1, 2)
    members = MembersDouble({1, 2}, set())
    keeper = MembershipKeeper(store, members, Timings())
    await store.propose(c.AddNode(2, b"new folder of 2!", "host-2", 9192))
    await until(lambda: store.image.nodes[2].state == NodeState.MEMBER, keeper.run)
    assert members.added == [2]
    keeper.stop()
