"""What a classic group is made of: its members and fields, how it is written to the log, who is a member.

The rules are in `classic_state`; rebalancing is in `classic_rebalance`, the requests of members are in `classic`.
"""

from __future__ import annotations

from collections.abc import Callable

from chronik.groups.classic_members import Member
from chronik.groups.classic_state import TRANSITIONS, ClassicSettings, State
from chronik.groups.effects import Effect, Respond, Ticket
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.group_membership import JoinGroupResponse, SyncGroupResponse
from chronik.protocol.messages.internal_groups import GroupMetadataValue, MemberMetadata

NEVER = 1 << 62


class ClassicState:
    """The fields of a group, and the small steps that everything else is made of."""

    kind = "classic"

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

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def empty_since_ms(self) -> int | None:
        """Since when the group is empty; None where it never had members."""
        return self.state_since_ms if self.protocol_type else None

    # --- who is a member -----------------------------------------------------------------------------------------

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

    def _member_problem(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode | None:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._identity_problem(member_id, instance_id)
        if error is None and generation != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return error

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

    def _forget(self, member: Member) -> None:
        self._answer_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        self._synced(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _synced(self, member: Member) -> None:
        self._not_synced.discard(member.member_id)
        if not self._not_synced:
            self._sync_deadline = NEVER

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

    # --- time and state ------------------------------------------------------------------------------------------

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
