"""The machine of one classic group. The rules it keeps and its tables are in `classic_state`.

Requests go in with a ticket and the time; `effects` collects what comes out, for the caller to carry out and clear.
`tick` is due at `wake_at`. Nothing here reads a clock, waits, or writes.
"""

from __future__ import annotations

from collections.abc import Callable

from chronik.groups.classic_members import CONSUMER_PROTOCOL, Member, choose_protocol, subscribed_topics, supports
from chronik.groups.classic_state import COMMIT, HEARTBEAT, SYNC, TRANSITIONS, ClassicSettings, State
from chronik.groups.effects import Effect, Persist, Respond, Ticket
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.group_membership import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from chronik.protocol.messages.internal_groups import GroupMetadataValue, MemberMetadata

ASSIGNED, REPLACED, EMPTIED = "assigned", "replaced", "emptied"
NO_GENERATION = -1
NEVER = 1 << 62


class ClassicGroup:
    """One group. `new_member_id` makes an id that nobody else has, from the prefix it is given."""

    def __init__(
        self, group_id: str, settings: ClassicSettings, new_member_id: Callable[[str], str], now_ms: int
    ) -> None:
        self.group_id = group_id
        self.settings = settings
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.pending: dict[str, int] = {}  # member ids handed out (Rule 3), and until when they are expected
        self.state_since_ms = now_ms
        self.effects: list[Effect] = []
        self.wake_at = NEVER
        self._new_member_id = new_member_id
        self._join_deadline = NEVER
        self._initial_left_ms: int | None = None  # not None during the first rebalance (Rule 4)
        self._newcomer_since_delay = False
        self._not_synced: set[str] = set()
        self._sync_deadline = NEVER

    # --- joining -------------------------------------------------------------------------------------------------

    def join(
        self,
        request: JoinGroupRequest,
        ticket: Ticket,
        now_ms: int,
        *,
        client_id: str,
        client_host: str,
        id_required: bool,
        may_skip_assignment: bool,
    ) -> None:
        """JoinGroup. The answer comes when joining is complete, or at once when it is refused."""
        error = self._join_refusal(request)
        if error is not None:
            self._refuse_join(ticket, error, request.member_id)
            return
        protocols = [(protocol.name, protocol.metadata) for protocol in request.protocols]
        rebalance_timeout = (
            request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
        )
        known = self.members.get(request.member_id)
        if known is not None:
            self._rejoin(known, protocols, request, rebalance_timeout, ticket, now_ms)
            return
        member = Member(
            request.member_id or self._new_member_id(request.group_instance_id or client_id),
            request.group_instance_id,
            client_id,
            client_host,
            request.session_timeout_ms,
            rebalance_timeout,
            protocols,
        )
        previous_id = self.static_ids.get(member.instance_id) if member.instance_id is not None else None
        if previous_id is not None:
            self._replace_static(previous_id, member, ticket, now_ms, may_skip_assignment)
        elif id_required and not request.member_id and member.instance_id is None:
            self._expect(member, ticket, now_ms)
        else:
            self._add(member, request.protocol_type, ticket, now_ms)

    def _join_refusal(self, request: JoinGroupRequest) -> ErrorCode | None:
        settings, member_id = self.settings, request.member_id
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not self._has_room_for(member_id):
            self.pending.pop(member_id, None)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        offered = [(protocol.name, protocol.metadata) for protocol in request.protocols]
        if not request.protocol_type or not offered:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.members and (
            request.protocol_type != self.protocol_type or not supports(self.members.values(), offered)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if member_id and not (member_id in self.pending and request.group_instance_id is None):
            return self._identity_problem(member_id, request.group_instance_id)
        return None

    def _has_room_for(self, member_id: str) -> bool:
        if self.state is State.EMPTY:
            return True
        member = self.members.get(member_id)
        if self.state is State.PREPARING_REBALANCE:
            waiting = sum(other.join_ticket is not None for other in self.members.values())
            return (member is not None and member.join_ticket is not None) or waiting < self.settings.max_size
        return member is not None or len(self.members) < self.settings.max_size

    def _identity_problem(self, member_id: str, instance_id: str | None) -> ErrorCode | None:
        """Why this is not a current member (Rules 2 and 7)."""
        if instance_id is not None:
            holder = self.static_ids.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        elif member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return None

    def _expect(self, member: Member, ticket: Ticket, now_ms: int) -> None:
        """Hands out a member id to join with; until then nobody knows whether the client got it."""
        if len(self.pending) >= self.settings.pending_members_max:
            del self.pending[next(iter(self.pending))]
        self.pending[member.member_id] = now_ms + member.session_timeout_ms
        self._wake(now_ms + member.session_timeout_ms)
        self._refuse_join(ticket, ErrorCode.MEMBER_ID_REQUIRED, member.member_id)

    def _add(self, member: Member, protocol_type: str, ticket: Ticket, now_ms: int) -> None:
        self.pending.pop(member.member_id, None)
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        member.is_new = True
        member.join_ticket = ticket
        member.session_deadline = now_ms + self.settings.new_member_join_timeout_ms
        self._wake(member.session_deadline)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        self._newcomer_since_delay = True
        self._rebalance(now_ms)

    def _rejoin(
        self,
        member: Member,
        protocols: list[tuple[str, bytes]],
        request: JoinGroupRequest,
        rebalance_timeout_ms: int,
        ticket: Ticket,
        now_ms: int,
    ) -> None:
        changed = tuple(protocols) != member.protocols
        must = self.state is State.PREPARING_REBALANCE or changed
        if self.state is State.STABLE and member.member_id == self.leader:
            must = True  # the leader has something new to assign
        if not must:
            # The answer to its last join was lost: it is told the same again.
            self._touch(member, now_ms)
            self.effects.append(Respond(ticket, self._joined(member, self.state is State.COMPLETING_REBALANCE)))
            return
        self._update(member, protocols, request.session_timeout_ms, rebalance_timeout_ms, ticket)
        self._rebalance(now_ms)

    def _update(
        self,
        member: Member,
        protocols: list[tuple[str, bytes]] | tuple[tuple[str, bytes], ...],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        ticket: Ticket,
    ) -> None:
        if member.join_ticket is not None and member.join_ticket is not ticket:
            self._refuse_join(member.join_ticket, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        member.protocols = tuple(protocols)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.join_ticket = ticket

    def _replace_static(
        self, previous_id: str, newcomer: Member, ticket: Ticket, now_ms: int, may_skip_assignment: bool
    ) -> None:
        """A static member came back under a new member id (Rule 7)."""
        member = self.members[previous_id]
        before = member.protocols
        self._answer_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        was_leader = self.leader == previous_id
        self._rename(member, newcomer.member_id)
        member.client_id, member.client_host = newcomer.client_id, newcomer.client_host
        self._update(member, newcomer.protocols, newcomer.session_timeout_ms, newcomer.rebalance_timeout_ms, ticket)
        self._touch(member, now_ms)
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_all_joined(now_ms)
            return
        if self.state is not State.STABLE or choose_protocol(list(self.members.values())) != self.protocol:
            self._rebalance(now_ms)
            return
        member.join_ticket = None
        answer = self._joined(member, with_members=was_leader and may_skip_assignment)
        if may_skip_assignment:
            answer.skip_assignment = was_leader
        elif was_leader:
            answer.leader = (
                previous_id  # an old client that sees itself as leader would assign, and nobody waits for it
            )
        self.effects.append(
            Persist(
                self.record(now_ms), REPLACED, self.generation, member.member_id, previous_id, (ticket, answer, before)
            )
        )

    def _rename(self, member: Member, member_id: str) -> None:
        previous_id = member.member_id
        self.members = {
            (member_id if key == previous_id else key): value for key, value in self.members.items()
        }  # in place: the order of members decides votes
        member.member_id = member_id
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member_id
        if self.leader == previous_id:
            self.leader = member_id
        if previous_id in self._not_synced:
            self._not_synced.remove(previous_id)
            self._not_synced.add(member_id)

    # --- rebalancing ---------------------------------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> None:
        """Begins a rebalance, or goes on with the one that is under way."""
        if self.state is not State.PREPARING_REBALANCE:
            first = self.state is State.EMPTY
            if self.state is State.COMPLETING_REBALANCE:
                for member in self.members.values():
                    member.assignment = b""
                    self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), now_ms)
            self._not_synced.clear()
            self._sync_deadline = NEVER
            self._enter(State.PREPARING_REBALANCE, now_ms)
            timeout_ms = self._rebalance_timeout_ms()
            if first:
                delay = self.settings.initial_rebalance_delay_ms
                self._initial_left_ms = max(timeout_ms - delay, 0)
                self._newcomer_since_delay = False
                self._set_join_deadline(now_ms + delay)
                if delay == 0:
                    self._join_deadline_passed(now_ms)
            else:
                self._initial_left_ms = None
                self._set_join_deadline(now_ms + timeout_ms)
        self._complete_if_all_joined(now_ms)

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _set_join_deadline(self, at_ms: int) -> None:
        self._join_deadline = at_ms
        self._wake(at_ms)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if (
            self.state is State.PREPARING_REBALANCE
            and self._initial_left_ms is None
            and not self.pending
            and all(member.join_ticket is not None for member in self.members.values())
        ):
            self._complete_join(now_ms)

    def _join_deadline_passed(self, now_ms: int) -> None:
        left = self._initial_left_ms
        if left and self._newcomer_since_delay:
            delay = min(self.settings.initial_rebalance_delay_ms, left)
            self._newcomer_since_delay = False
            self._initial_left_ms = left - delay
            self._set_join_deadline(now_ms + delay)
            return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """The next generation begins with those who joined (Rule 3)."""
        self._initial_left_ms = None
        self._join_deadline = NEVER
        for member in list(self.members.values()):
            if member.join_ticket is None and member.instance_id is None:
                self._forget(member)
        joined = [member for member in self.members.values() if member.join_ticket is not None]
        if self.members and not joined:
            # Only static members are left and none is here: they have until their sessions end.
            self._set_join_deadline(now_ms + self._rebalance_timeout_ms())
            return
        self.generation = (self.generation + 1) & 0x7FFFFFFF
        if not self.members:
            self.protocol = self.leader = None
            self._enter(State.EMPTY, now_ms)
            self.effects.append(Persist(self.record(now_ms), EMPTIED, self.generation))
            return
        if self.leader is None or self.members[self.leader].join_ticket is None:
            self.leader = joined[0].member_id
        self.protocol = choose_protocol(list(self.members.values()))
        self._enter(State.COMPLETING_REBALANCE, now_ms)
        for member in joined:
            member.is_new = False
            ticket, member.join_ticket = member.join_ticket, None
            self._touch(member, now_ms)
            self.effects.append(Respond(ticket, self._joined(member, with_members=True)))
        self._not_synced = {member.member_id for member in joined}
        self._sync_deadline = now_ms + self._rebalance_timeout_ms()
        self._wake(self._sync_deadline)

    def _joined(self, member: Member, with_members: bool) -> JoinGroupResponse:
        """What a member is told of the generation; the leader also hears who is in it."""
        listed = self.members.values() if with_members and member.member_id == self.leader else ()
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader or "",
            member_id=member.member_id,
            members=[
                JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata(self.protocol),
                )
                for other in listed
            ],
        )

    # --- syncing -------------------------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, ticket: Ticket, now_ms: int) -> None:
        """SyncGroup: the leader brings the assignment, everybody fetches his part."""
        error = self._member_problem(request.member_id, request.group_instance_id, request.generation_id)
        if error is None and (
            request.protocol_type not in (None, self.protocol_type)
            or request.protocol_name not in (None, self.protocol)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is None:
            error = SYNC[self.state] or None
        if error is not None:
            self.effects.append(Respond(ticket, SyncGroupResponse(error_code=error)))
            return
        member = self.members[request.member_id]
        self._synced(member)
        if self.state is State.STABLE:
            self._answer_sync(member, self._assigned(member), now_ms, ticket)
            return
        if member.sync_ticket is not None:
            self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), now_ms)
        member.sync_ticket = ticket
        if member.member_id == self.leader:
            given = {item.member_id: item.assignment for item in request.assignments}
            value = self.record(now_ms, {key: given.get(key, b"") for key in self.members})
            self.effects.append(Persist(value, ASSIGNED, self.generation))

    def _synced(self, member: Member) -> None:
        self._not_synced.discard(member.member_id)
        if not self._not_synced:
            self._sync_deadline = NEVER

    def _assigned(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    def persisted(self, persist: Persist, error: ErrorCode, now_ms: int) -> None:
        """What became of a record that the group wanted written (Rule 5)."""
        if persist.purpose == ASSIGNED:
            self._assignment_persisted(persist, error, now_ms)
        elif persist.purpose == REPLACED:
            ticket, answer, before = persist.ticket
            member = self.members.get(persist.member_id)
            if error and member is not None:
                member.protocols = before
                self._rename(member, persist.previous_id)
            if error:
                answer = JoinGroupResponse(error_code=error, member_id=persist.member_id)
            self.effects.append(Respond(ticket, answer))

    def _assignment_persisted(self, persist: Persist, error: ErrorCode, now_ms: int) -> None:
        if self.state is not State.COMPLETING_REBALANCE or self.generation != persist.generation:
            return  # the group has moved on, and has told everybody
        if error:
            for member in self.members.values():
                member.assignment = b""
                self._answer_sync(member, SyncGroupResponse(error_code=error), now_ms)
            self._rebalance(now_ms)
            return
        for written in persist.value.members:
            self.members[written.member_id].assignment = written.assignment
        self._enter(State.STABLE, now_ms)
        for member in self.members.values():
            if member.sync_ticket is not None:
                self._answer_sync(member, self._assigned(member), now_ms)

    def _answer_sync(
        self, member: Member, response: SyncGroupResponse, now_ms: int, ticket: Ticket | None = None
    ) -> None:
        if ticket is None:
            ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is not None:
            self.effects.append(Respond(ticket, response))
            self._touch(member, now_ms)

    # --- living and leaving --------------------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        error = self._member_problem(member_id, instance_id, generation)
        if error is None:
            error = HEARTBEAT[self.state]
            if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                self._touch(self.members[member_id], now_ms)
        return error

    def _member_problem(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode | None:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._identity_problem(member_id, instance_id)
        if error is None and generation != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return error

    def leave(self, identity: MemberIdentity, now_ms: int) -> MemberResponse:
        """One member of a LeaveGroup, by member id, or by instance id alone."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        answer = MemberResponse(member_id=member_id, group_instance_id=instance_id)
        if self.state is State.DEAD:
            answer.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif not member_id and instance_id in self.static_ids:
            self._remove(self.members[self.static_ids[instance_id]], now_ms)
        elif member_id in self.pending and instance_id is None:
            del self.pending[member_id]
            self._complete_if_all_joined(now_ms)
        else:
            error = self._identity_problem(member_id, instance_id)
            if error is not None:
                answer.error_code = error
            else:
                self._remove(self.members[member_id], now_ms)
        return answer

    def _remove(self, member: Member, now_ms: int) -> None:
        self._forget(member)
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_all_joined(now_ms)
        elif self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self._rebalance(now_ms)

    def _forget(self, member: Member) -> None:
        self._answer_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        self._synced(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _answer_waiting(self, member: Member, error: ErrorCode) -> None:
        if member.join_ticket is not None:
            self._refuse_join(member.join_ticket, error, member.member_id)
            member.join_ticket = None
        if member.sync_ticket is not None:
            self.effects.append(Respond(member.sync_ticket, SyncGroupResponse(error_code=error)))
            member.sync_ticket = None

    def _refuse_join(self, ticket: Ticket, error: ErrorCode, member_id: str) -> None:
        self.effects.append(Respond(ticket, JoinGroupResponse(error_code=error, member_id=member_id)))

    def dissolve(self, error: ErrorCode) -> None:
        """The group is deleted, or coordinated elsewhere from now on: everybody who waits is told (Rule 8)."""
        for member in self.members.values():
            self._answer_waiting(member, error)
        self.state = State.DEAD
        self.wake_at = self._join_deadline = self._sync_deadline = NEVER

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit_problem(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> ErrorCode | None:
        """Why offsets may not be committed; None when they may. Simple consumers commit to empty groups."""
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is State.EMPTY:
            return None
        if generation >= 0 or member_id or instance_id is not None:
            error = self._member_problem(member_id, instance_id, generation)
            if error is not None:
                return error
            self._touch(self.members[member_id], now_ms)
        elif not transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return None if transactional else COMMIT[self.state] or None

    def subscribed(self) -> frozenset[str] | None:
        """The topics that consumers in this group read; None when that is not known."""
        if self.protocol_type != CONSUMER_PROTOCOL or self.protocol is None or not self.members:
            return None
        return subscribed_topics(self.members.values(), self.protocol)

    # --- time ----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Does what is due, and sets `wake_at` anew."""
        if self._join_deadline <= now_ms:
            self._join_deadline_passed(now_ms)
        if self._sync_deadline <= now_ms:
            late, self._sync_deadline = list(self._not_synced), NEVER
            for member_id in late:
                if member_id in self.members:
                    self._remove(self.members[member_id], now_ms)
        expired = [member_id for member_id, deadline in self.pending.items() if deadline <= now_ms]
        for member_id in expired:
            del self.pending[member_id]
        if expired:
            self._complete_if_all_joined(now_ms)
        for member in list(self.members.values()):
            if member.session_deadline <= now_ms and not member.waits and member.member_id in self.members:
                self._remove(member, now_ms)
        self.wake_at = min(
            self._join_deadline,
            self._sync_deadline,
            min(self.pending.values(), default=NEVER),
            min((m.session_deadline for m in self.members.values() if not m.waits), default=NEVER),
        )

    def _touch(self, member: Member, now_ms: int) -> None:
        if not member.is_new:
            member.session_deadline = now_ms + member.session_timeout_ms
            self._wake(member.session_deadline)

    def _wake(self, at_ms: int) -> None:
        if at_ms < self.wake_at:
            self.wake_at = at_ms

    def _enter(self, state: State, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} cannot become {state}"
        self.state = state
        self.state_since_ms = now_ms

    # --- in the log ----------------------------------------------------------------------------------------------

    def record(self, now_ms: int, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """The group as it is written to the log, with these assignments or those it has."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.state_since_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=member.assignment if assignments is None else assignments[member.member_id],
                )
                for member in self.members.values()
            ],
        )

    def restore(self, value: GroupMetadataValue) -> None:
        """Becomes what the log says; `resume` follows when the whole log is read."""
        self.protocol_type = value.protocol_type or None
        self.generation = value.generation
        self.protocol, self.leader = value.protocol, value.leader
        self.state_since_ms = max(value.current_state_timestamp, 0) or self.state_since_ms
        self.members = {
            m.member_id: Member(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.session_timeout,
                m.rebalance_timeout if m.rebalance_timeout >= 0 else m.session_timeout,
                [(value.protocol or "", m.subscription)],
                m.assignment,
            )
            for m in value.members
        }
        self.static_ids = {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}
        self.state = State.STABLE if self.members else State.EMPTY

    def resume(self, now_ms: int) -> None:
        """Begins to coordinate a restored group: every member has a session from now on."""
        for member in self.members.values():
            self._touch(member, now_ms)
        if len(self.members) > self.settings.max_size:
            self._rebalance(now_ms)
