"""A controller and its brokers, over doubles of consensus and transport: who is alive, who leads, who moves where."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from chronik.cluster.controller_client import ControllerClient
from chronik.cluster.messages import Heartbeat, Verdict, decode_heartbeat_reply, encode
from chronik.metadata import commands as c
from chronik.metadata.model import NO_LEADER, BrokerStatus, PartitionInfo
from chronik.protocol.errors import ErrorCode
from harness.cluster_double import FAST, ClusterDouble, NodeDouble

TOPIC = b"t" * 16
DEADLINE_S = 5.0


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    made = ClusterDouble()
    yield made
    await made.stop()


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what or "the condition was not met in time"
        await asyncio.sleep(0.002)


def statuses(node: NodeDouble) -> dict[int, BrokerStatus]:
    return {node_id: broker.status for node_id, broker in sorted(node.store.image.brokers.items())}


def online(node: NodeDouble, *ids: int) -> bool:
    return [broker.node_id for broker in node.store.image.online_brokers()] == list(ids)


async def three(cluster: ClusterDouble, *, static: dict[str, str] | None = None) -> list[NodeDouble]:
    nodes = [cluster.add(node_id, static=static).start() for node_id in (1, 2, 3)]
    cluster.elect(1)
    await eventually(lambda: online(nodes[0], 1, 2, 3))
    return nodes


def partition(node: NodeDouble, number: int = 0, topic: str = "t") -> PartitionInfo:
    found = node.store.image.partition(topic, number)
    assert found is not None
    return found


async def create(node: NodeDouble, *replicas: tuple[int, ...], name: str = "t", topic_id: bytes = TOPIC) -> None:
    result = await node.store.propose(c.CreateTopic(name, topic_id, replicas))
    assert result.ok, result


async def test_every_node_registers_itself_and_all_nodes_know_all_brokers(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await eventually(lambda: all(online(node, 1, 2, 3) for node in nodes))
    assert len({node.store.image.cluster_id for node in nodes}) == 1
    assert nodes[0].store.image.cluster_id


async def test_nodes_without_a_leader_wait_and_go_on_by_themselves_when_there_is_one(cluster: ClusterDouble) -> None:
    cluster.log.failure = TimeoutError("no leader")
    node = cluster.add(1).start()
    await asyncio.sleep(5 * FAST.beat_s)
    assert not node.registration.registered
    cluster.log.failure = None
    cluster.elect(1)
    await eventually(lambda: online(node, 1) and node.lease_until > time.monotonic())


async def test_a_silent_broker_is_offline_everywhere_and_its_partitions_get_other_leaders(
    cluster: ClusterDouble,
) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (3, 1, 2), (3,))
    await nodes[2].kill()
    await eventually(lambda: statuses(nodes[1])[3] == BrokerStatus.OFFLINE)
    await eventually(lambda: partition(nodes[1]).leader == 1)
    assert partition(nodes[1]).isr == (1, 2)
    await eventually(lambda: partition(nodes[1], 1).leader == NO_LEADER)
    assert partition(nodes[1], 1).isr == (3,), "the last in sync stays, for when it returns"


async def test_nobody_is_elected_before_the_lease_of_the_silent_leader_is_over(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (3, 1, 2))
    await eventually(lambda: nodes[2].lease_until > time.monotonic())
    cluster.cut.add(3)
    seen_at: list[float] = []
    nodes[0].store.subscribe(
        lambda delta: seen_at.append(time.monotonic()) if partition(nodes[0]).leader == 1 else None
    )
    await eventually(lambda: partition(nodes[0]).leader == 1)
    assert seen_at[0] >= nodes[2].lease_until > 0


async def test_a_broker_that_returns_leads_again_what_it_alone_has(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (3,))
    epoch = partition(nodes[0]).leader_epoch
    await nodes[2].kill()
    await eventually(lambda: partition(nodes[0]).leader == NO_LEADER)
    cluster.add(3).start()
    await eventually(lambda: partition(nodes[0]).leader == 3)
    assert partition(nodes[0]).leader_epoch > epoch


async def test_a_restart_within_the_session_raises_the_leader_epoch_without_waiting_for_a_lease(
    cluster: ClusterDouble,
) -> None:
    node = cluster.add(1).start()
    cluster.elect(1)
    await eventually(lambda: online(node, 1))
    await create(node, (1,))
    epoch = partition(node).leader_epoch
    await eventually(lambda: node.lease_until > time.monotonic())
    await node.kill()
    cluster.elect(0)
    again = cluster.add(1).start()
    cluster.elect(1)
    await eventually(lambda: partition(again).leader == 1 and again.lease_until > time.monotonic())
    assert partition(again).leader_epoch >= epoch + 2


async def test_a_cut_off_broker_loses_its_lease_and_comes_back_as_itself(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    epoch = nodes[0].store.image.brokers[2].epoch
    await eventually(lambda: nodes[1].lease_until > time.monotonic())
    cluster.cut.add(2)
    await eventually(lambda: statuses(nodes[0])[2] == BrokerStatus.OFFLINE)
    assert nodes[1].lease_until < time.monotonic(), "declared dead only when it has stopped to act as a leader"
    cluster.cut.clear()
    await eventually(lambda: online(nodes[0], 1, 2, 3))
    assert nodes[0].store.image.brokers[2].epoch == epoch


@pytest.mark.parametrize("change_of_controller", [False, True])
async def test_a_leader_that_was_replaced_while_cut_off_gets_no_lease_before_it_knows(
    cluster: ClusterDouble, change_of_controller: bool
) -> None:
    """With one it would go on to acknowledge, in its old epoch, what nobody else ever gets."""
    nodes = await three(cluster)
    await create(nodes[0], (3, 1, 2))
    await eventually(lambda: nodes[2].lease_until > time.monotonic())
    cluster.log.hold(nodes[2].store)
    cluster.cut.add(3)
    await eventually(lambda: partition(nodes[0]).leader == 1)
    if change_of_controller:
        cluster.elect(2)
    cluster.cut.clear()
    lapsed_at = nodes[2].lease_until
    await asyncio.sleep(2 * FAST.session_s)
    assert partition(nodes[2]).leader == 3, "it has not heard yet"
    assert nodes[2].lease_until == lapsed_at
    cluster.log.release(nodes[2].store)
    await eventually(lambda: nodes[2].lease_until > time.monotonic())
    assert online(nodes[0], 1, 2, 3)


async def test_a_broker_that_is_deaf_to_metadata_leads_nothing_for_long(cluster: ClusterDouble) -> None:
    """Its heartbeats arrive, but it does not hear that it was replaced, and so gets no lease: the rest of what it leads
    would be led by nobody."""
    nodes = await three(cluster, static={"auto.leader.rebalance.enable": "false"})
    await create(nodes[0], (3, 1, 2), (3, 2, 1))
    cluster.log.hold(nodes[2].store)
    change = c.LeaderChange(TOPIC, 0, NO_LEADER, partition(nodes[0]).partition_epoch)
    await nodes[0].store.propose(c.SetPartitionLeader([change]))
    await eventually(lambda: partition(nodes[0]).leader == 1)
    await eventually(lambda: partition(nodes[0], 1).leader == 2)
    cluster.log.release(nodes[2].store)
    await eventually(lambda: online(nodes[0], 1, 2, 3) and nodes[2].lease_until > time.monotonic())


async def test_a_deposed_controller_that_does_not_know_it_grants_no_lease(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await eventually(lambda: nodes[1].lease_until > time.monotonic())
    nodes[0].group.confirmed = False
    await eventually(lambda: nodes[1].lease_until < time.monotonic())
    await asyncio.sleep(3 * FAST.beat_s)
    assert nodes[1].lease_until < time.monotonic()
    assert online(nodes[0], 1, 2, 3), "they are heard all the same"


async def test_a_new_controller_carries_on_and_gives_everybody_time_to_be_heard_from(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (1, 2, 3), (2, 3, 1))
    changes: list[set[int]] = []
    nodes[1].store.subscribe(lambda delta: changes.append(set(delta.brokers_changed)))
    cluster.elect(2)
    await asyncio.sleep(2 * FAST.session_s)
    assert not any(changes), "nobody was fenced for the change of controller"
    await nodes[0].kill()
    await eventually(lambda: partition(nodes[1]).leader == 2)


async def test_when_all_die_those_that_come_back_lead_what_one_led_that_does_not(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (1, 2, 3))
    for node in nodes:
        await node.kill()
    second, third = cluster.add(2).start(), cluster.add(3).start()
    cluster.elect(2)
    await eventually(lambda: partition(second).leader in (2, 3))
    await eventually(lambda: online(third, 2, 3))
    assert partition(third).isr == (2, 3)


async def test_a_newer_process_of_the_same_id_supersedes_the_older_for_good(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    rival = cluster.add(3, directory_id=b"another folder!!").start()
    await eventually(lambda: nodes[2].superseded)
    await eventually(lambda: online(nodes[0], 1, 2, 3))
    await asyncio.sleep(3 * FAST.beat_s)
    assert nodes[2].registration.superseded and not rival.registration.superseded
    assert nodes[2].lease_until == 0.0
    assert nodes[0].store.image.brokers[3].incarnation == rival.describe().incarnation
    await nodes[2].registration.stop()


async def test_the_heartbeats_of_a_superseded_process_renew_nothing(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    broker = nodes[0].store.image.brokers[3]
    await nodes[2].kill()
    cluster.add(3).start()
    await eventually(lambda: nodes[0].store.image.brokers[3].epoch > broker.epoch)
    late = Heartbeat(3, broker.incarnation, broker.epoch, nodes[0].store.image.applied_index)
    reply = decode_heartbeat_reply(await nodes[0].controller.handle_heartbeat(3, encode(late)))
    assert (reply.verdict, reply.lease_s) == (Verdict.SUPERSEDED, 0.0)


async def test_a_broker_that_knows_more_than_the_controller_is_judged_by_what_it_knows(cluster: ClusterDouble) -> None:
    """Followers can apply an entry before the leader, whose own disk may be the slowest."""
    nodes = await three(cluster)
    broker = nodes[0].store.image.brokers[3]
    await nodes[2].registration.stop()
    await nodes[1].store.propose(c.UpdateBrokerStatus(3, BrokerStatus.OFFLINE))
    cluster.log.hold(nodes[0].store)
    await nodes[1].store.propose(c.UpdateBrokerStatus(3, BrokerStatus.ONLINE))
    beat = Heartbeat(3, broker.incarnation, broker.epoch, nodes[1].store.image.applied_index)
    answer = asyncio.create_task(nodes[0].controller.handle_heartbeat(3, encode(beat)))
    await asyncio.sleep(0)
    assert statuses(nodes[0])[3] == BrokerStatus.OFFLINE
    cluster.log.release(nodes[0].store)
    assert decode_heartbeat_reply(await answer).lease_s > 0


async def test_a_changed_address_is_registered_again(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    epoch = nodes[0].store.image.brokers[2].epoch
    nodes[1].fields["host"] = "elsewhere"
    await eventually(lambda: nodes[0].store.image.brokers[2].host == "elsewhere")
    assert nodes[0].store.image.brokers[2].epoch == epoch
    assert nodes[0].store.image.brokers[2].online


async def test_a_clean_leave_moves_the_leaders_first_and_the_broker_is_offline_at_once(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (2, 1, 3), (1, 2, 3), (2,))
    left = await nodes[1].registration.leave(timeout_s=3.0)
    assert left
    assert partition(nodes[0]).leader in (1, 3)
    assert nodes[1].lease_until == 0.0
    await eventually(lambda: statuses(nodes[0])[2] == BrokerStatus.OFFLINE)
    await eventually(lambda: partition(nodes[0], 2).leader == NO_LEADER)


async def test_leaving_without_a_controller_ends_within_its_deadline(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    cluster.elect(0)
    started = time.monotonic()
    assert not await nodes[1].registration.leave(timeout_s=0.2)
    assert time.monotonic() - started < 2.0


async def test_a_broker_in_maintenance_leads_nothing_that_others_can_lead(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (2, 1), (2,))
    await nodes[0].store.propose(c.UpdateBrokerStatus(2, BrokerStatus.MAINTENANCE, maintenance=True))
    await eventually(lambda: partition(nodes[0]).leader == 1)
    assert partition(nodes[0], 1).leader == 2
    assert partition(nodes[0]).isr == (2, 1)


async def test_leadership_returns_to_the_preferred_replica_by_itself(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (2, 1, 3))
    epoch = partition(nodes[0]).partition_epoch
    await nodes[0].store.propose(c.SetPartitionLeader([c.LeaderChange(TOPIC, 0, 3, epoch)]))
    await eventually(lambda: partition(nodes[0]).leader == 2)


async def test_elections_on_demand_answer_as_kafka_does(cluster: ClusterDouble) -> None:
    nodes = await three(cluster, static={"auto.leader.rebalance.enable": "false"})
    await create(nodes[0], (2, 1, 3), (1, 2), (3, 1), (3,))
    epoch = partition(nodes[0]).partition_epoch
    await nodes[0].store.propose(c.SetPartitionLeader([c.LeaderChange(TOPIC, 0, 3, epoch)]))
    await nodes[2].kill()
    await eventually(lambda: partition(nodes[0], 3).leader == NO_LEADER and partition(nodes[0]).leader in (1, 2))
    epoch = partition(nodes[0]).partition_epoch
    await nodes[0].store.propose(c.SetPartitionLeader([c.LeaderChange(TOPIC, 0, 1, epoch)]))

    client = ControllerClient(nodes[1].group, nodes[1].peers)
    asked = [("t", 0), ("t", 1), ("t", 2), ("t", 9)]
    outcome = await client.elect_leaders(asked, unclean=False, timeout_s=2.0)
    assert {(name, number): code for name, number, code, _ in outcome} == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert partition(nodes[0]).leader == 2
    everything = await client.elect_leaders(None, unclean=True, timeout_s=2.0)
    assert [(name, number, code) for name, number, code, _ in everything] == [
        ("t", 3, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    ]


async def test_an_unclean_election_happens_only_when_it_is_asked_for(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (3, 1))
    state = partition(nodes[0])
    await nodes[0].store.propose(
        c.UpdateIsr(3, [c.IsrChange(TOPIC, 0, state.leader_epoch, state.partition_epoch, (3,))])
    )
    await nodes[2].kill()
    await eventually(lambda: partition(nodes[0]).leader == NO_LEADER)
    await asyncio.sleep(3 * FAST.tick_s)
    assert partition(nodes[0]).leader == NO_LEADER
    client = ControllerClient(nodes[1].group, nodes[1].peers)
    ((_, _, code, _),) = await client.elect_leaders([("t", 0)], unclean=True, timeout_s=2.0)
    assert code == ErrorCode.NONE
    assert (partition(nodes[0]).leader, partition(nodes[0]).isr) == (1, (1,))
    assert nodes[0].controller.counters.unclean_elections == 1


async def test_a_reassignment_goes_on_under_another_controller(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (1, 2))
    await nodes[0].store.propose(c.AssignPartition([c.Reassignment(TOPIC, 0, (3, 2))]))
    await asyncio.sleep(3 * FAST.tick_s)
    assert partition(nodes[0]).replicas == (3, 2, 1), "nothing is dropped before broker 3 is in sync"
    await nodes[0].kill()
    cluster.elect(2)
    await eventually(lambda: partition(nodes[1]).leader == 2)
    state = partition(nodes[1])
    change = c.IsrChange(TOPIC, 0, state.leader_epoch, state.partition_epoch, (2, 3))
    await nodes[1].store.propose(c.UpdateIsr(2, [change]))
    await eventually(lambda: not partition(nodes[1]).reassigning)
    assert partition(nodes[1]).replicas == (3, 2)


async def test_what_could_not_be_proposed_is_done_as_soon_as_it_can_be(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (3, 1, 2), (1, 3, 2))
    await nodes[2].kill()
    await eventually(lambda: statuses(nodes[0])[3] == BrokerStatus.OFFLINE)
    cluster.log.failure = TimeoutError("no quorum")
    await asyncio.sleep(5 * FAST.tick_s)
    cluster.log.failure = None
    await eventually(lambda: partition(nodes[0]).leader == 1 and partition(nodes[0], 1).isr == (1, 2))


async def test_internal_topics_grow_as_nodes_join(cluster: ClusterDouble) -> None:
    node = cluster.add(1).start()
    cluster.elect(1)
    await eventually(lambda: online(node, 1))
    await create(node, (1,), (1,), (1,), name="__consumer_offsets")
    for node_id in (2, 3):
        cluster.add(node_id).start()
    await eventually(
        lambda: all(
            set(partition(node, number, "__consumer_offsets").replicas) == {1, 2, 3}
            or partition(node, number, "__consumer_offsets").reassigning
            for number in range(3)
        )
    )
    await eventually(lambda: online(node, 1, 2, 3))

    def catch_up() -> bool:
        for number in range(3):
            state = partition(node, number, "__consumer_offsets")
            if set(state.isr) != set(state.replicas):
                change = c.IsrChange(TOPIC, number, state.leader_epoch, state.partition_epoch, state.replicas)
                cluster.log.commit(c.encode(c.UpdateIsr(state.leader, [change])))
        return all(set(partition(node, number, "__consumer_offsets").target) == {1, 2, 3} for number in range(3))

    await eventually(catch_up)


async def test_a_broker_whose_data_is_gone_leaves_every_isr_before_it_is_online_again(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    await create(nodes[0], (3, 1), (1, 3), (3,))
    await nodes[2].kill()
    wiped = cluster.add(3, directory_id=b"made after wipe!").start()
    await eventually(lambda: wiped.registration.registered and online(nodes[0], 1, 2, 3))
    assert partition(nodes[0]).isr == (1,) and partition(nodes[0], 1).isr == (1,)
    await eventually(lambda: partition(nodes[0], 2).leader == 3)


async def test_what_comes_back_under_the_id_of_a_removed_node_is_not_held_to_be_in_sync(cluster: ClusterDouble) -> None:
    """It may have an empty folder: leading, it would have the others cut all that they still have."""
    nodes = await three(cluster)
    await create(nodes[0], (3, 1))
    state = partition(nodes[0])
    shrink = c.IsrChange(TOPIC, 0, state.leader_epoch, state.partition_epoch, (3,))
    await nodes[0].store.propose(c.UpdateIsr(3, [shrink]))
    await nodes[2].kill()
    await nodes[0].store.propose(c.RemoveNode(3))
    await nodes[0].store.propose(c.RemoveBroker(3))
    await eventually(lambda: partition(nodes[0]).isr == ())
    await nodes[0].store.propose(c.AddNode(3, b"made after wipe!", "host-3", 9192))
    cluster.add(3, directory_id=b"made after wipe!").start()
    await eventually(lambda: online(nodes[0], 1, 2, 3))
    await asyncio.sleep(3 * FAST.tick_s)
    assert partition(nodes[0]).leader == NO_LEADER


async def test_thousands_of_partitions_of_a_dead_broker_are_led_again_in_slices(cluster: ClusterDouble) -> None:
    nodes = await three(cluster)
    for start in range(3):
        assignment = tuple((1 + (start + n) % 3, 1 + (start + n + 1) % 3) for n in range(1000))
        await create(nodes[0], *assignment, name=f"t{start}", topic_id=bytes([start + 1]) * 16)
    commands_before = len(cluster.log.entries)
    await nodes[2].kill()
    await eventually(
        lambda: all(
            state.leader in (1, 2) and 3 not in state.isr for _, _, state in nodes[0].store.image.each_partition()
        )
    )
    assert len(cluster.log.entries) - commands_before < 20
