"""Everything that one partition of `__consumer_offsets` coordinates: its groups, their offsets, its log.

A shard exists while this node leads the partition. It is filled from the log (`replay`), then resumed; from then on
memory and log change together. The pure machines say what to do (`effects`), the shard does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import structlog

from chronik.coordination.loader import Status
from chronik.coordination.log_writer import RawRecord, Reply
from chronik.groups.classic import NEVER, ClassicGroup
from chronik.groups.classic_state import State
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.consumer_requests import is_leaving
from chronik.groups.consumer_state import JOIN_EPOCH, Draft
from chronik.groups.effects import Persist, Respond
from chronik.groups.offset_book import CommittedOffset, Place
from chronik.groups.records import raw
from chronik.groups.shard_state import Group, ShardState
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from chronik.protocol.messages.internal_groups import GroupMetadataKey
from chronik.protocol.messages.internal_offsets import OffsetCommitKey, OffsetCommitValue
from chronik.protocol.wire import Message

log = structlog.get_logger()


class Shard(ShardState):
    """The groups of one partition, coordinated."""

    # --- groups --------------------------------------------------------------------------------------------------

    def group_to_join(self, group_id: str) -> ClassicGroup:
        """The classic group, made when there is none, or only an empty one of the other protocol. Raises KafkaError."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"group {group_id} has members that use group.protocol=consumer; stop them first, or use it too",
                )
            self.writer.append([raw(*record) for record in group.deletion().records], _nobody_asked)
            del self._groups[group_id]
        return self.classic_group(group_id)

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

    def _schedule(self, group: Group) -> None:
        if group.wake_at < self._scheduled.get(group.group_id, NEVER):
            self._scheduled[group.group_id] = group.wake_at
            self._timers.schedule(group.wake_at, partial(self._wake, group, group.wake_at))

    def _wake(self, group: Group, scheduled_for: int) -> None:
        if self._scheduled.get(group.group_id) != scheduled_for or self._groups.get(group.group_id) is not group:
            return  # woken earlier in the meantime, or gone
        del self._scheduled[group.group_id]
        if isinstance(group, ClassicGroup):
            group.tick(self.clock_ms())
            self.settle(group)
            return
        draft = group.tick(self._topics(), self.clock_ms())
        if draft is not None:
            try:
                self._write_draft(group, draft, _nobody_asked)
            except KafkaError as error:
                log.warning("a silent member cannot be removed yet", group=group.group_id, reason=error.message)
        self._schedule(group)

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
        reply: Callable[[ConsumerGroupHeartbeatResponse], None],
    ) -> None:
        """A heartbeat of KIP-848; answered when what it changes is committed. Raises KafkaError."""
        now_ms, topics = self.clock_ms(), self._topics()
        group, before = self._consumer_group(request, now_ms)
        if is_leaving(request):
            outcome = group.leave(request, topics)
        else:
            if not request.member_id:
                request.member_id = self._new_member_id(client_id)
            outcome = group.heartbeat(request, topics, now_ms, client_id=client_id, client_host=client_host)

        def answer(error: ErrorCode) -> None:
            reply(ConsumerGroupHeartbeatResponse(error_code=error) if error else outcome.response)

        if outcome.draft is not None:
            outcome.draft.records[:0] = before
            self._write_draft(group, outcome.draft, answer)
        elif group.written_to > self.partition.high_watermark:
            self.writer.add((), None, answer)
        else:
            answer(ErrorCode.NONE)
        group.touch(outcome.member_id, now_ms)
        self._schedule(group)

    def _consumer_group(
        self, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> tuple[ConsumerGroup, list[tuple[Message, Message | None]]]:
        """The group, and what must be written before it; a new one is ours only once it is in the log."""
        group_id = request.group_id
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if group is not None and not group.is_empty:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {group_id} is not a consumer group: its members use the classic protocol; stop them first.",
            )
        if request.member_epoch != JOIN_EPOCH:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        made = ConsumerGroup(group_id, self.settings.consumer, now_ms)
        return made, [] if group is None else [(GroupMetadataKey(group=group_id), None)]

    def _write_draft(self, group: ConsumerGroup, draft: Draft, reply: Reply) -> None:
        first = self.writer.append([raw(*record) for record in draft.records], reply)
        group.written_to = first + len(draft.records)
        group.install(draft, self.clock_ms())
        if self._groups.get(group.group_id) is not group:
            self._groups[group.group_id] = group
            self._scheduled.pop(group.group_id, None)

    def remove_groups(self, group_ids: Sequence[str], reply: Reply) -> None:
        """Deletes groups and all their offsets, in the log and here."""
        records: list[RawRecord] = []
        for group_id in group_ids:
            records.extend(self._offset_tombstones(group_id, self.offsets.committed(group_id)))
            group = self._groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                records.extend(raw(*record) for record in group.deletion().records)
            else:
                records.append(raw(GroupMetadataKey(group=group_id), None))

        def removed(first: int) -> None:
            for group_id in group_ids:
                self._drop(group_id)

        self.writer.add(records, removed, reply)

    def _drop(self, group_id: str) -> None:
        group = self._groups.pop(group_id, None)
        self._scheduled.pop(group_id, None)
        self.offsets.forget_group(group_id)
        if isinstance(group, ClassicGroup):
            group.dissolve(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.settle(group)

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit(self, group_id: str, offsets: dict[Place, CommittedOffset], reply: Reply) -> None:
        """Writes offsets; they count, and the answer is given, when they are committed."""
        self._commits_in_flight[group_id] += 1

        def committed(first: int) -> None:
            self.ensure_group(group_id)
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
            self.ensure_group(group_id)

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
            has_members = not group.is_empty
            places = self.offsets.expired(
                group_id,
                now_ms,
                self.settings.retention_ms,
                empty_since_ms=group.empty_since_ms,
                has_members=has_members,
                subscribed=group.subscribed() if group.state_name == State.STABLE.value else None,
            )
            count += len(places)
            left = len(self.offsets.committed(group_id)) - len(places)
            if left == 0 and self._is_unused(group):
                self.remove_groups([group_id], _nobody_asked)
            elif places:
                self.forget_offsets(group_id, places, _nobody_asked)
        return count

    def _is_unused(self, group: Group) -> bool:
        expected = isinstance(group, ClassicGroup) and bool(group.pending)
        return (
            group.is_empty
            and not expected
            and not self.offsets.has_pending(group.group_id)
            and not self._commits_in_flight[group.group_id]
        )

    @staticmethod
    def _offset_tombstones(group_id: str, places: Iterable[Place]) -> list[RawRecord]:
        return [raw(OffsetCommitKey(group=group_id, topic=topic, partition=index), None) for topic, index in places]

    # --- the log -------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """The log is read: from now on this shard coordinates."""
        for group_id in self.offsets.groups():
            self.ensure_group(group_id)
        self.status = Status.ACTIVE
        now_ms = self.clock_ms()
        for group in list(self._groups.values()):
            group.resume(now_ms)
            if isinstance(group, ClassicGroup):
                self.settle(group)
            else:
                self._schedule(group)

    def close(self) -> None:
        """Another node coordinates from now on: everybody who waits is told."""
        self.status = Status.CLOSED
        self.writer.close()
        for group in self._groups.values():
            if not isinstance(group, ClassicGroup):
                continue  # nobody waits there but for the log
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
