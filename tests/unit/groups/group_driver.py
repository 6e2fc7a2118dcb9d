"""A classic group driven by hand: tickets are numbers, answers are kept, records are written when the test says so."""

from __future__ import annotations

from typing import Any

from chronik.groups.classic import ClassicGroup
from chronik.groups.classic_state import ClassicSettings
from chronik.groups.effects import Persist, Respond
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.group_membership import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3000


class Driver:
    """The world around one group."""

    def __init__(self, *, writes_at_once: bool = True, **settings: int) -> None:
        chosen = {"initial_rebalance_delay_ms": DELAY_MS, "min_session_timeout_ms": 1000, **settings}
        self.now = 1_000_000
        self.answers: dict[int, Any] = {}
        self.unwritten: list[Persist] = []
        self.written: list[Persist] = []
        self._writes_at_once = writes_at_once
        self._tickets = 0
        self._ids = 0
        self.group = ClassicGroup("g", ClassicSettings(**chosen), self._new_id, self.now)

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    def settle(self) -> None:
        while self.group.effects:
            effects, self.group.effects = self.group.effects, []
            for effect in effects:
                if isinstance(effect, Respond):
                    assert effect.ticket not in self.answers, f"ticket {effect.ticket} was answered twice"
                    self.answers[effect.ticket] = effect.response
                elif self._writes_at_once:
                    self.written.append(effect)
                    self.group.persisted(effect, ErrorCode.NONE, self.now)
                else:
                    self.unwritten.append(effect)

    def write(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The log has taken, or refused, the oldest record."""
        persist = self.unwritten.pop(0)
        if not error:
            self.written.append(persist)
        self.group.persisted(persist, error, self.now)
        self.settle()

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 3,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"meta"),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client: str = "client",
    ) -> int:
        self._tickets += 1
        ticket = self._tickets
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        )
        self.group.join(
            request,
            ticket,
            self.now,
            client_id=client,
            client_host="/host",
            id_required=version >= 4,
            may_skip_assignment=version >= 9,
        )
        self.settle()
        return ticket

    def sync(
        self, joined: JoinGroupResponse, assignments: dict[str, bytes] | None = None, *, generation: int | None = None
    ) -> int:
        self._tickets += 1
        ticket = self._tickets
        request = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id if generation is None else generation,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        )
        self.group.sync(request, ticket, self.now)
        self.settle()
        return ticket

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        code = self.group.heartbeat(
            member_id, instance, self.group.generation if generation is None else generation, self.now
        )
        self.settle()
        return code

    def leave(self, member_id: str = "", instance: str | None = None) -> int:
        answer = self.group.leave(MemberIdentity(member_id=member_id, group_instance_id=instance), self.now)
        self.settle()
        return answer.error_code

    def pass_time(self, milliseconds: int) -> None:
        """Time goes by; the group is woken whenever it asked to be."""
        end = self.now + milliseconds
        while self.group.wake_at <= end:
            self.now = max(self.now, self.group.wake_at)
            self.group.tick(self.now)
            self.settle()
        self.now = end

    def joined(self, ticket: int) -> JoinGroupResponse:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def synced(self, ticket: int) -> SyncGroupResponse:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncGroupResponse)
        return answer

    def stable_group(self, size: int = 2, **join: Any) -> list[JoinGroupResponse]:
        """A group in which every member has its own name as assignment; the first is the leader."""
        instances = join.pop("instances", [None] * size)
        tickets = [self.join(instance=instances[n], **join) for n in range(size)]
        while not all(ticket in self.answers for ticket in tickets):
            self.pass_time(100)
        members = [self.joined(ticket) for ticket in tickets]
        leader = next(member for member in members if member.member_id == member.leader)
        self.sync(leader, {member.member_id: member.member_id.encode() for member in members})
        for member in members:
            if member is not leader:
                self.sync(member)
        return sorted(members, key=lambda member: member is not leader)

    def keep_alive(self, members: list[JoinGroupResponse], milliseconds: int, step_ms: int = 3000) -> None:
        for _ in range(milliseconds // step_ms):
            self.pass_time(step_ms)
            for member in members:
                self.heartbeat(member.member_id)
