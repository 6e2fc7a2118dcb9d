"""Mistakes that the simulation must find: each is a small, plausible change of the code, made while a seed runs.

`BUGS` maps a name to how it is planted and a seed that is known to find it. When the simulation changes, so do the
seeds: `python -m simulation.groups.run --bugs` searches new ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from chronik.coordination import loader
from chronik.coordination.log_writer import LogWriter
from chronik.groups import consumer_group
from chronik.groups.classic_core import ClassicState
from chronik.groups.classic_rebalance import ASSIGNED
from chronik.groups.consumer_reconcile import next_step
from chronik.groups.records import raw
from chronik.groups.shard import Shard
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.internal_groups import GroupMetadataKey
from simulation.swarm import PlantedBug


@contextmanager
def _assignment_answered_before_it_is_written() -> Iterator[None]:
    original = Shard._persist

    def persist(self: Shard, group: Any, effect: Any) -> None:
        if effect.purpose != ASSIGNED:
            original(self, group, effect)
            return
        group.persisted(effect, ErrorCode.NONE, self.clock_ms())
        self.writer.add([raw(GroupMetadataKey(group=group.group_id), effect.value)], None, None)

    with patch.object(Shard, "_persist", persist):
        yield


@contextmanager
def _commit_acknowledged_before_it_is_replicated() -> Iterator[None]:
    original = LogWriter._send

    def send(self: LogWriter, writes: Any, *args: Any) -> int:
        offset = original(self, writes, *args)
        for write in writes:
            write.answer(ErrorCode.NONE)
        return offset

    with patch.object(LogWriter, "_send", send):
        yield


@contextmanager
def _loads_only_what_it_knows_to_be_committed() -> Iterator[None]:
    original = loader.Loader._load

    async def load(self: Any, shard: Any) -> None:
        partition = shard.partition
        with patch.object(type(partition), "end_offset", property(lambda leader: leader.high_watermark)):
            await original(self, shard)

    with patch.object(loader.Loader, "_load", load):
        yield


@contextmanager
def _partition_given_before_it_is_released() -> Iterator[None]:
    def step(member: Any, target: Any, epoch: int, held: Any, owned: Any) -> Any:
        return next_step(member, target, epoch, {}, owned)

    with patch.object(consumer_group, "next_step", step):
        yield


@contextmanager
def _any_generation_is_welcome() -> Iterator[None]:
    original = ClassicState._member_problem

    def problem(self: Any, member_id: str, instance_id: str | None, generation: int) -> Any:
        return original(self, member_id, instance_id, self.generation)

    with patch.object(ClassicState, "_member_problem", problem):
        yield


@contextmanager
def _removed_members_are_not_answered() -> Iterator[None]:
    def forget(self: Any, member: Any, error: ErrorCode) -> None:
        member.join_ticket = member.sync_ticket = None

    with patch.object(ClassicState, "_answer_waiting", forget):
        yield


BUGS: dict[str, PlantedBug] = {
    "assignment answered before it is written": PlantedBug(_assignment_answered_before_it_is_written, 24),
    "commit acknowledged before it is replicated": PlantedBug(_commit_acknowledged_before_it_is_replicated, 2),
    "loads only what it knows to be committed": PlantedBug(_loads_only_what_it_knows_to_be_committed, 0),
    "partition given before it is released": PlantedBug(_partition_given_before_it_is_released, 1),
    "any generation is welcome": PlantedBug(_any_generation_is_welcome, 34),
    "removed members are not answered": PlantedBug(_removed_members_are_not_answered, 1),
}
