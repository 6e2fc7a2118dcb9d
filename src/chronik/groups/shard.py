"""Everything that one partition of `__consumer_offsets` coordinates: its groups, their offsets, its log.

A shard exists while this node leads the partition. It is filled from the log (`replay`), then resumed; from then on
memory and log change together. The pure machines say what to do (`effects`), the shard does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from chronik.groups.classic import NEVER, ClassicGroup
from chronik.groups.classic_state import ClassicSettings, State
from chronik.groups.effects import Persist, Respond
from chronik.groups.log_writer import LogWriter, Reply
from chronik.groups.offset_book import CommittedOffset, OffsetBook, Place
from chronik.groups.records import RawRecord, parsed, raw
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.internal_groups import GroupMetadataKey, GroupMetadataValue
from chronik.protocol.messages.internal_offsets import OffsetCommitKey, OffsetCommitValue
from chronik.protocol.wire import DecodeError

if TYPE_CHECKING:
    from chronik.groups.timers import Timers
    from chronik.replication.partition import Partition

log = structlog.get_logger()


class Status(Enum):
    """Whether a shard answers for its groups."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class ShardSettings(msgspec.Struct, frozen=True):
    """The broker's settings that groups and offsets depend on."""

    classic: ClassicSettings
    retention_ms: int
    metadata_bytes_max: int


class Shard:
    """The groups of one partition."""

    def __init__(
        self,
        partition: Partition,
        settings: ShardSettings,
        timers: Timers,
        clock_ms: Callable[[], int],
        new_member_id: Callable[[str], str],
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.status = Status.LOADING
        self.writer = LogWriter(partition, clock_ms)
        self.offsets = OffsetBook()
        self.clock_ms = clock_ms
        self._groups: dict[str, ClassicGroup] = {}
        self._timers = timers
        self._new_member_id = new_member_id
        self._scheduled: dict[str, int] = {}
        self._commits_in_flight: Counter[str] = Counter()
        self._damaged = 0

    # --- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def groups(self) -> Iterable[ClassicGroup]:
        return self._groups.values()

    def classic_group(self, group_id: str) -> ClassicGroup:
        """The group, made when there is none."""
        group = self._groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id, self.settings.classic, self._new_member_id, self.clock_ms())
            self._groups[group_id] = group
        return group

    def settle(self, group: ClassicGroup) -> None:
        """Carries out what the group asks for, and sees to it that it is woken in time."""
        while group.effects:
            effects, group.effects = group.effects, []
            for effect in effects:
                if isinstance(effect, Respond):
                    effect.ticket(effect.response)
                else:
                    self._persist(group, effect)
        self._schedule(group)

    def _persist(self, group: ClassicGroup, persist: Persist) -> None:
        def written(error: ErrorCode) -> None:
            group.persisted(persist, error, self.clock_ms())
            self.settle(group)

        self.writer.add([raw(GroupMetadataKey(group=group.group_id), persist.value)], None, written)

    def _schedule(self, group: ClassicGroup) -> None:
        if group.wake_at < self._scheduled.get(group.group_id, NEVER):
            self._scheduled[group.group_id] = group.wake_at
            self._timers.schedule(group.wake_at, partial(self._wake, group, group.wake_at))

    def _wake(self, group: ClassicGroup, scheduled_for: int) -> None:
        if self._scheduled.get(group.group_id) != scheduled_for or self._groups.get(group.group_id) is not group:
            return  # woken earlier in the meantime, or gone
        del self._scheduled[group.group_id]
        group.tick(self.clock_ms())
        self.settle(group)

    def remove_groups(self, group_ids: Sequence[str], reply: Reply) -> None:
        """Deletes groups and all their offsets, in the log and here."""
        records: list[RawRecord] = []
        for group_id in group_ids:
            records.extend(self._offset_tombstones(group_id, self.offsets.committed(group_id)))
            records.append(raw(GroupMetadataKey(group=group_id), None))

        def removed(first: int) -> None:
            for group_id in group_ids:
                self._drop(group_id)

        self.writer.add(records, removed, reply)

    def _drop(self, group_id: str) -> None:
        group = self._groups.pop(group_id, None)
        self._scheduled.pop(group_id, None)
        self.offsets.forget_group(group_id)
        if group is not None:
            group.dissolve(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.settle(group)

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit(self, group_id: str, offsets: dict[Place, CommittedOffset], reply: Reply) -> None:
        """Writes offsets; they count, and the answer is given, when they are committed."""
        self._commits_in_flight[group_id] += 1

        def committed(first: int) -> None:
            self.classic_group(group_id)
            for position, (place, offset) in enumerate(offsets.items()):
                self.offsets.commit(group_id, place, msgspec.structs.replace(offset, log_offset=first + position))

        def answered(error: ErrorCode) -> None:
            self._landed(group_id)
            reply(error)

        self.writer.add(_offset_records(group_id, offsets), committed, answered)

    def pend(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: dict[Place, CommittedOffset],
        reply: Reply,
    ) -> None:
        """Writes offsets of a transaction; they count once its marker says commit. Raises KafkaError."""
        records = _offset_records(group_id, offsets)
        first = self.writer.append(records, reply, producer_id=producer_id, producer_epoch=producer_epoch)
        for position, (place, offset) in enumerate(offsets.items()):
            self.offsets.pend(
                producer_id, group_id, place, msgspec.structs.replace(offset, log_offset=first + position)
            )

    def complete_transaction(self, producer_id: int, commit: bool) -> None:
        """A marker is in the log: pending offsets of the producer count, or are forgotten."""
        for group_id in self.offsets.complete(producer_id, commit):
            self.classic_group(group_id)

    def _landed(self, group_id: str) -> None:
        self._commits_in_flight[group_id] -= 1
        if self._commits_in_flight[group_id] <= 0:
            del self._commits_in_flight[group_id]

    def when_commits_landed(self, group_id: str, call: Reply) -> None:
        """Calls back when the commits this group has sent so far count, so that it reads what it wrote."""
        if self._commits_in_flight[group_id]:
            self.writer.add((), None, call)
        else:
            call(ErrorCode.NONE)

    def forget_offsets(self, group_id: str, places: Sequence[Place], reply: Reply) -> None:
        """Deletes offsets of a group, in the log and here."""

        def forgotten(first: int) -> None:
            for place in places:
                self.offsets.forget(group_id, place)

        self.writer.add(self._offset_tombstones(group_id, places), forgotten, reply)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: nobody will read on there."""
        for group_id in self.offsets.groups():
            places = [place for place in self.offsets.committed(group_id) if place[0] == topic]
            if places:
                self.forget_offsets(group_id, places, _nobody_asked)

    def expire_offsets(self, now_ms: int) -> int:
        """Deletes offsets that are over, and empty groups that have none left; returns how many offsets that were."""
        count = 0
        for group_id, group in list(self._groups.items()):
            has_members = bool(group.members)
            places = self.offsets.expired(
                group_id,
                now_ms,
                self.settings.retention_ms,
                empty_since_ms=group.state_since_ms if group.protocol_type else None,
                has_members=has_members,
                subscribed=group.subscribed() if group.state is State.STABLE else None,
            )
            count += len(places)
            left = len(self.offsets.committed(group_id)) - len(places)
            if left == 0 and self._is_unused(group):
                self.remove_groups([group_id], _nobody_asked)
            elif places:
                self.forget_offsets(group_id, places, _nobody_asked)
        return count

    def _is_unused(self, group: ClassicGroup) -> bool:
        return (
            group.state is State.EMPTY
            and not group.pending
            and not self.offsets.has_pending(group.group_id)
            and not self._commits_in_flight[group.group_id]
        )

    @staticmethod
    def _offset_tombstones(group_id: str, places: Iterable[Place]) -> list[RawRecord]:
        return [raw(OffsetCommitKey(group=group_id, topic=topic, partition=index), None) for topic, index in places]

    # --- the log -------------------------------------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None, log_offset: int, producer_id: int | None) -> None:
        """Takes in one record of the log; `producer_id` when it belongs to a transaction."""
        try:
            record = parsed(key, value)
        except DecodeError as error:
            self._damaged += 1
            if self._damaged == 1:
                log.error(
                    "a record of a group cannot be read and is skipped",
                    partition=self.partition.index,
                    offset=log_offset,
                    reason=str(error),
                )
            return
        if record is None:
            return
        read_key, read_value = record
        if isinstance(read_key, OffsetCommitKey):
            self._replay_offset(read_key, read_value, log_offset, producer_id)
        elif isinstance(read_key, GroupMetadataKey):
            if isinstance(read_value, GroupMetadataValue):
                self.classic_group(read_key.group).restore(read_value)
            else:
                self._groups.pop(read_key.group, None)

    def _replay_offset(self, key: OffsetCommitKey, value: object, log_offset: int, producer_id: int | None) -> None:
        place = (key.topic, key.partition)
        if not isinstance(value, OffsetCommitValue):
            self.offsets.forget(key.group, place)
            return
        committed = CommittedOffset(
            value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp, log_offset
        )
        if producer_id is not None:
            self.offsets.pend(producer_id, key.group, place, committed)
        else:
            self.offsets.commit(key.group, place, committed)

    def resume(self) -> None:
        """The log is read: from now on this shard coordinates."""
        for group_id in self.offsets.groups():
            self.classic_group(group_id)
        self.status = Status.ACTIVE
        now_ms = self.clock_ms()
        for group in list(self._groups.values()):
            group.resume(now_ms)
            self.settle(group)

    def close(self) -> None:
        """Another node coordinates from now on: everybody who waits is told."""
        self.status = Status.CLOSED
        self.writer.close()
        for group in self._groups.values():
            group.effects = [effect for effect in group.effects if isinstance(effect, Respond)]
            group.dissolve(ErrorCode.NOT_COORDINATOR)
            for effect in group.effects:
                if isinstance(effect, Respond):
                    effect.ticket(effect.response)
            group.effects = []
        self._groups.clear()
        self._scheduled.clear()


def _offset_records(group_id: str, offsets: dict[Place, CommittedOffset]) -> list[RawRecord]:
    return [
        raw(
            OffsetCommitKey(group=group_id, topic=topic, partition=index),
            OffsetCommitValue(
                offset=committed.offset,
                leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                commit_timestamp=committed.commit_timestamp,
                expire_timestamp=committed.expire_timestamp,
            ),
        )
        for (topic, index), committed in offsets.items()
    ]


def _nobody_asked(error: ErrorCode) -> None:
    """Clean-up that fails is tried again at the next sweep."""
    if error:
        log.warning("could not delete offsets that are over yet", error=error.name)
