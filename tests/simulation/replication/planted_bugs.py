"""Mistakes that the simulation must find: each is a small, plausible mutation of the code, applied while a seed runs.

`BUGS` maps a name to a function that plants it and a seed that is known to find it. When the simulation changes, the
seeds change: `python -m simulation.replication.run --bugs` searches new ones and prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from chronik.metadata import image as metadata_image
from chronik.metadata import partitions
from chronik.metadata.commands import UpdateIsr
from chronik.metadata.model import NO_LEADER, UNSET_EPOCH
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication import isr, leadership, manager, partition, replica_state
from chronik.replication.fetch_server import FetchServer, FetchSlot
from chronik.replication.fetcher import Fetchers, LeaderFetcher
from chronik.replication.following import Followed
from chronik.replication.leadership import Leadership
from chronik.replication.lease import Lease
from chronik.replication.manager import ReplicaManager
from chronik.replication.partition import Partition
from chronik.replication.replica_state import FollowerProgress
from simulation.replication.conditions import OUT_OF_TOUCH
from simulation.replication.node import SimulatedNode
from simulation.swarm import PlantedBug


@contextmanager
def _isr_change_without_epoch_checks() -> Iterator[None]:
    """Whoever proposes an ISR last has it."""

    def apply(image: Any, command: UpdateIsr, index: int, delta: Any) -> Any:
        results = []
        for change in command.changes:
            old = image.partition_by_id(change.topic_id, change.partition)
            members = change.isr if old.leader in (NO_LEADER, *change.isr) else (old.leader, *change.isr)
            unchecked = msgspec.structs.replace(
                change, partition_epoch=UNSET_EPOCH, leader_epoch=old.leader_epoch, epochs=(), isr=members
            )
            result = partitions.update_isr(image, UpdateIsr(old.leader, [unchecked]), index, delta)
            results.extend(result.value)
        return partitions.done(results)

    with patch.dict(metadata_image._APPLIERS, {UpdateIsr: apply}):
        yield


@contextmanager
def _high_watermark_from_the_leader_alone() -> Iterator[None]:
    with patch.object(partition, "next_high_watermark", lambda current, counted, *_: (max(current, counted), False)):
        yield


@contextmanager
def _high_watermark_from_the_fastest_follower() -> Iterator[None]:
    def fastest(current: int, counted: int, end: int, followers: Any, maximal: Any, *_: Any) -> tuple[int, bool]:
        members = [follower.counted for node_id, follower in followers.items() if node_id in maximal]
        return max(current, min(counted, max(members, default=counted))), False

    with patch.object(partition, "next_high_watermark", fastest):
        yield


@contextmanager
def _high_watermark_over_the_committed_isr() -> Iterator[None]:
    """A member that is about to be added is not waited for."""

    def begin(self: Leadership, wanted: tuple[int, ...]) -> None:
        self.pending_isr = wanted

    original = replica_state.next_high_watermark

    def next_mark(current: int, counted: int, end: int, followers: Any, maximal: Any, *rest: Any) -> tuple[int, bool]:
        return original(current, counted, end, followers, maximal, lambda node_id: False, rest[1])

    with patch.object(Leadership, "begin_isr_change", begin), patch.object(partition, "next_high_watermark", next_mark):
        yield


@contextmanager
def _high_watermark_over_the_wanted_isr() -> Iterator[None]:
    """A member that is about to be removed is no longer waited for."""

    def begin(self: Leadership, wanted: tuple[int, ...]) -> None:
        self.pending_isr = self.maximal_isr = wanted

    with patch.object(Leadership, "begin_isr_change", begin):
        yield


@contextmanager
def _truncate_to_the_high_watermark() -> Iterator[None]:
    """A new follower cuts its log to the high watermark it knows, as Kafka did before leader epochs."""
    original = Fetchers.follow

    def follow(self: Fetchers, following: Partition) -> None:
        current = self._followed.get(following)
        changed = current is None or current.leader_epoch != following.leader_epoch
        if changed and following.opened_log is not None:
            following.opened_log.truncate_to(following.high_watermark)
        original(self, following)

    with patch.object(Fetchers, "follow", follow), patch.object(Partition, "compare", lambda *_: None):
        yield


@contextmanager
def _never_truncate() -> Iterator[None]:
    def comparable(self: FetchServer, session: Any, added: Any, leader: Partition) -> bool:
        added.fetch_offset = min(added.fetch_offset, leader.end_offset)
        return True

    with patch.object(FetchServer, "_comparable", comparable):
        yield


@contextmanager
def _acknowledge_after_the_lease() -> Iterator[None]:
    with patch.object(Lease, "held", lambda self: True):
        yield


@contextmanager
def _lease_counts_before_its_metadata() -> Iterator[None]:
    """A renewed lease is used while the metadata it was granted with is still on its way."""
    with patch.object(SimulatedNode, "lease_granted", lambda self, until, index: self.lease.renew(until)):
        yield


@contextmanager
def _count_what_followers_have_not_synced() -> Iterator[None]:
    original = FollowerProgress.report

    def report(self: FollowerProgress, end: int, synced: int, leader_end: int, now: float) -> None:
        original(self, end, end, leader_end, now)

    with patch.object(FollowerProgress, "report", report):
        yield


@contextmanager
def _count_what_the_leader_has_not_synced() -> Iterator[None]:
    original = replica_state.next_high_watermark

    def next_mark(current: int, counted: int, end: int, *rest: Any) -> tuple[int, bool]:
        return original(current, end, end, *rest)

    with patch.object(partition, "next_high_watermark", next_mark):
        yield


@contextmanager
def _count_followers_before_comparing_epochs() -> Iterator[None]:
    original = FetchServer._comparable

    def comparable(self: FetchServer, session: Any, added: Any, leader: Partition) -> bool:
        lead = leader.leadership
        assert lead is not None
        leader.follower_progress(lead.followers[session.node_id], added.fetch_offset, added.synced_offset)
        return original(self, session, added, leader)

    with patch.object(FetchServer, "_comparable", comparable):
        yield


@contextmanager
def _join_without_having_caught_up() -> Iterator[None]:
    with patch.object(leadership, "may_join", lambda progress, *_: progress.validated()):
        yield


@contextmanager
def _join_without_reaching_the_epoch_start() -> Iterator[None]:
    """A new leader's high watermark is old: reaching it says nothing about what was acknowledged before."""
    with patch.object(leadership, "may_join", lambda progress, mark, start: progress.counted >= mark):
        yield


@contextmanager
def _join_under_an_older_registration() -> Iterator[None]:
    """A node that came back without its disk joins on what its earlier process reported."""
    original = partitions._resize_isr

    def resize(image: Any, old: Any, change: Any, proposer: int) -> Any:
        return original(image, old, msgspec.structs.replace(change, epochs=()), proposer)

    def alive(self: ReplicaManager, node_id: int, registration: int) -> bool:
        return self.store.image.is_alive(node_id)

    with patch.object(partitions, "_resize_isr", resize), patch.object(ReplicaManager, "may_join_isr", alive):
        yield


@contextmanager
def _lead_on_after_a_restart() -> Iterator[None]:
    """A restarted leader goes on in the epoch of its earlier process."""

    def now(self: ReplicaManager) -> int:
        broker = self.store.image.brokers.get(self.node_id)
        return broker.epoch if broker is not None else manager.UNREGISTERED

    with (
        patch.object(ReplicaManager, "_registration_now", now),
        patch("chronik.metadata.brokers.end_leadership", lambda *_, **__: None),
    ):
        yield


@contextmanager
def _commits_survive_a_loss_of_leadership() -> Iterator[None]:
    def resign(self: Partition) -> None:
        self._lead = None
        self._wake()

    with patch.object(Partition, "_resign", resign):
        yield


@contextmanager
def _unknown_isr_change_taken_for_refused() -> Iterator[None]:
    with patch.object(Leadership, "isr_change_unknown", Leadership.isr_change_refused):
        yield


@contextmanager
def _take_in_answers_of_an_older_epoch() -> Iterator[None]:
    """A follower goes on appending what the leader of the last epoch still sends."""

    def leave(self: LeaderFetcher, followed: Followed) -> None:
        return None

    with patch.object(LeaderFetcher, "leave", leave):
        yield


@contextmanager
def _consumers_read_to_the_end() -> Iterator[None]:
    with patch.object(Partition, "readable_end", lambda self, *_: self.end_offset):
        yield


@contextmanager
def _shrink_the_isr_without_agreement() -> Iterator[None]:
    """A leader that finds a follower slow drops it at once, and tells the cluster when it can."""
    original = isr.IsrUpdater._begin

    def begin(self: isr.IsrUpdater) -> Any:
        begun = original(self)
        for each in begun:
            each.lead.maximal_isr = tuple(member for member in each.lead.maximal_isr if member in each.change.isr)
            each.partition.advance_high_watermark()
        return begun

    with patch.object(isr.IsrUpdater, "_begin", begin):
        yield


@contextmanager
def _read_again_what_was_marked_during_a_read() -> Iterator[None]:
    """An append while a read waits for the disk lets the same answer carry the same batches once more."""
    marked: set[FetchSlot] = set()
    read, news = FetchServer._read, FetchServer._news

    async def note(self: FetchServer, slot: FetchSlot, max_bytes: int, *, first: bool) -> Any:
        data = await read(self, slot, max_bytes, first=first)
        if slot in slot.session.ready:
            marked.add(slot)
        return data

    def mark_again(self: FetchServer, slot: FetchSlot, size: int) -> Any:
        if size and slot in marked:
            marked.discard(slot)
            slot.session.ready[slot] = None
        return news(self, slot, size)

    with patch.object(FetchServer, "_read", note), patch.object(FetchServer, "_news", mark_again):
        yield


@contextmanager
def _looked_at_before_the_read_only(*, tells: bool, sends: bool) -> Iterator[None]:
    """Whether the leader still leads in the follower's epoch is asked before a read, not after it: then it `tells` why
    the read failed, or `sends` what it found, though the log may be another's by now."""
    original = FetchServer._read

    async def read(self: FetchServer, slot: FetchSlot, max_bytes: int, *, first: bool) -> Any:
        if not slot.current():
            return await original(self, slot, max_bytes, first=first)
        leading, node_id = slot.partition, slot.session.node_id
        try:
            data = leading.read_nowait(slot.fetch_offset, max_bytes, replica_id=node_id, at_least_one=first)
            if data is None:
                data = await leading.read(slot.fetch_offset, max_bytes, replica_id=node_id, at_least_one=first)
        except KafkaError as error:
            code = error.code if tells or slot.current() else ErrorCode.FENCED_LEADER_EPOCH
            self._refuse(slot.session, slot.number, code, leading.log_start_offset, leading.end_offset)
            return None
        if not sends and not slot.current():
            self._refuse(slot.session, slot.number, ErrorCode.FENCED_LEADER_EPOCH)
            return None
        return data

    async def whoever_leads(self: Partition, reading: Any) -> Any:
        return await reading

    with patch.object(FetchServer, "_read", read), patch.object(Partition, "as_leader", whoever_leads):
        yield


@contextmanager
def _tell_of_a_log_that_was_cut_during_a_read() -> Iterator[None]:
    with _looked_at_before_the_read_only(tells=True, sends=False):
        yield


@contextmanager
def _send_what_a_later_leader_wrote_during_a_read() -> Iterator[None]:
    with _looked_at_before_the_read_only(tells=False, sends=True):
        yield


_RESTLESS = {"move_rate": 1.5, "slow_share": 0.2, "produce_rate": 40.0}
_LAGGING = {"nodes": 3, "lag_limit_s": 0.6, "slow_sync_share": 0.4, "produce_rate": 40.0}
_SLOW = {
    "nodes": 3,
    "partitions": 3,
    "seconds": 20.0,
    "lag_limit_s": 0.6,
    "slow_share": 0.2,
    "slow_latency_s": 0.3,
    "cut_rate": 1.5,
    "cut_s": 1.0,
    "produce_rate": 40.0,
}
_SLOW_READS = {"slow_read_share": 0.7, "slow_read_s": 0.03}
CUT_OFF_DURING_READS = {
    **OUT_OF_TOUCH,
    **dict.fromkeys(("crash_rate", "pause_rate", "reassign_rate", "reset_rate", "all_crash_rate", "slow_share"), 0.0),
    "nodes": 3,
    "partitions": 1,
    "min_isr": 1,
    "seconds": 20.0,
    "durability": "os",
    "producers": 4,
    "slow_read_share": 0.2,
    "slow_read_s": 1.2,
}

BUGS: dict[str, PlantedBug] = {
    "isr change without epoch checks": PlantedBug(_isr_change_without_epoch_checks, 63),
    "high watermark from the leader alone": PlantedBug(_high_watermark_from_the_leader_alone, 0),
    "high watermark from the fastest follower": PlantedBug(_high_watermark_from_the_fastest_follower, 0),
    "high watermark over the committed isr": PlantedBug(_high_watermark_over_the_committed_isr, 6),
    "high watermark over the wanted isr": PlantedBug(_high_watermark_over_the_wanted_isr, 39, _LAGGING),
    "truncate to the high watermark": PlantedBug(_truncate_to_the_high_watermark, 1),
    "never truncate": PlantedBug(_never_truncate, 0),
    "acknowledge after the lease": PlantedBug(_acknowledge_after_the_lease, 10),
    "lease counts before its metadata": PlantedBug(
        _lease_counts_before_its_metadata,
        254,
        {"cut_rate": 0.8, "cut_s": 3.0, "slow_share": 0.2, "acks_one_share": 0.7, "astray_share": 0.6},
    ),
    "count what followers have not synced": PlantedBug(_count_what_followers_have_not_synced, 2),
    "count what the leader has not synced": PlantedBug(_count_what_the_leader_has_not_synced, 2),
    "count followers before comparing epochs": PlantedBug(_count_followers_before_comparing_epochs, 3),
    "join without having caught up": PlantedBug(_join_without_having_caught_up, 0),
    "join without reaching the epoch start": PlantedBug(
        _join_without_reaching_the_epoch_start, 2, {**_SLOW, "move_rate": 1.5, "min_isr": 1}
    ),
    "join under an older registration": PlantedBug(
        _join_under_an_older_registration,
        78,
        {"nodes": 3, "crash_rate": 0.8, "wipe_share": 0.8, "down_s": 0.1, "slow_share": 0.2, "cut_rate": 1.5},
    ),
    "lead on after a restart": PlantedBug(_lead_on_after_a_restart, 1),
    "commits survive a loss of leadership": PlantedBug(_commits_survive_a_loss_of_leadership, 0),
    "unknown isr change taken for refused": PlantedBug(
        _unknown_isr_change_taken_for_refused, 41, {**_SLOW, "lag_limit_s": 1.5, "isr_timeout_s": 0.2}
    ),
    "take in answers of an older epoch": PlantedBug(_take_in_answers_of_an_older_epoch, 147, _RESTLESS),
    "consumers read to the end": PlantedBug(_consumers_read_to_the_end, 1),
    "shrink the isr without agreement": PlantedBug(_shrink_the_isr_without_agreement, 14),
    "read again what was marked during a read": PlantedBug(_read_again_what_was_marked_during_a_read, 0, _SLOW_READS),
    "tell of a log that was cut during a read": PlantedBug(
        _tell_of_a_log_that_was_cut_during_a_read, 88, CUT_OFF_DURING_READS
    ),
    "send what a later leader wrote during a read": PlantedBug(
        _send_what_a_later_leader_wrote_during_a_read, 137, CUT_OFF_DURING_READS
    ),
}
