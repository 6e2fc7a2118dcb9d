"""What a shard knows: the groups and offsets of one partition of `__consumer_offsets`, and how records make them.

What it does with them is in `shard`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
import structlog

from chronik.coordination.loader import Status
from chronik.coordination.log_writer import LogWriter
from chronik.groups.classic import ClassicGroup
from chronik.groups.classic_state import ClassicSettings
from chronik.groups.consumer_group import ConsumerGroup, TopicsView
from chronik.groups.consumer_state import ConsumerSettings
from chronik.groups.offset_book import CommittedOffset, OffsetBook
from chronik.groups.records import parsed
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.internal_consumer_groups import ConsumerGroupMetadataKey
from chronik.protocol.messages.internal_groups import GroupMetadataKey, GroupMetadataValue
from chronik.protocol.messages.internal_offsets import OffsetCommitKey, OffsetCommitValue
from chronik.protocol.wire import DecodeError, Message

if TYPE_CHECKING:
    from chronik.coordination.timers import Timers
    from chronik.replication.partition import Partition

log = structlog.get_logger()


Group = ClassicGroup | ConsumerGroup


class ShardSettings(msgspec.Struct, frozen=True):
    """The broker's settings that groups and offsets depend on."""

    classic: ClassicSettings
    consumer: ConsumerSettings
    retention_ms: int
    metadata_bytes_max: int


class ShardState:
    """Groups and offsets, as the log has them."""

    def __init__(
        self,
        partition: Partition,
        settings: ShardSettings,
        timers: Timers,
        clock_ms: Callable[[], int],
        new_member_id: Callable[[str], str],
        topics: Callable[[], TopicsView],
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.status = Status.LOADING
        self.writer = LogWriter(partition, clock_ms, too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        self.offsets = OffsetBook()
        self.clock_ms = clock_ms
        self._groups: dict[str, Group] = {}
        self._timers = timers
        self._new_member_id = new_member_id
        self._topics = topics
        self._scheduled: dict[str, int] = {}
        self._commits_in_flight: Counter[str] = Counter()
        self._damaged = 0

    # --- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def groups(self) -> Iterable[Group]:
        return self._groups.values()

    def classic(self, group_id: str) -> ClassicGroup | None:
        """The group if it is there and speaks the classic protocol."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def classic_group(self, group_id: str) -> ClassicGroup:
        """The classic group of this name, made when there is no group."""
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            group = ClassicGroup(group_id, self.settings.classic, self._new_member_id, self.clock_ms())
            self._groups[group_id] = group
            self._scheduled.pop(group_id, None)
        return group

    def ensure_group(self, group_id: str) -> None:
        """Offsets belong to a group, if only to an empty one."""
        if group_id not in self._groups:
            self.classic_group(group_id)

    # --- records -------------------------------------------------------------------------------------------------

    def loaded(self) -> dict[str, int]:
        """What loading brought, for the log."""
        return {"groups": len(self._groups)}

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """The end of a transaction in the log."""
        self.offsets.complete(producer_id, committed)

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
            self._replay_classic(read_key.group, read_value)
        else:
            self._replay_consumer(read_key, read_value)

    def _replay_classic(self, group_id: str, value: Message | None) -> None:
        present = self._groups.get(group_id)
        if isinstance(value, GroupMetadataValue):
            self.classic_group(group_id).restore(value)
        elif isinstance(present, ClassicGroup):
            del self._groups[group_id]

    def _replay_consumer(self, key: Message, value: Message | None) -> None:
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return  # the end of a group that was gone before
            group = self._groups[group_id] = ConsumerGroup(group_id, self.settings.consumer, self.clock_ms())
        group.data.replay(key, value)
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            del self._groups[group_id]

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
