"""The classic group protocol at the wire, for members that only exist to be measured: join, sync, leave."""

from __future__ import annotations

import msgspec

from chronik.client.cluster import GROUP, Cluster
from chronik.client.connection import Connection
from chronik.client.errors import ConnectionFailed, raise_for_code
from chronik.client.retry import retry
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.group_membership import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

PROTOCOL_TYPE = "consumer"
PROTOCOL_NAME = "range"
SESSION_TIMEOUT_MS = 30_000
REBALANCE_TIMEOUT_MS = 60_000
JOIN_TIMEOUT_S = 90.0
JOIN_ROUNDS_MAX = 20
EMPTY_SUBSCRIPTION = b"\x00\x00" + b"\x00\x00\x00\x00" + b"\xff\xff\xff\xff"
"""Version 0, no topics, no user data: what is measured is the protocol, not an assignment."""


class Member(msgspec.Struct):
    """One member and the connection it speaks through."""

    group: str
    connection: Connection
    member_id: str = ""
    generation: int = -1

    def close(self) -> None:
        self.connection.close()


def connect_member(cluster: Cluster, group: str) -> Member:
    """A member that has not joined yet, connected to the coordinator of its group."""

    def attempt() -> Member:
        return Member(group, cluster.connect(cluster.coordinator(GROUP, group)))

    return retry(f"finding the coordinator of group {group}", cluster.settings.retry, attempt)


def join_together(members: list[Member]) -> None:
    """All members join and sync at once, each on its own connection; returns when every one has its assignment."""
    waiting = list(members)
    for _ in range(JOIN_ROUNDS_MAX):
        for member in waiting:
            member.connection.send(_join(member), timeout_s=JOIN_TIMEOUT_S)
        answers = [(m, m.connection.receive(JoinGroupResponse, timeout_s=JOIN_TIMEOUT_S)) for m in waiting]
        again: list[Member] = []
        joined: list[tuple[Member, JoinGroupResponse]] = []
        for member, answer in answers:
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                member.member_id = answer.member_id
                again.append(member)
            else:
                raise_for_code(answer.error_code, f"joining group {member.group}")
                member.member_id, member.generation = answer.member_id, answer.generation_id
                joined.append((member, answer))
        if joined:
            again += _sync(joined)
        if not again:
            return
        # Whoever joined late moved the generation on: those who were there before have to join once more.
        newest = max(member.generation for member in members)
        waiting = again + [m for m in members if m not in again and m.generation != newest]
    raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"the group did not settle within {JOIN_ROUNDS_MAX} rounds")


def leave(members: list[Member]) -> None:
    """All members leave and hang up; one whose broker is gone has left anyway."""
    for member in members:
        request = LeaveGroupRequest(
            group_id=member.group, member_id=member.member_id, members=[MemberIdentity(member_id=member.member_id)]
        )
        try:
            member.connection.call(request, LeaveGroupResponse)
        except ConnectionFailed:
            pass
        member.close()


def _join(member: Member) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=member.group,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        member_id=member.member_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[JoinGroupRequestProtocol(name=PROTOCOL_NAME, metadata=EMPTY_SUBSCRIPTION)],
    )


def _sync(joined: list[tuple[Member, JoinGroupResponse]]) -> list[Member]:
    """Sync those who joined; the members that have to join again."""
    for member, answer in joined:
        assignments = [
            SyncGroupRequestAssignment(member_id=other.member_id, assignment=EMPTY_SUBSCRIPTION)
            for other in answer.members
        ]
        request = SyncGroupRequest(
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL_NAME,
            assignments=assignments if answer.leader == member.member_id else [],
        )
        member.connection.send(request, timeout_s=JOIN_TIMEOUT_S)
    again: list[Member] = []
    for member, _ in joined:
        synced = member.connection.receive(SyncGroupResponse, timeout_s=JOIN_TIMEOUT_S)
        if synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            again.append(member)
        else:
            raise_for_code(synced.error_code, f"getting the assignment of group {member.group}")
    return again
