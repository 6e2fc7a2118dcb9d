"""Whatever is committed: applying never raises, every node gets the same image, snapshots are exact."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.metadata import commands as c
from chronik.metadata import snapshot
from chronik.metadata.delta import Delta
from chronik.metadata.image import MetadataImage, at_once
from chronik.metadata.model import NO_LEADER, BrokerStatus, ResourceType

node_ids = st.integers(0, 4)
topic_ids = st.integers(0, 5).map(lambda n: bytes([n]) * 16)
names = st.sampled_from(["a", "b", "a.b", "a_b", "", "..", "bad/name", "__consumer_offsets"])
epochs = st.integers(-1, 6)
replicas = st.lists(node_ids, max_size=4).map(tuple)
assignments = st.lists(replicas, max_size=3).map(tuple)
directories = st.sampled_from([b"", b"d" * 16, b"e" * 16])
features = st.sampled_from([{}, {"chronik.version": (1, 1)}, {"chronik.version": (1, 3), "group.version": (0, 1)}])
config_names = st.sampled_from(["retention.ms", "cleanup.policy"])
config_changes = st.builds(
    c.ConfigChange, st.sampled_from(c.ConfigOperation), config_names, st.none() | st.sampled_from(["", "x", "x,y", "1"])
)
leader_changes = st.builds(
    c.LeaderChange, topic_ids, st.integers(-1, 3), st.integers(-1, 4), epochs, st.none() | replicas, st.booleans()
)
isr_changes = st.builds(c.IsrChange, topic_ids, st.integers(-1, 3), epochs, epochs, replicas, replicas)

singles: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        c.RegisterBroker,
        node_ids,
        st.sampled_from([b"i" * 16, b"j" * 16, b""]),
        st.just("h"),
        st.integers(1, 3),
        directory_id=directories,
        features=features,
        seen_epoch=st.integers(-1, 60),
    ),
    st.builds(
        c.UpdateBrokerStatus, node_ids, st.sampled_from(BrokerStatus), epochs, st.sampled_from([None, True, False])
    ),
    st.builds(c.RemoveBroker, node_ids, epochs),
    st.builds(c.AddNode, node_ids, directories, st.just("h"), st.integers(1, 2)),
    st.builds(c.ConfirmNode, node_ids, directories),
    st.builds(c.RemoveNode, node_ids),
    st.builds(c.CreateTopic, names, topic_ids, assignments, st.just({}) | st.just({"retention.ms": "1"})),
    st.builds(c.DeleteTopic, topic_ids),
    st.builds(c.AddPartitions, topic_ids, st.integers(-1, 4), assignments),
    st.builds(
        c.AssignPartition,
        st.lists(st.builds(c.Reassignment, topic_ids, st.integers(0, 2), st.none() | replicas, epochs), max_size=3),
    ),
    st.builds(
        c.FinishAssignment,
        st.lists(st.builds(c.FinishedAssignment, topic_ids, st.integers(0, 2), epochs), max_size=3),
    ),
    st.builds(c.SetPartitionLeader, st.lists(leader_changes, max_size=3)),
    st.builds(c.UpdateIsr, node_ids, st.lists(isr_changes, max_size=3), epochs),
    st.builds(c.SetConfig, st.sampled_from(ResourceType), names, st.lists(config_changes, max_size=3), st.booleans()),
    st.builds(c.AllocateProducerIds, node_ids, st.integers(-1, 2**63), epochs),
    st.builds(c.SetClusterId, st.sampled_from(["", "x", "y"])),
    st.builds(
        c.SetFeatureLevel, st.sampled_from(["chronik.version", "group.version", "z"]), st.integers(-1, 4), st.booleans()
    ),
)
histories = st.lists(singles | st.builds(c.Batch, st.lists(singles, max_size=4)), max_size=40)


def a_cluster_of_three() -> MetadataImage:
    image = MetadataImage()
    for node_id in (1, 2, 3):
        image.apply(c.RegisterBroker(node_id, b"i" * 16, "h", 1, directory_id=b"d" * 16), 2 * node_id - 1)
        image.apply(c.UpdateBrokerStatus(node_id, BrokerStatus.ONLINE), 2 * node_id)
    image.apply(c.CreateTopic("a", bytes([1]) * 16, ((1, 2, 3), (2, 3))), 7)
    return image


def restored(image: MetadataImage) -> MetadataImage:
    other = MetadataImage()
    at_once(snapshot.install(other, at_once(snapshot.parse(snapshot.capture(image)()))))
    return other


def check_invariants(image: MetadataImage) -> None:
    assert {topic.topic_id: topic for topic in image.topics.values()} == image.topics_by_id
    assert image.partition_count == sum(len(topic.partitions) for topic in image.topics.values())
    for topic, _, partition in image.each_partition():
        assert partition.replicas and len(set(partition.replicas)) == len(partition.replicas)
        assert set(partition.isr) <= set(partition.replicas)
        assert partition.leader == NO_LEADER or partition.leader in partition.isr
        assert set(partition.adding) | set(partition.removing) <= set(partition.replicas)
        assert not image.was_deleted(topic.topic_id)


@settings(max_examples=80, deadline=None)
@given(histories, st.integers(0, 40))
def test_any_history_applies_the_same_everywhere_also_from_any_snapshot(
    history: list[c.Command], snapshot_at: int
) -> None:
    one, other = a_cluster_of_three(), a_cluster_of_three()
    for position, command in enumerate(history):
        index = 8 + position
        entry = c.encode(command)
        before = {(topic.topic_id, number): partition for topic, number, partition in one.each_partition()}
        delta = Delta()
        result = one.apply(c.decode(entry), index, delta)
        if position == snapshot_at:
            other = restored(other)
        assert other.apply(c.decode(entry), index) == result
        assert vars(one) == vars(other)
        check_invariants(one)
        check_delta(before, one, delta)
    assert vars(restored(one)) == vars(one)


def check_delta(before: dict[tuple[bytes, int], Any], image: MetadataImage, delta: Delta) -> None:
    """Epochs only rise, and every partition that changed is in the delta."""
    for topic, number, partition in image.each_partition():
        old = before.get((topic.topic_id, number))
        if old is None or old == partition:
            continue
        assert number in delta.partitions_changed[topic.topic_id]
        assert partition.partition_epoch > old.partition_epoch
        assert partition.leader_epoch >= old.leader_epoch
        if partition.leader != old.leader:
            assert partition.leader_epoch > old.leader_epoch


@settings(max_examples=50, deadline=None)
@given(histories)
def test_a_command_that_is_refused_changes_nothing(history: list[c.Command]) -> None:
    image = a_cluster_of_three()
    for position, command in enumerate(history):
        before = vars(restored(image))
        result = image.apply(command, 8 + position)
        if not result.ok:
            before["applied_index"] = 8 + position
            assert vars(image) == before
            assert result.error != 0 and result.reason


@settings(max_examples=50, deadline=None)
@given(histories)
def test_every_command_survives_the_trip_through_bytes(history: list[c.Command]) -> None:
    for command in history:
        assert c.decode(c.encode(command)) == command
