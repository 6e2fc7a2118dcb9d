"""The machine of one classic group: what members ask, and what is due with time.

The rules it keeps and its tables are in `classic_state`. Requests go in with a ticket and the time; `effects` collects
what comes out, for the caller to carry out and clear. `tick` is due at `wake_at`. Nothing here reads a clock, waits, or
writes.
"""

from __future__ import annotations

from chronik.groups.classic_core import NEVER
from chronik.groups.classic_members import CONSUMER_PROTOCOL, Member, choose_protocol, subscribed_topics, supports
from chronik.groups.classic_rebalance import REPLACED, ClassicRebalance
from chronik.groups.classic_state import COMMIT, HEARTBEAT, State
from chronik.groups.effects import Persist, Respond, Ticket
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.group_membership import JoinGroupRequest, MemberIdentity, MemberResponse

__all__ = ["NEVER", "ClassicGroup"]


class ClassicGroup(ClassicRebalance):
    """One group. `new_member_id` makes an id that nobody else has, from the prefix it is given."""

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

    # --- living and leaving --------------------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        error = self._member_problem(member_id, instance_id, generation)
        if error is None:
            error = HEARTBEAT[self.state]
            if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                self._touch(self.members[member_id], now_ms)
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

    def resume(self, now_ms: int) -> None:
        """Begins to coordinate a restored group: every member has a session from now on."""
        for member in self.members.values():
            self._touch(member, now_ms)
        if len(self.members) > self.settings.max_size:
            self._rebalance(now_ms)
