"""What clients and replicas did, and the checkers that watch it. A checker that finds something raises `Violation`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.metadata.model import NO_LEADER
from chronik.replication import wire
from harness.simulated_log import Disk, Entry

if TYPE_CHECKING:
    from chronik.replication.partition import Partition
    from simulation.replication.node import SimulatedNode
    from simulation.replication.world import World

TOPIC = "events"


class Violation(AssertionError):
    """A promise was broken."""


class History:
    """Everything acknowledged and everything seen, per partition, and the promises about it."""

    def __init__(self, world: World, partitions: int) -> None:
        self._world = world
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(partitions)]
        self.visible: list[list[Entry]] = [[] for _ in range(partitions)]
        self._marks: dict[Partition, int] = {}
        self._last_offset: dict[tuple[int, int], int] = {}
        self.counts = {"acknowledged": 0, "refused": 0, "unknown": 0, "read": 0, "elections": 0}

    # what happens

    def acknowledge(self, node: SimulatedNode, index: int, value: int, offset: int, epoch: int, acks: int) -> None:
        """A leader lets an acknowledgement go."""
        self._world.say(f"node {node.node_id} acknowledges {value} at {index}:{offset} epoch {epoch} acks {acks}")
        self._stale_leader_never_acknowledges(node, index, epoch)
        self.counts["acknowledged"] += 1
        if acks == 1:
            return
        before = self.acknowledged[index].get(offset)
        if before is not None:
            raise Violation(f"offset {index}:{offset} acknowledged twice, for {before} and for {value}")
        self.acknowledged[index][offset] = value
        self.in_sync_replicas_have_everything(index)

    def in_order(self, producer: int, index: int, offset: int) -> None:
        """A producer that waits for each answer gets rising offsets."""
        last = self._last_offset.get((producer, index), -1)
        if offset <= last:
            raise Violation(f"producer {producer} wrote {index}:{offset} after {index}:{last}: reordered")
        self._last_offset[producer, index] = offset

    def read(self, index: int, entries: list[Entry]) -> None:
        """A consumer sees records."""
        seen = self.visible[index]
        for entry in entries:
            if entry.offset < len(seen):
                if seen[entry.offset] != entry:
                    raise Violation(f"a consumer saw {seen[entry.offset]} at {index}:{entry.offset}, and later {entry}")
            elif entry.offset == len(seen):
                seen.append(entry)
            else:
                raise Violation(f"a consumer read {entry} of {index} after offset {len(seen) - 1}: a gap")
        self.counts["read"] += len(entries)

    def answer(self, node: SimulatedNode, follower: int, payload: bytes) -> None:
        """A leader answers a fetch: what it sends of a partition it sends once."""
        slots = [result.slot for result in wire.decode_response(payload)[0].results if result.size]
        if len(set(slots)) != len(slots):
            raise Violation(f"node {node.node_id} sends node {follower} the same records twice in one answer")

    def leadership(self, node: SimulatedNode, partition: Partition, leads: bool) -> None:
        """A node begins to lead: it must have everything that was ever acknowledged or seen."""
        if not leads:
            return
        self.counts["elections"] += 1
        self._world.say(f"node {node.node_id} leads {partition.index} in epoch {partition.leader_epoch}")
        self._everything_is_on(
            f"the new leader {node.node_id}", node.disks.get((TOPIC, partition.index)), partition.index
        )

    # promises

    def _stale_leader_never_acknowledges(self, node: SimulatedNode, index: int, epoch: int) -> None:
        info = self._world.controller.image.topics[TOPIC].partitions[index]
        replaced = info.leader_epoch > epoch and info.leader not in (NO_LEADER, node.node_id)
        if replaced:
            raise Violation(
                f"node {node.node_id} acknowledges in epoch {epoch} of {index}, "
                f"but node {info.leader} was elected in epoch {info.leader_epoch}"
            )

    def check(self) -> None:
        """Everything that must hold at any moment."""
        for index in range(len(self.acknowledged)):
            self.in_sync_replicas_have_everything(index)
            self._identical_up_to_the_high_watermark(index)
        for node in self._world.running():
            for partition in node.replicas.partitions():
                self._monotonic(node, partition)

    def in_sync_replicas_have_everything(self, index: int) -> None:
        """Whoever metadata holds to be in sync has all that was acknowledged or seen: any of them may lead next."""
        for member in self._world.controller.image.topics[TOPIC].partitions[index].isr:
            if member not in self._world.wiped:
                disk = self._world.disks[member].get((TOPIC, index))
                who = f"in-sync replica {member}"
                end = self._everything_is_on(who, disk, index)
                if disk is not None and self._world.conditions.durability == "fsync" and end > disk.synced:
                    raise Violation(f"{who} has {index}:{disk.synced}, acknowledged or seen, but not synced")

    def _everything_is_on(self, who: str, disk: Disk | None, index: int) -> int:
        """Checks that a disk has all that was acknowledged or seen; returns where that ends."""
        seen, entries = self.visible[index], disk.entries if disk is not None else []
        if entries[: len(seen)] != seen:
            at = next(n for n, entry in enumerate(seen) if n >= len(entries) or entries[n] != entry)
            raise Violation(f"{who} lost {seen[at]}, which a consumer saw; {_at(entries, at)}")
        end = len(seen)
        for offset, value in self.acknowledged[index].items():
            if offset >= end:
                self._holds(who, disk, index, offset, value)
        return max(end, max(self.acknowledged[index], default=-1) + 1)

    def _holds(self, who: str, disk: Disk | None, index: int, offset: int, value: int) -> None:
        entries = disk.entries if disk is not None else []
        if offset >= len(entries) or entries[offset].value != value:
            raise Violation(f"{who} lost {value}, acknowledged at {index}:{offset}; {_at(entries, offset)}")

    def _identical_up_to_the_high_watermark(self, index: int) -> None:
        logs = [
            (node.node_id, log) for node in self._world.running() if (log := node.logs.get(TOPIC, index)) is not None
        ]
        for position, (one, first) in enumerate(logs):
            for other, second in logs[position + 1 :]:
                end = min(first.high_watermark, second.high_watermark)
                if first.disk.entries[:end] != second.disk.entries[:end]:
                    at = next(n for n in range(end) if first.disk.entries[n] != second.disk.entries[n])
                    raise Violation(
                        f"nodes {one} and {other} differ at {index}:{at} below their high watermarks: "
                        f"{first.disk.entries[at]} and {second.disk.entries[at]}"
                    )

    def _monotonic(self, node: SimulatedNode, partition: Partition) -> None:
        last = self._marks.get(partition, 0)
        if partition.high_watermark < last:
            raise Violation(
                f"node {node.node_id}: the high watermark of {partition.index} fell from {last} "
                f"to {partition.high_watermark}"
            )
        self._marks[partition] = partition.high_watermark

    def finish(self) -> None:
        """After everything healed: the logs are the same everywhere, and hold what was acknowledged or seen once."""
        self.check()
        for index, acknowledged in enumerate(self.acknowledged):
            replicas = self._world.controller.image.topics[TOPIC].partitions[index].replicas
            disks = [self._world.disks[node_id].get((TOPIC, index), Disk(b"")) for node_id in replicas]
            for disk in disks[1:]:
                if disk.entries != disks[0].entries:
                    raise Violation(f"the replicas of partition {index} differ in the end")
            for disk in disks:
                for offset, value in acknowledged.items():
                    self._holds("a replica", disk, index, offset, value)
                values = [entry.value for entry in disk.entries]
                if len(set(values)) != len(values):
                    raise Violation(f"a record of partition {index} is there twice")


def _at(entries: list[Entry], offset: int) -> str:
    return f"it has {entries[offset]}" if offset < len(entries) else f"it ends at {len(entries)}"
