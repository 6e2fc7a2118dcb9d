"""With ten thousand topics no change of the metadata does more between two turns of the loop than a few milliseconds.

What is counted is work, not time: how many values are made, and roles taken, in one slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator

import pytest

from chronik.metadata import commands, partitions
from chronik.metadata.commands import RegisterBroker
from chronik.metadata.model import NO_LEADER, TopicInfo
from chronik.metadata.snapshot import TOPICS_PER_FRAME
from chronik.metadata.store import TOUCHED_PER_NOTICE, MetadataStore, SlicedStore
from chronik.raft.driver_apply import Applier
from chronik.raft.types import Entry, EntryKind, SnapshotMeta
from chronik.replication.manager import FOLLOWED_PER_SLICE
from chronik.replication.partition import Partition
from harness.replica_nodes import Nodes, incarnation

TOPICS = 10_000
ORDERS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))


@pytest.fixture(scope="module")
def image_bytes() -> bytes:
    """The snapshot of a cluster of three brokers that lead a third of ten thousand topics each."""
    nodes = Nodes(1)
    store = nodes.stores[1]
    for node_id in (1, 2, 3):
        nodes.register(node_id)
    for number in range(TOPICS):
        nodes.create(f"topic-{number:05d}", ORDERS[number % 3], number=0)
    return store.snapshot()()


class OneOfThree:
    """One node of the three, following the image."""

    def __init__(self, image_bytes: bytes, process: int = 0) -> None:
        self.nodes = Nodes(1)
        self.store = self.nodes.stores[1]
        self.manager = self.nodes.managers[1]
        self.manager.incarnation = incarnation(1, process)
        self.nodes.start(register=False)
        self.store.restore(image_bytes)

    def registering(self, node_id: int) -> bytes:
        """The command of a broker that comes back as a new process while it still leads."""
        known = self.store.image.brokers[node_id]
        return commands.encode(
            RegisterBroker(node_id, incarnation(node_id, 1), "localhost", 9000 + node_id, seen_epoch=known.epoch)
        )

    def led(self, node_id: int) -> int:
        return sum(state.leader == node_id for _, _, state in self.store.image.each_partition())


@pytest.fixture
async def node(image_bytes: bytes) -> AsyncIterator[OneOfThree]:
    found = OneOfThree(image_bytes)
    yield found
    found.nodes.stop()


class Work:
    """Counts calls, and remembers the most that came between two pauses."""

    def __init__(self) -> None:
        self.now = self.most = self.total = self.slices = 0

    def counting(self, function: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)
            return function(*args)

        return counted

    def pause(self) -> None:
        self.slices += 1
        self.now = 0

    def run(self, slices: Generator[None, None, object]) -> None:
        for _ in slices:
            self.pause()


async def test_a_registration_ends_thousands_of_leaderships_in_slices_and_all_at_once(
    node: OneOfThree, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Work()
    monkeypatch.setattr(partitions, "_with", made.counting(partitions._with))
    image = node.store.image
    led = node.led(2)
    slices = node.store.apply_in_slices([(image.applied_index + 1, node.registering(2))])
    seen: set[int] = set()
    for _ in slices:
        made.pause()
        seen.add(node.led(2))
    assert led == TOPICS // 3 and seen == {led, 0}, "no reader sees it half done"
    assert made.total == led and made.most <= partitions.TOPICS_PER_SLICE


@pytest.mark.parametrize(("registering", "touched"), [(1, TOPICS), (2, TOPICS // 3)])
async def test_replicas_take_their_roles_in_slices(
    image_bytes: bytes, monkeypatch: pytest.MonkeyPatch, registering: int, touched: int
) -> None:
    """All of them when this node is a new process, else those that the other broker led."""
    node = OneOfThree(image_bytes, process=1 if registering == 1 else 0)
    roles = Work()
    monkeypatch.setattr(Partition, "update", roles.counting(Partition.update))
    roles.run(node.store.apply_in_slices([(node.store.image.applied_index + 1, node.registering(registering))]))
    assert roles.total == touched and roles.most <= FOLLOWED_PER_SLICE
    monkeypatch.undo()
    node.nodes.stop()


async def test_an_index_counts_as_followed_only_when_every_replica_has_its_role(node: OneOfThree) -> None:
    """The controller gives partitions to others once this node says that it has followed the change."""
    index = node.store.image.applied_index + 1
    behind = 0
    for _ in node.store.apply_in_slices([(index, node.registering(2))]):
        stale = any(partition.leader_id == 2 for partition in node.manager.partitions())
        assert not stale or node.store.followed_index == index - 1
        behind += stale and node.store.image.applied_index == index
    assert behind, "the image was ahead of the roles for a while"
    assert node.store.followed_index == index


async def test_a_snapshot_is_taken_in_in_slices_and_replaces_the_image_at_once(image_bytes: bytes) -> None:
    store = MetadataStore()
    counts: set[int] = set()
    pauses = 0
    for _ in store.restore_in_slices(image_bytes):
        counts.add(len(store.image.topics))
        pauses += 1
    assert counts == {0, TOPICS}, "no reader sees it half done"
    assert pauses >= TOPICS // TOPICS_PER_FRAME + TOPICS // partitions.TOPICS_PER_SLICE - 1
    assert store.snapshot()() == image_bytes


async def test_commands_that_touch_many_topics_are_told_as_they_come(node: OneOfThree) -> None:
    touched: list[int] = []
    node.store.subscribe(lambda delta: touched.append(len(delta.partitions_changed)))
    image, first = node.store.image, node.store.image.applied_index + 1
    topics = list(image.topics.values())
    entries = [(first + start // 200, _elections(topics[start : start + 200])) for start in range(0, 3000, 200)]
    node.store.apply(entries)
    assert sum(touched) == 3000 and max(touched) < TOUCHED_PER_NOTICE + 200


def _elections(topics: list[TopicInfo]) -> bytes:
    changes = [
        commands.LeaderChange(topic.topic_id, 0, NO_LEADER, topic.partitions[0].partition_epoch) for topic in topics
    ]
    return commands.encode(commands.SetPartitionLeader(changes))


async def test_the_loop_has_its_turns_while_a_long_entry_is_applied(node: OneOfThree) -> None:
    """No snapshot of the state may be taken meanwhile, and the entry counts as applied only at the end."""
    applied: list[int] = []
    turns = 0
    applier = Applier(
        SlicedStore(node.store),
        slice_s=0.0,
        on_applied=lambda entries, results: applied.extend(entry.index for entry in entries),
        on_restored=lambda meta: None,
        on_slice_done=lambda: None,
        on_failed=lambda reason, error: pytest.fail(reason),
    )
    index = node.store.image.applied_index + 1
    applier.start_at(SnapshotMeta(index=index - 1))
    applier.add([Entry(1, index, EntryKind.DATA, node.registering(2))])
    applier.run()
    while not applier.is_idle:
        assert not applied and applier.index == index - 1
        assert applier.is_between_slices
        turns += 1
        await asyncio.sleep(0)
    assert applied == [index] and applier.index == index and not applier.is_between_slices
    assert turns >= TOPICS // partitions.TOPICS_PER_SLICE
