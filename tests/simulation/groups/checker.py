"""What must hold in every run, whatever is lost, late, or killed.

1. In one generation of a classic group no partition is assigned to two members.
2. Of the members of a KIP-848 group that are not fenced, no two own the same partition at the same time.
3. What was acknowledged as committed is never lost: a later fetch sees it, or something written after it.
4. Whoever asks a coordinator that stays up gets an answer, within the time that its timeouts allow.
5. When faults end, groups become stable, and all partitions are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.groups.consumer_group import ConsumerGroup

if TYPE_CHECKING:
    from simulation.groups.world import World


class Violation(AssertionError):
    """Something that must hold did not."""


class Checker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.assignments: dict[int, dict[int, str]] = {}
        self.acknowledged: dict[tuple[str, int], int] = {}  # the place in the log of the last acknowledged commit
        self.counts = {"assignments": 0, "commits": 0, "fetches": 0, "ownerships": 0, "answers": 0}

    def assigned(self, generation: int, member: str, partitions: frozenset[int]) -> None:
        self.counts["assignments"] += 1
        owners = self.assignments.setdefault(generation, {})
        for partition in partitions:
            owner = owners.setdefault(partition, member)
            if owner != member:
                raise Violation(f"generation {generation}: partition {partition} belongs to {owner} and to {member}")

    def owners_changed(self) -> None:
        """Called when a member of the KIP-848 group takes over what it was told to."""
        node = self.world.node
        shard = node.coordinator.shards.at(0) if node is not None else None
        group = shard.group("consumer") if shard is not None else None
        if not isinstance(group, ConsumerGroup):
            return
        self.counts["ownerships"] += 1
        owners: dict[int, str] = {}
        for member in self.world.consumers:
            known = group.members.get(member.member_id)
            if known is None or member.epoch not in (known.epoch, known.previous_epoch):
                continue  # fenced, whether it knows or not
            for partition in member.owned:
                other = owners.setdefault(partition, member.name)
                if other != member.name:
                    raise Violation(f"partition {partition} is owned by {other} and by {member.name}")

    def committed(self, group: str, partition: int, value: int) -> None:
        self.counts["commits"] += 1
        place = (group, partition)
        offset = self.world.log.commit_offsets[value]
        self.acknowledged[place] = max(self.acknowledged.get(place, -1), offset)

    def fetched(self, group: str, partition: int, value: int, acknowledged_before: int) -> None:
        self.counts["fetches"] += 1
        found = self.world.log.commit_offsets[value] if value >= 0 else -1
        if found < acknowledged_before:
            raise Violation(
                f"{group}, partition {partition}: read {value}, written at {found}, though what stands at "
                f"{acknowledged_before} was acknowledged"
            )
