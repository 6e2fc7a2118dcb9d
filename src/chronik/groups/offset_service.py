"""Offsets as handlers ask for them: commit, fetch, delete; and those of transactions.

Each call says which group it is about and gets a KafkaError when this node does not coordinate it. What is wrong with
one partition of a request stays with that partition; the handlers put the answers into messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.offset_book import NO_EXPIRY, CommittedOffset, Place
from chronik.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from chronik.groups.coordinator import GroupCoordinator
    from chronik.groups.shard import Shard

NO_OFFSET = -1
NO_RETENTION = -1
NO_TIMESTAMP = -1


class OffsetToCommit(msgspec.Struct, frozen=True):
    """What a client wants to commit for one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    timestamp: int = NO_TIMESTAMP


class FetchedOffset(msgspec.Struct, frozen=True):
    """What a client is told about one partition."""

    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


NOTHING_COMMITTED = FetchedOffset()
UNSTABLE = FetchedOffset(error=ErrorCode.UNSTABLE_OFFSET_COMMIT)


class OffsetService:
    """The offsets of the groups that this node coordinates."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        retention_ms: int,
        offsets: dict[Place, OffsetToCommit],
        reply: Callable[[dict[Place, ErrorCode]], None],
    ) -> None:
        """Commits what can be committed; the answer has a code for every place."""
        shard = self._coordinator.shard_of(group_id, empty_id=True)
        problem = self._commit_problem(shard, group_id, member_id, instance_id, generation)
        if problem is not None:
            reply(dict.fromkeys(offsets, problem))
            return
        now_ms = self._coordinator.clock_ms()
        codes = dict.fromkeys(offsets, ErrorCode.NONE)
        accepted: dict[Place, CommittedOffset] = {}
        for place, wanted in offsets.items():
            if not self.metadata_fits(wanted.metadata):
                codes[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            timestamp = wanted.timestamp if wanted.timestamp != NO_TIMESTAMP else now_ms
            expiry = NO_EXPIRY if retention_ms == NO_RETENTION else timestamp + retention_ms
            accepted[place] = CommittedOffset(wanted.offset, wanted.leader_epoch, wanted.metadata, timestamp, expiry)
        if not accepted:
            reply(codes)
            return

        def written(error: ErrorCode) -> None:
            for place in accepted:
                codes[place] = error
            reply(codes)

        shard.commit(group_id, accepted, written)

    def metadata_fits(self, metadata: str) -> bool:
        limit = self._coordinator.settings.metadata_bytes_max
        return len(metadata) <= limit and len(metadata.encode()) <= limit

    def _commit_problem(
        self,
        shard: Shard,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        transactional: bool = False,
    ) -> ErrorCode | None:
        group = shard.group(group_id)
        if group is None:
            if generation >= 0:
                return ErrorCode.ILLEGAL_GENERATION
            shard.classic_group(group_id)
            return None
        if isinstance(group, ConsumerGroup):
            return group.commit_problem(member_id, generation, transactional=transactional)
        problem = group.commit_problem(
            member_id, instance_id, generation, self._coordinator.clock_ms(), transactional=transactional
        )
        shard.settle(group)
        return problem

    def check_member(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Who names a member asks as that member. Classic groups do not mind; raises KafkaError for others."""
        if member_id is None and member_epoch < 0:
            return
        group = self._coordinator.shard_of(group_id, empty_id=True).group(group_id)
        if isinstance(group, ConsumerGroup):
            problem = group.member_problem(member_id or "", member_epoch)
            if problem is not None:
                raise KafkaError(problem, f"member {member_id} is not in epoch {member_epoch} of group {group_id}")

    def fetch(
        self,
        group_id: str,
        places: Iterable[Place] | None,
        require_stable: bool,
        reply: Callable[[ErrorCode, dict[Place, FetchedOffset]], None],
    ) -> None:
        """What the group has committed, for these places or for all it has; after its commits that are under way."""
        shard = self._coordinator.shard_of(group_id, empty_id=True)
        wanted = list(places) if places is not None else None

        def landed(error: ErrorCode) -> None:
            if error is ErrorCode.NOT_COORDINATOR:
                reply(error, {})
                return
            book = shard.offsets
            asked = wanted if wanted is not None else list(book.committed(group_id))
            reply(ErrorCode.NONE, {place: self._fetched(shard, group_id, place, require_stable) for place in asked})

        shard.when_commits_landed(group_id, landed)

    @staticmethod
    def _fetched(shard: Shard, group_id: str, place: Place, require_stable: bool) -> FetchedOffset:
        if require_stable and shard.offsets.is_unstable(group_id, place):
            return UNSTABLE
        committed = shard.offsets.get(group_id, place)
        if committed is None:
            return NOTHING_COMMITTED
        return FetchedOffset(committed.offset, committed.leader_epoch, committed.metadata)

    def delete(self, group_id: str, places: Iterable[Place], reply: Callable[[dict[Place, ErrorCode]], None]) -> None:
        """Forgets offsets of topics that the group does not read. Raises KafkaError for the group as a whole."""
        shard = self._coordinator.shard_of(group_id)
        group = shard.group(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} does not exist; check the name")
        read = group.subscribed()
        if not group.is_empty and read is None:
            raise KafkaError(
                ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members that are no consumers; stop them first"
            )
        codes: dict[Place, ErrorCode] = {}
        gone: list[Place] = []
        for place in places:
            if read is not None and place[0] in read:
                codes[place] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            codes[place] = ErrorCode.NONE
            if shard.offsets.get(group_id, place) is not None:
                gone.append(place)
        if not gone:
            reply(codes)
            return

        def written(error: ErrorCode) -> None:
            for place in gone:
                codes[place] = error
            reply(codes)

        shard.forget_offsets(group_id, gone, written)

    def prepare_transactional(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: dict[Place, CommittedOffset],
        generation: int,
        member_id: str,
        instance_id: str | None,
    ) -> asyncio.Future[ErrorCode]:
        shard = self._coordinator.shard_of(group_id)
        problem = self._commit_problem(shard, group_id, member_id, instance_id, generation, transactional=True)
        if problem is not None:
            raise KafkaError(problem, f"group {group_id} does not take offsets from this member")
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def written(error: ErrorCode) -> None:
            if not done.done():
                done.set_result(error)

        shard.pend(group_id, producer_id, producer_epoch, offsets, written)
        return done
