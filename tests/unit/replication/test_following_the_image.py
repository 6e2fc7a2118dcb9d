"""How the replicas of a node follow the metadata image, and what becomes of data it does not know."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chronik.metadata.commands import AddPartitions, AssignPartition, CreateTopic, DeleteTopic, Reassignment, encode
from chronik.metadata.configs import ConfigView
from chronik.metadata.store import MetadataStore
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.lease import Lease
from chronik.replication.manager import ReplicaManager
from chronik.replication.partition import Partition
from chronik.storage.log_config import LogConfig
from harness.replica_nodes import Nodes, incarnation, settle
from harness.simulated_log import Disk, Entry, SimulatedLogs, writable


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    cluster = Nodes(1, 2)
    cluster.start()
    yield cluster
    cluster.stop()


async def test_a_node_has_the_partitions_it_is_a_replica_of(nodes: Nodes) -> None:
    nodes.create("events", (1,), (2,), (2, 1))
    assert sorted(partition.index for partition in nodes.managers[1].partitions()) == [0, 2]
    assert nodes.partition(1, "events", 0).is_leader
    assert not nodes.partition(1, "events", 2).is_leader
    assert nodes.partition(1, "events", 2).leader_id == 2


async def test_looking_up_tells_what_a_client_has_to_know(nodes: Nodes) -> None:
    nodes.create("events", (2,))
    for topic, index, code in (
        ("events", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("events", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nothing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        with pytest.raises(KafkaError) as refused:
            nodes.managers[1].partition(topic, index)
        assert refused.value.code == code
        assert nodes.managers[1].get(topic, index) is None


async def test_a_topic_made_anew_is_not_the_replica_of_the_one_before(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = nodes.create("events", (1,), durability="os")
    old, manager = nodes.partition(1, "events"), nodes.managers[1]
    monkeypatch.setattr("chronik.metadata.store.TOUCHED_PER_NOTICE", 1)
    index = nodes.stores[1].image.applied_index
    again = CreateTopic("events", b"made anew".ljust(16), ((1,),), {})
    entries = [(index + 1, encode(DeleteTopic(before))), (index + 2, encode(again))]
    slices = nodes.stores[1].apply_in_slices(entries)
    next(slices)
    assert nodes.stores[1].image.topics["events"].topic_id == again.topic_id and old.is_leader
    with pytest.raises(KafkaError) as refused:
        manager.partition("events", 0)  # what is written there now goes with the log of the old one
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for _ in slices:
        pass
    assert manager.partition("events", 0).topic_id == again.topic_id


async def test_a_topic_that_is_gone_has_no_replica_any_more(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = nodes.create("events", (1,))
    monkeypatch.setattr("chronik.metadata.store.TOUCHED_PER_NOTICE", 1)
    index = nodes.stores[1].image.applied_index
    other = CreateTopic("other", b"other".ljust(16), ((1,),), {})
    slices = nodes.stores[1].apply_in_slices([(index + 1, encode(DeleteTopic(gone))), (index + 2, encode(other))])
    next(slices)
    assert nodes.managers[1].get("events", 0) is not None
    with pytest.raises(KafkaError) as refused:
        nodes.managers[1].partition("events", 0)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_partitions_that_are_added_are_led(nodes: Nodes) -> None:
    topic_id = nodes.create("events", (1,))
    nodes.commit(AddPartitions(topic_id, 1, ((1,), (2,))))
    assert nodes.partition(1, "events", 1).is_leader
    assert nodes.managers[1].get("events", 2) is None


async def test_nothing_is_led_before_this_process_is_registered() -> None:
    nodes = Nodes(1)
    nodes.start(register=False)
    nodes.register(1, incarnation_number=9)  # an earlier process of this node
    nodes.create("events", (1,))
    assert list(nodes.managers[1].partitions()) == []
    with pytest.raises(KafkaError) as refused:
        nodes.partition(1, "events")
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    nodes.register(1)
    assert not nodes.partition(1, "events").is_leader, "metadata took leadership from the earlier process"
    nodes.elect("events", 0, 1)
    assert nodes.partition(1, "events").is_leader
    nodes.stop()


async def test_a_newer_process_of_this_node_ends_all_roles(nodes: Nodes) -> None:
    nodes.create("events", (1,))
    partition = nodes.partition(1, "events")
    partition.append(writable(1), required_acks=1, now_ms=1)
    nodes.register(1, incarnation_number=5)
    assert not partition.is_leader
    assert list(nodes.managers[1].partitions()) == []
    assert nodes.logs[1].get("events", 0) is not None, "its data stays"


async def test_listeners_hear_of_leadership_gained_lost_and_held_already(nodes: Nodes) -> None:
    heard: list[tuple[str, bool]] = []

    def listen(partition: Partition, became_leader: bool) -> None:
        heard.append((partition.topic, became_leader))

    nodes.create("before", (1,))
    nodes.managers[1].on_leadership(listen)
    assert heard == [("before", True)]
    nodes.create("events", (1, 2))
    nodes.elect("events", 0, 2)
    nodes.elect("events", 0, 1)
    assert heard[1:] == [("events", True), ("events", False), ("events", True)]
    topic_id = nodes.stores[1].image.topics["events"].topic_id
    nodes.commit(DeleteTopic(topic_id))
    assert heard[-1] == ("events", False)


async def test_deleting_a_topic_deletes_its_logs(nodes: Nodes) -> None:
    topic_id = nodes.create("events", (1,))
    partition = nodes.partition(1, "events")
    partition.append(writable(1), required_acks=1, now_ms=1)
    waiting = partition.committed(1)
    nodes.commit(DeleteTopic(topic_id))
    assert nodes.logs[1].deleted == [("events", 0, topic_id)]
    assert nodes.managers[1].get("events", 0) is None
    assert waiting is not None and isinstance(waiting.exception(), KafkaError)


async def test_a_topic_created_again_never_sees_the_old_data(nodes: Nodes) -> None:
    first = nodes.create("events", (1,))
    nodes.partition(1, "events").append(writable(1), required_acks=1, now_ms=1)
    nodes.commit(DeleteTopic(first))
    second = nodes.create("events", (1,), number=2)
    partition = nodes.partition(1, "events")
    assert (partition.topic_id, partition.end_offset) == (second, 0)
    partition.append(writable(2), required_acks=1, now_ms=1)
    assert partition.log.topic_id == second


def restarted(nodes: Nodes, logs: SimulatedLogs, *, caught_up_to: int) -> tuple[ReplicaManager, MetadataStore]:
    """Node 1 again, in a new process, that has applied the first entries of the metadata log."""
    nodes.managers[1].stop()
    store = MetadataStore(nodes.consensus)
    store.apply(nodes.consensus.entries[:caught_up_to])
    manager = ReplicaManager(
        1,
        incarnation(1, 7),
        store,
        logs,  # type: ignore[arg-type]
        configs=ConfigView(store.image, 1),
        lease=Lease.permanent(),
    )
    manager.start()
    return manager, store


async def test_data_is_kept_while_metadata_lags_and_used_once_it_has_caught_up(nodes: Nodes) -> None:
    nodes.create("other", (1,))
    lagging = len(nodes.consensus.entries)
    nodes.create("events", (1,))
    nodes.partition(1, "events").append(writable(1), required_acks=1, now_ms=1)
    logs = SimulatedLogs(nodes.logs[1].disks)
    manager, store = restarted(nodes, logs, caught_up_to=lagging)
    assert (logs.aside, logs.deleted) == ([], [])
    nodes.register(1, incarnation_number=7)
    store.apply(nodes.consensus.entries[lagging:])
    assert (logs.aside, logs.deleted) == ([], [])
    assert manager.partition("events", 0).end_offset == 1
    manager.stop()


async def test_data_that_metadata_does_not_know_is_set_aside_and_counted(nodes: Nodes) -> None:
    stray = Disk(b"s" * 16)
    stray.entries.append(Entry(0, 0, 1))
    logs = SimulatedLogs({("stray", 0): stray})
    nodes.register(1, incarnation_number=7)
    manager, _ = restarted(nodes, logs, caught_up_to=len(nodes.consensus.entries))
    assert logs.aside == [("stray", 0, b"s" * 16)]
    assert (logs.deleted, manager.metrics.logs_set_aside) == ([], 1)
    manager.stop()


async def test_data_of_a_topic_that_metadata_knows_was_deleted_is_deleted(nodes: Nodes) -> None:
    topic_id = nodes.create("events", (1,))
    nodes.partition(1, "events").append(writable(1), required_acks=1, now_ms=1)
    disks = dict(nodes.logs[1].disks)
    nodes.commit(DeleteTopic(topic_id))
    logs = SimulatedLogs(disks)
    nodes.register(1, incarnation_number=7)
    manager, _ = restarted(nodes, logs, caught_up_to=len(nodes.consensus.entries))
    assert (logs.aside, logs.deleted) == ([], [("events", 0, topic_id)])
    manager.stop()


async def test_data_of_another_topic_of_the_same_name_makes_room(nodes: Nodes) -> None:
    old = Disk(b"o" * 16)
    old.entries.append(Entry(0, 0, 1))
    logs = SimulatedLogs({("events", 0): old})
    nodes.create("events", (1,))
    nodes.register(1, incarnation_number=7)
    manager, _ = restarted(nodes, logs, caught_up_to=len(nodes.consensus.entries))
    assert logs.aside == [("events", 0, b"o" * 16)]
    assert manager.partition("events", 0).end_offset == 0
    manager.stop()


async def test_a_log_that_could_not_be_opened_is_no_empty_log(nodes: Nodes) -> None:
    """Were it set aside, an empty one in its place would count as in sync and could lead."""
    nodes.create("events", (1, 2))
    logs = SimulatedLogs({})
    unreadable = logs.create("events", 0, b"?" * 16, LogConfig())
    unreadable.topic_id = None  # type: ignore[assignment]
    unreadable.failure = "it could not be opened: Input/output error"
    nodes.register(1, incarnation_number=7)
    manager, store = restarted(nodes, logs, caught_up_to=len(nodes.consensus.entries))
    nodes.consensus.stores.append(store)
    nodes.elect("events", 0, 1)
    partition = manager.partition("events", 0)
    assert (logs.aside, logs.deleted) == ([], [])
    assert partition.opened_log is unreadable
    assert not partition.is_leader and not partition.follows
    await settle(lambda: store.image.topics["events"].partitions[0].isr == (2,), "it leaves the ISR by itself")
    manager.stop()


async def test_metadata_older_than_the_log_gives_no_role(nodes: Nodes) -> None:
    topic_id = nodes.create("events", (1,))
    ahead = Disk(topic_id)
    ahead.entries.append(Entry(0, 99, 1))
    logs = SimulatedLogs({("events", 0): ahead})
    nodes.register(1, incarnation_number=7)
    manager, store = restarted(nodes, logs, caught_up_to=len(nodes.consensus.entries))
    nodes.consensus.stores.append(store)
    nodes.elect("events", 0, 1)
    partition = manager.partition("events", 0)
    assert partition.leader_id == 1
    assert not partition.is_leader and not partition.follows
    manager.stop()


async def test_gauges_count_what_operators_watch(nodes: Nodes) -> None:
    nodes.create("whole", (1, 2))
    nodes.create("thin", (1, 2), min_insync_replicas="2")
    nodes.create("dead", (1,))
    nodes.elect("thin", 0, 1, isr=(1,))
    nodes.elect("dead", 0, -1)
    moving = nodes.create("moving", (1,))
    assert nodes.commit(AssignPartition([Reassignment(moving, 0, (2,))])).ok
    gauges = nodes.managers[1].gauges()
    assert (gauges.leaders, gauges.followers, gauges.offline) == (3, 1, 1)
    assert (gauges.under_replicated, gauges.under_min_isr, gauges.reassigning) == (2, 1, 1)
