"""Registrations, incarnations and statuses, as the image has them."""

from __future__ import annotations

from chronik.metadata import commands as c
from chronik.metadata.model import NO_LEADER, BrokerStatus, NodeState
from chronik.metadata.store import MetadataStore
from chronik.protocol.errors import ErrorCode
from harness.metadata_double import bring_up, incarnation, local_store, registration

TOPIC = b"t" * 16


async def cluster(*nodes: int) -> MetadataStore:
    store = local_store()
    await bring_up(store, *nodes)
    return store


async def test_a_new_registration_is_offline_until_the_controller_has_heard_from_it() -> None:
    store = local_store()
    result = await store.propose(registration(1))
    assert result.value == store.image.brokers[1].epoch
    assert not store.image.is_alive(1)


async def test_the_same_incarnation_registers_again_with_a_new_address_and_keeps_its_epoch_and_status() -> None:
    store = await cluster(1)
    epoch = store.image.brokers[1].epoch
    result = await store.propose(registration(1, host="elsewhere"))
    assert result.ok and result.value == epoch
    assert store.image.brokers[1].host == "elsewhere"
    assert store.image.brokers[1].online


async def test_a_newer_incarnation_fences_the_older_whose_late_proposals_are_refused() -> None:
    store = await cluster(1)
    old = store.image.brokers[1].epoch
    newer = await store.propose(registration(1, life=2, seen_epoch=old))
    assert newer.ok and newer.value != old

    delayed = await store.propose(registration(1, life=1, seen_epoch=-1))
    assert delayed.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    late_status = await store.propose(c.UpdateBrokerStatus(1, BrokerStatus.ONLINE, epoch=old))
    assert late_status.error == ErrorCode.STALE_BROKER_EPOCH
    assert store.image.brokers[1].incarnation == incarnation(1, 2)


async def test_an_incarnation_that_does_not_know_the_present_registration_is_refused_and_told_so() -> None:
    store = await cluster(1)
    result = await store.propose(registration(1, life=2))
    assert result.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert store.image.brokers[1].incarnation == incarnation(1, 1)


async def test_a_new_incarnation_leads_nothing_from_the_moment_it_is_registered() -> None:
    store = await cluster(1, 2)
    await store.propose(c.CreateTopic("t", TOPIC, ((1, 2), (2, 1))))
    before = store.image.topics["t"].partitions
    await store.propose(registration(1, life=2, seen_epoch=store.image.brokers[1].epoch))
    after = store.image.topics["t"].partitions
    assert after[0].leader == NO_LEADER and after[0].leader_epoch == before[0].leader_epoch + 1
    assert after[0].isr == (1, 2), "a restart with the same data folder is still in sync"
    assert after[1] == before[1]


async def test_a_broker_that_comes_back_without_its_data_must_leave_every_isr_first() -> None:
    store = await cluster(1, 2)
    await store.propose(c.CreateTopic("t", TOPIC, ((2, 1), (1,))))
    await store.propose(
        registration(1, life=2, seen_epoch=store.image.brokers[1].epoch, directory_id=b"wiped-wiped-wipe")
    )
    too_early = await store.propose(c.UpdateBrokerStatus(1, BrokerStatus.ONLINE))
    assert not too_early.ok and "t-0" in too_early.reason

    state = store.image.topics["t"].partitions[0]
    await store.propose(
        c.UpdateIsr(c.CONTROLLER, [c.IsrChange(TOPIC, 0, state.leader_epoch, state.partition_epoch, (2,))])
    )
    now = await store.propose(c.UpdateBrokerStatus(1, BrokerStatus.ONLINE))
    assert now.ok, "the only replica of t-1 has nobody else to protect"
    assert not store.image.brokers[1].data_lost


async def test_the_wish_for_maintenance_survives_a_restart_of_the_broker() -> None:
    store = await cluster(1)
    await store.propose(c.UpdateBrokerStatus(1, BrokerStatus.MAINTENANCE, maintenance=True))
    await store.propose(registration(1, life=2, seen_epoch=store.image.brokers[1].epoch))
    assert store.image.brokers[1].maintenance
    assert store.image.brokers[1].status == BrokerStatus.OFFLINE


async def test_a_broker_that_cannot_do_what_the_cluster_does_is_not_registered() -> None:
    store = local_store()
    result = await store.propose(registration(1, features={"chronik.version": (2, 3)}))
    assert result.error == ErrorCode.UNSUPPORTED_VERSION
    assert "feature level 1" in result.reason


async def test_a_removed_node_cannot_register_until_it_is_added_again() -> None:
    store = await cluster(1, 2)
    await store.propose(c.RemoveNode(2))
    assert store.image.nodes[2].state == NodeState.LEAVING
    await store.propose(c.RemoveBroker(2))
    refused = await store.propose(registration(2, life=2))
    assert refused.error == ErrorCode.INVALID_REGISTRATION and "--join" in refused.reason

    await store.propose(c.ConfirmNode(2, bytes([2]) * 16))
    assert store.image.nodes[2].state == NodeState.REMOVED
    added = await store.propose(c.AddNode(2, b"n" * 16, "host-2", 9192))
    assert added.value == NodeState.JOINING
    assert (await store.propose(registration(2, life=2))).ok


async def test_a_confirmation_for_another_data_folder_changes_nothing() -> None:
    store = local_store()
    await store.propose(c.AddNode(4, b"a" * 16, "host-4", 9192))
    stale = await store.propose(c.ConfirmNode(4, b"b" * 16))
    assert not stale.ok
    assert store.image.nodes[4].state == NodeState.JOINING
