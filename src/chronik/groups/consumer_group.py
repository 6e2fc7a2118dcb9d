"""The machine of one group of KIP-848. Its rules are in `consumer_state`.

A request gives an `Outcome`: the answer, and a draft when something changes. The caller writes the draft's records,
then calls `install`; when they cannot be written, nothing has changed (Rule 7). `tick` is due at `wake_at`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import msgspec

from chronik.groups.assignors import ASSIGNORS, Subscriber
from chronik.groups.classic_core import NEVER
from chronik.groups.consumer_reconcile import next_step
from chronik.groups.consumer_requests import check_epoch, is_full, updated
from chronik.groups.consumer_state import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOTHING,
    Assignment,
    ConsumerSettings,
    Draft,
    GroupData,
    Member,
    MemberState,
    ResolvedRegex,
)
from chronik.groups.topic_patterns import compile_pattern, matching_topics
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import (
    Assignment as AssignmentMessage,
)
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

RETRY_MS = 1000
CONSUMER_PROTOCOL = "consumer"


class TopicLike(Protocol):
    """What this machine needs to know of a topic."""

    @property
    def topic_id(self) -> bytes: ...

    @property
    def partitions(self) -> tuple[object, ...]: ...

    @property
    def internal(self) -> bool: ...


class TopicsView(msgspec.Struct, frozen=True):
    """The topics there are; `version` changes whenever they do."""

    by_name: Mapping[str, TopicLike]
    version: int


class Outcome(msgspec.Struct, frozen=True):
    """What a request comes to."""

    response: ConsumerGroupHeartbeatResponse
    draft: Draft | None = None
    member_id: str = ""


class ConsumerGroup:
    """One group."""

    kind = "consumer"

    def __init__(self, group_id: str, settings: ConsumerSettings, now_ms: int) -> None:
        self.group_id = group_id
        self.settings = settings
        self.data = GroupData()
        self.wake_at = NEVER
        self.empty_since_ms = now_ms
        self.protocol_type = CONSUMER_PROTOCOL
        self.written_to = 0  # the end of its records in the log; kept by the shard
        self._sessions: dict[str, int] = {}
        self._revocations: dict[str, int] = {}
        self._topics_version = -1

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        return self.data.members

    @property
    def is_empty(self) -> bool:
        return not self.data.members

    @property
    def state_name(self) -> str:
        data = self.data
        if not data.members:
            return "Empty"
        if data.epoch > data.assignment_epoch:
            return "Assigning"
        settled = all(
            member.state is MemberState.STABLE and member.epoch in (data.assignment_epoch, LEAVE_STATIC_EPOCH)
            for member in data.members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    def assignor_name(self) -> str:
        """The assignor that most members ask for."""
        votes = Counter(member.assignor for member in self.data.members.values() if member.assignor)
        return votes.most_common(1)[0][0] if votes else self.settings.assignors[0]

    def subscribed(self) -> frozenset[str]:
        """The topics that members read."""
        return frozenset(name for member in self.data.members.values() for name in _topics_of(member, self.data))

    # --- heartbeats ----------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        topics: TopicsView,
        now_ms: int,
        *,
        client_id: str,
        client_host: str,
    ) -> Outcome:
        """A heartbeat, a join included. Raises KafkaError when the member is refused or fenced."""
        owned: Assignment | None = None
        if request.topic_partitions is not None:
            owned = {part.topic_id: frozenset(part.partitions) for part in request.topic_partitions if part.partitions}
        draft = Draft(self.group_id, self.data)
        before = self._admitted(request, owned, draft)
        member = updated(before, request, client_id, client_host)
        bump = self._take_subscription(draft, before, member, now_ms, topics)
        self._follow_topics(draft, topics, now_ms, bump)
        if draft.data.assignment_epoch < draft.data.epoch:
            self._assign(draft, topics)
        member = draft.data.members[member.member_id]
        stepped = next_step(
            member,
            draft.data.targets.get(member.member_id, NOTHING),
            draft.data.assignment_epoch,
            draft.data.held() if _must_step(member, draft.data) else {},
            owned,
        )
        if stepped != member:
            draft.put_current(stepped)
        response = ConsumerGroupHeartbeatResponse(
            member_id=stepped.member_id,
            member_epoch=stepped.epoch,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
        )
        if request.member_epoch == JOIN_EPOCH or is_full(request) or stepped.assigned != before.assigned:
            response.assignment = AssignmentMessage(
                topic_partitions=[
                    TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in sorted(stepped.assigned.items())
                ]
            )
        if not draft.records:
            self._topics_version = topics.version
            return Outcome(response, None, stepped.member_id)
        draft.topics_version = topics.version
        return Outcome(response, draft, stepped.member_id)

    def _admitted(self, request: ConsumerGroupHeartbeatRequest, owned: Assignment | None, draft: Draft) -> Member:
        """The member that speaks, a new one where it may join."""
        member_id, joining = request.member_id, request.member_epoch == JOIN_EPOCH
        member = self.data.members.get(member_id)
        if request.instance_id is not None:
            holder = self.data.static_ids.get(request.instance_id)
            if joining and holder != member_id:
                return self._admit_static(holder, request, draft)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
            if holder != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {request.instance_id} was fenced by member {holder}.",
                )
        if member is None:
            if not joining:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
                )
            self._check_room()
            return Member(member_id)
        if not joining:
            check_epoch(member, request.member_epoch, owned)
        return member

    def _admit_static(self, holder_id: str | None, request: ConsumerGroupHeartbeatRequest, draft: Draft) -> Member:
        """A static member joins under a new member id (Rule 5)."""
        if holder_id is None:
            self._check_room()
            return Member(request.member_id)
        holder = self.data.members[holder_id]
        if holder.epoch != LEAVE_STATIC_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group "
                f"because the instance id is owned by member {holder_id}.",
            )
        heir = msgspec.structs.replace(
            holder, member_id=request.member_id, epoch=JOIN_EPOCH, previous_epoch=-1, state=MemberState.STABLE
        )
        target = self.data.targets.get(holder_id, NOTHING)
        draft.drop_member(holder_id)
        draft.put_member(heir)
        draft.put_target(heir.member_id, target)
        draft.put_current(heir)
        return heir

    def _check_room(self) -> None:
        if len(self.data.members) >= self.settings.max_size:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self.settings.max_size} members.",
            )

    def _take_subscription(self, draft: Draft, before: Member, member: Member, now_ms: int, topics: TopicsView) -> bool:
        """Writes what is new about the member; whether the group must be assigned anew."""
        known = member.member_id in draft.data.members
        if known and member == before:
            return False
        changed = not known or (member.topic_names, member.topic_regex) != (before.topic_names, before.topic_regex)
        if member.topic_regex and member.topic_regex not in draft.data.regexes:
            compile_pattern(member.topic_regex)
            self._resolve(draft, member.topic_regex, topics, now_ms)
        draft.put_member(member)
        if not known:
            draft.put_current(member)
        if before.topic_regex and before.topic_regex != member.topic_regex:
            self._drop_unused(draft, before.topic_regex)
        return changed

    def _resolve(self, draft: Draft, pattern: str, topics: TopicsView, now_ms: int) -> None:
        names = (name for name, topic in topics.by_name.items() if not topic.internal)
        found = matching_topics(pattern, names)
        present = draft.data.regexes.get(pattern)
        if present is None or present.topics != found:
            draft.put_regex(pattern, ResolvedRegex(found, topics.version), now_ms)

    @staticmethod
    def _drop_unused(draft: Draft, pattern: str) -> None:
        if all(member.topic_regex != pattern for member in draft.data.members.values()):
            draft.put_regex(pattern, None, 0)

    def _follow_topics(self, draft: Draft, topics: TopicsView, now_ms: int, bump: bool) -> None:
        """Raises the epoch when subscriptions changed, or what they stand for (Rule 1)."""
        if not bump and topics.version == self._topics_version:
            return
        if topics.version != self._topics_version:
            for pattern in list(draft.data.regexes):
                self._resolve(draft, pattern, topics, now_ms)
        fingerprint = _fingerprint(draft.data, topics)
        if bump or fingerprint != draft.data.metadata_hash:
            draft.put_epoch(draft.data.epoch + 1, fingerprint)

    def _assign(self, draft: Draft, topics: TopicsView) -> None:
        data = draft.data
        subscribers: list[Subscriber] = []
        counts: dict[bytes, int] = {}
        for member in data.members.values():
            read: set[bytes] = set()
            for name in _topics_of(member, data):
                topic = topics.by_name.get(name)
                if topic is not None:
                    read.add(topic.topic_id)
                    counts[topic.topic_id] = len(topic.partitions)
            target = data.targets.get(member.member_id, NOTHING)
            subscribers.append(Subscriber(member.member_id, member.instance_id, frozenset(read), target))
        votes = Counter(member.assignor for member in data.members.values() if member.assignor)
        name = votes.most_common(1)[0][0] if votes else self.settings.assignors[0]
        for member_id, target in sorted(ASSIGNORS[name](subscribers, counts).items()):
            if data.targets.get(member_id) != target:
                draft.put_target(member_id, target)
        draft.put_assignment_epoch(data.epoch)

    # --- leaving -------------------------------------------------------------------------------------------------

    def leave(self, request: ConsumerGroupHeartbeatRequest, topics: TopicsView) -> Outcome:
        """A heartbeat with epoch -1 or -2."""
        member_id = request.member_id
        if request.instance_id is not None:
            holder = self.data.static_ids.get(request.instance_id)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
            if holder != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f"Instance id {request.instance_id} belongs to member {holder}."
                )
        member = self.data.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        draft = Draft(self.group_id, self.data)
        if request.member_epoch == LEAVE_STATIC_EPOCH and member.instance_id is not None:
            draft.put_current(
                msgspec.structs.replace(member, epoch=LEAVE_STATIC_EPOCH, state=MemberState.STABLE, revoking=NOTHING)
            )
        else:
            self._remove(draft, [member_id], topics)
        response = ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)
        return Outcome(response, draft, member_id)

    def _remove(self, draft: Draft, member_ids: list[str], topics: TopicsView) -> None:
        for member_id in member_ids:
            pattern = draft.data.members[member_id].topic_regex
            draft.drop_member(member_id)
            if pattern:
                self._drop_unused(draft, pattern)
        draft.put_epoch(draft.data.epoch + 1, _fingerprint(draft.data, topics))

    def deletion(self) -> Draft:
        """The draft that deletes the group."""
        draft = Draft(self.group_id, self.data)
        draft.drop_group()
        return draft

    # --- time ----------------------------------------------------------------------------------------------------

    def install(self, draft: Draft, now_ms: int) -> None:
        """The draft's records are in the log: it is the group now."""
        was_empty = self.is_empty
        self.data = draft.data
        if draft.topics_version is not None:
            self._topics_version = draft.topics_version
        for member_id in [m for m in self._sessions if m not in self.data.members]:
            del self._sessions[member_id]
        for member in self.data.members.values():
            if member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._revocations.pop(member.member_id, None)
            elif member.member_id not in self._revocations:
                self._revocations[member.member_id] = now_ms + max(member.rebalance_timeout_ms, 0)
                self._wake(self._revocations[member.member_id])
        for member_id in [m for m in self._revocations if m not in self.data.members]:
            del self._revocations[member_id]
        if self.is_empty and not was_empty:
            self.empty_since_ms = now_ms

    def touch(self, member_id: str, now_ms: int) -> None:
        """The member was heard of."""
        if member_id in self.data.members:
            self._sessions[member_id] = now_ms + self.settings.session_timeout_ms
            self._wake(self._sessions[member_id])

    def tick(self, topics: TopicsView, now_ms: int) -> Draft | None:
        """Removes the members whose time is over (Rule 6), and sets `wake_at` anew."""
        over = sorted(
            {m for m, at in self._sessions.items() if at <= now_ms}
            | {m for m, at in self._revocations.items() if at <= now_ms}
        )
        times = [at for m, at in (*self._sessions.items(), *self._revocations.items()) if m not in over]
        self.wake_at = min(times, default=NEVER)
        if not over:
            return None
        self._wake(now_ms + RETRY_MS)  # in case the draft cannot be written now
        draft = Draft(self.group_id, self.data)
        self._remove(draft, over, topics)
        return draft

    def resume(self, now_ms: int) -> None:
        """Begins to coordinate a group that was loaded: every member has a session from now on."""
        if self.is_empty:
            self.empty_since_ms = now_ms
        for member in self.data.members.values():
            self.touch(member.member_id, now_ms)
        draft = Draft(self.group_id, self.data)
        self.install(draft, now_ms)

    def _wake(self, at_ms: int) -> None:
        if at_ms < self.wake_at:
            self.wake_at = at_ms

    # --- offsets -------------------------------------------------------------------------------------------------

    def member_problem(self, member_id: str, epoch: int) -> ErrorCode | None:
        """Why this is not the member in its epoch."""
        member = self.data.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.STALE_MEMBER_EPOCH if member.epoch != epoch else None

    def commit_problem(self, member_id: str, epoch: int, *, transactional: bool = False) -> ErrorCode | None:
        """Why offsets may not be committed; None when they may."""
        if epoch < 0 and (self.is_empty or (transactional and not member_id)):
            return None
        problem = self.member_problem(member_id, epoch)
        if problem is ErrorCode.STALE_MEMBER_EPOCH and transactional:
            return ErrorCode.ILLEGAL_GENERATION  # what producers know
        return problem


def _must_step(member: Member, data: GroupData) -> bool:
    return member.state is not MemberState.STABLE or member.epoch != data.assignment_epoch


def _topics_of(member: Member, data: GroupData) -> frozenset[str]:
    names = frozenset(member.topic_names)
    resolved = data.regexes.get(member.topic_regex) if member.topic_regex else None
    return names if resolved is None else names | resolved.topics


def _fingerprint(data: GroupData, topics: TopicsView) -> int:
    """A number that changes with what the group's subscriptions stand for."""
    names = {name for member in data.members.values() for name in _topics_of(member, data)}
    if not names:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(names):
        topic = topics.by_name.get(name)
        if topic is not None:
            digest.update(name.encode() + topic.topic_id + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
