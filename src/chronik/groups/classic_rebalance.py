"""Rebalancing a classic group: from the first member who joins to the assignment that is in the log.

The rules are in `classic_state`.
"""

from __future__ import annotations

from chronik.groups.classic_core import NEVER, ClassicState
from chronik.groups.classic_members import Member, choose_protocol
from chronik.groups.classic_state import SYNC, State
from chronik.groups.effects import Persist, Respond, Ticket
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.group_membership import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)

ASSIGNED, REPLACED, EMPTIED = "assigned", "replaced", "emptied"


class ClassicRebalance(ClassicState):
    """A group that can begin and complete a generation."""

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
