"""Topics come, grow and go; leaders, ISRs and replicas change only for those who looked at the present state."""

from __future__ import annotations

import pytest

from chronik.metadata import commands as c
from chronik.metadata.model import NO_LEADER, BrokerStatus, PartitionInfo, Result
from chronik.metadata.store import MetadataStore
from chronik.metadata.topics import name_problem
from chronik.protocol.errors import ErrorCode
from harness.metadata_double import bring_up, local_store

TOPIC = b"t" * 16
OTHER = b"o" * 16


@pytest.fixture
async def store() -> MetadataStore:
    made = local_store()
    await bring_up(made, 1, 2, 3, 4)
    await made.propose(c.CreateTopic("t", TOPIC, ((1, 2, 3), (2, 3, 1))))
    return made


def partition(store: MetadataStore, index: int = 0) -> PartitionInfo:
    found = store.image.partition("t", index)
    assert found is not None
    return found


async def only(store: MetadataStore, command: c.Command) -> Result:
    """The result of the one line of a list command."""
    result = await store.propose(command)
    assert isinstance(result.value, list)
    (line,) = result.value
    assert isinstance(line, Result)
    return line


async def elect(store: MetadataStore, leader: int, **fields: object) -> Result:
    values: dict[str, object] = {"partition_epoch": partition(store).partition_epoch, **fields}
    return await only(store, c.SetPartitionLeader([c.LeaderChange(TOPIC, 0, leader, **values)]))  # type: ignore[arg-type]


async def resize(store: MetadataStore, proposer: int, isr: tuple[int, ...], **fields: object) -> Result:
    state = partition(store)
    values: dict[str, object] = {
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        **fields,
    }
    return await only(store, c.UpdateIsr(proposer, [c.IsrChange(TOPIC, 0, isr=isr, **values)]))  # type: ignore[arg-type]


async def test_the_first_of_two_creates_of_one_name_wins_and_its_retry_is_answered_the_same(
    store: MetadataStore,
) -> None:
    again = await store.propose(c.CreateTopic("t", TOPIC, ((1, 2, 3), (2, 3, 1))))
    assert again.ok and again.value == store.image.topics["t"]
    rival = await store.propose(c.CreateTopic("t", OTHER, ((1,),)))
    assert rival.error == ErrorCode.TOPIC_ALREADY_EXISTS
    assert store.image.topics["t"].topic_id == TOPIC


async def test_a_topic_created_again_has_a_new_id_and_a_late_retry_of_the_old_create_is_refused(
    store: MetadataStore,
) -> None:
    await store.propose(c.DeleteTopic(TOPIC))
    late = await store.propose(c.CreateTopic("t", TOPIC, ((1,),)))
    assert late.error == ErrorCode.UNKNOWN_TOPIC_ID
    assert (await store.propose(c.CreateTopic("t", OTHER, ((1,),)))).ok
    assert store.image.was_deleted(TOPIC) and not store.image.was_deleted(OTHER)
    assert (await store.propose(c.DeleteTopic(TOPIC))).error == ErrorCode.UNKNOWN_TOPIC_ID
    assert "t" in store.image.topics, "deleting goes by id, and cannot hit the new topic"


async def test_names_that_metrics_cannot_tell_apart_exclude_each_other(store: MetadataStore) -> None:
    assert (await store.propose(c.CreateTopic("x.y", b"x" * 16, ((1,),)))).ok
    collision = await store.propose(c.CreateTopic("x_y", b"y" * 16, ((1,),)))
    assert collision.error == ErrorCode.INVALID_TOPIC_EXCEPTION and "x.y" in collision.reason
    await store.propose(c.DeleteTopic(b"x" * 16))
    assert (await store.propose(c.CreateTopic("x_y", b"z" * 16, ((1,),)))).ok


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
def test_a_name_that_kafka_refuses_is_refused(name: str) -> None:
    problem = name_problem(name)
    assert problem is not None and problem.startswith("Topic name is invalid")


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "__consumer_offsets"])
def test_a_name_that_kafka_takes_is_taken(name: str) -> None:
    assert name_problem(name) is None


async def test_a_new_partition_is_led_by_the_first_replica_online_and_in_sync_with_those_alive(
    store: MetadataStore,
) -> None:
    await store.propose(c.UpdateBrokerStatus(1, BrokerStatus.OFFLINE))
    await store.propose(c.UpdateBrokerStatus(2, BrokerStatus.MAINTENANCE))
    await store.propose(c.CreateTopic("n", OTHER, ((1, 2, 3), (1,), (2,))))
    first, second, third = store.image.topics["n"].partitions
    assert (first.leader, first.isr) == (3, (2, 3))
    assert (second.leader, second.isr) == (NO_LEADER, (1,))
    assert (third.leader, third.isr) == (2, (2,))


@pytest.mark.parametrize(
    ("assignments", "error"),
    [
        ((), ErrorCode.INVALID_PARTITIONS),
        (((),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (((1, 1),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (((1, 9),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_an_impossible_assignment_makes_no_topic(
    store: MetadataStore, assignments: tuple[tuple[int, ...], ...], error: ErrorCode
) -> None:
    assert (await store.propose(c.CreateTopic("n", OTHER, assignments))).error == error
    assert "n" not in store.image.topics


async def test_partitions_are_added_once_by_whoever_knew_how_many_there_were(store: MetadataStore) -> None:
    command = c.AddPartitions(TOPIC, 2, ((3, 1), (1, 2)))
    assert (await store.propose(command)).ok
    assert (await store.propose(command)).ok, "a retry is answered as the first was"
    assert len(store.image.topics["t"].partitions) == 4
    rival = await store.propose(c.AddPartitions(TOPIC, 2, ((2,),)))
    assert rival.error == ErrorCode.INVALID_PARTITIONS


async def test_an_election_raises_the_leader_epoch_and_an_isr_change_does_not(store: MetadataStore) -> None:
    assert (await elect(store, 2)).ok
    assert (partition(store).leader, partition(store).leader_epoch, partition(store).partition_epoch) == (2, 1, 1)
    assert (await resize(store, 2, (2, 3))).ok
    assert (partition(store).isr, partition(store).leader_epoch, partition(store).partition_epoch) == ((2, 3), 1, 2)


async def test_nobody_is_elected_who_is_not_in_sync_or_not_alive_unless_uncleanly(store: MetadataStore) -> None:
    await resize(store, 1, (1, 2))
    assert (await elect(store, 3)).error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert (await elect(store, 4)).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    await store.propose(c.UpdateBrokerStatus(2, BrokerStatus.OFFLINE))
    assert (await elect(store, 2)).error == ErrorCode.BROKER_NOT_AVAILABLE
    assert (await elect(store, 3, unclean=True)).ok
    assert (partition(store).leader, partition(store).isr) == (3, (3,))


async def test_of_two_changes_decided_upon_one_state_only_the_first_is_applied(store: MetadataStore) -> None:
    epoch = partition(store).partition_epoch
    assert (await resize(store, 1, (1, 2))).ok
    assert (await resize(store, 1, (1, 3), partition_epoch=epoch)).error == ErrorCode.INVALID_UPDATE_VERSION
    assert (await elect(store, 2, partition_epoch=epoch)).error == ErrorCode.INVALID_UPDATE_VERSION
    assert partition(store).isr == (1, 2)


async def test_two_leaders_can_never_both_shrink(store: MetadataStore) -> None:
    old_epoch = partition(store).leader_epoch
    await elect(store, 2)
    stale = await resize(store, 1, (1,), leader_epoch=old_epoch)
    assert stale.error == ErrorCode.FENCED_LEADER_EPOCH
    impostor = await resize(store, 1, (1,))
    assert impostor.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition(store).isr == (1, 2, 3)


@pytest.mark.parametrize(("isr", "why"), [((), "empty"), ((2, 3), "no leader"), ((1, 1), "twice"), ((1, 4), "alien")])
async def test_an_isr_that_makes_no_sense_is_refused(store: MetadataStore, isr: tuple[int, ...], why: str) -> None:
    assert (await resize(store, 1, isr)).error == ErrorCode.INVALID_REQUEST, why


async def test_a_replica_that_is_offline_or_has_registered_again_does_not_join_the_isr(store: MetadataStore) -> None:
    await resize(store, 1, (1, 2))
    epochs = tuple(store.image.brokers[node].epoch for node in (1, 2, 3))
    stale = await resize(store, 1, (1, 2, 3), epochs=(epochs[0], epochs[1], epochs[2] - 1))
    assert stale.error == ErrorCode.INELIGIBLE_REPLICA
    await store.propose(c.UpdateBrokerStatus(3, BrokerStatus.OFFLINE))
    assert (await resize(store, 1, (1, 2, 3))).error == ErrorCode.INELIGIBLE_REPLICA
    await store.propose(c.UpdateBrokerStatus(3, BrokerStatus.ONLINE))
    assert (await resize(store, 1, (1, 2, 3), epochs=epochs)).ok


async def test_the_controller_can_shrink_an_isr_but_not_grow_it(store: MetadataStore) -> None:
    assert (await resize(store, c.CONTROLLER, (1, 2))).ok
    assert (await resize(store, c.CONTROLLER, (1, 2, 3))).error == ErrorCode.INVALID_REQUEST


async def test_isr_changes_of_a_former_incarnation_are_refused_as_a_whole(store: MetadataStore) -> None:
    state = partition(store)
    change = c.IsrChange(TOPIC, 0, state.leader_epoch, state.partition_epoch, (1,))
    result = await store.propose(c.UpdateIsr(1, [change], broker_epoch=store.image.brokers[1].epoch - 1))
    assert result.error == ErrorCode.STALE_BROKER_EPOCH
    assert partition(store) == state


async def move(store: MetadataStore, target: tuple[int, ...] | None) -> Result:
    return await only(store, c.AssignPartition([c.Reassignment(TOPIC, 0, target)]))


async def finish(store: MetadataStore) -> Result:
    change = c.FinishedAssignment(TOPIC, 0, partition(store).partition_epoch)
    return await only(store, c.FinishAssignment([change]))


async def test_a_reassignment_adds_waits_for_the_new_replica_and_only_then_drops_the_old_one(
    store: MetadataStore,
) -> None:
    assert (await move(store, (2, 3, 4))).ok
    state = partition(store)
    assert (state.replicas, state.adding, state.removing) == ((2, 3, 4, 1), (4,), (1,))
    assert state.leader == 1 and state.target == (2, 3, 4)
    assert not (await finish(store)).ok, "broker 4 has not caught up"

    assert (await resize(store, 1, (1, 2, 3, 4))).ok
    assert (await finish(store)).ok
    state = partition(store)
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((2, 3, 4), (2, 3, 4), NO_LEADER, 1)
    assert not state.reassigning


async def test_a_reassignment_can_be_changed_and_cancelled_while_it_is_under_way(store: MetadataStore) -> None:
    await move(store, (4, 2))
    await move(store, (3, 2))
    state = partition(store)
    assert (state.replicas, state.adding, state.removing) == ((3, 2, 1), (), (1,))
    await move(store, (4, 2, 3))
    state = partition(store)
    assert (state.replicas, state.adding, state.removing) == ((4, 2, 3, 1), (4,), (1,))
    assert not (await finish(store)).ok, "broker 4 was dropped in between and has to catch up like any other"
    assert (await move(store, None)).ok
    state = partition(store)
    assert not state.reassigning and set(state.replicas) == {1, 2, 3} and state.leader == 1


async def test_replicas_that_were_only_being_added_leave_the_isr_when_the_target_changes(store: MetadataStore) -> None:
    await move(store, (1, 2, 3, 4))
    await resize(store, 1, (1, 2, 3, 4))
    await elect(store, 4)
    assert (await move(store, (1, 2))).ok
    state = partition(store)
    assert (state.replicas, state.isr, state.removing, state.leader) == ((1, 2, 3), (1, 2, 3), (3,), NO_LEADER)


async def test_cancelling_goes_back_to_the_replicas_there_were(store: MetadataStore) -> None:
    await move(store, (1, 2, 3, 4))
    await resize(store, 1, (1, 2, 3, 4))
    await elect(store, 4)
    assert (await move(store, None)).ok
    state = partition(store)
    assert (state.replicas, state.isr, state.leader) == ((1, 2, 3), (1, 2, 3), NO_LEADER)
    nothing = await move(store, None)
    assert nothing.error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_reassigning_to_an_unknown_broker_or_to_nobody_is_refused(store: MetadataStore) -> None:
    assert (await move(store, (1, 9))).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (await move(store, ())).error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (await move(store, (1, 2, 3))).ok, "asking for what is so already is fine"
    assert partition(store).partition_epoch == 0


async def test_a_list_command_applies_each_line_by_itself(store: MetadataStore) -> None:
    result = await store.propose(
        c.SetPartitionLeader(
            [c.LeaderChange(TOPIC, 0, 2, 0), c.LeaderChange(TOPIC, 7, 2, 0), c.LeaderChange(OTHER, 0, 2, 0)]
        )
    )
    assert isinstance(result.value, list)
    assert [line.error for line in result.value] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert partition(store).leader == 2
