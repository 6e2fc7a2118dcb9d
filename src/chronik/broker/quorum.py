"""The state of the Raft group as its leader sees it, asked for from any node.

What lives here: the picture, the peer request that fetches it from the leader, and who answers it. What does not: its
Kafka form (handlers/describe_quorum.py).
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from chronik.protocol.errors import ErrorCode, KafkaError

QUORUM_STATE = "quorum_state"
ANSWER_TIMEOUT_S = 3.0
NEVER = -1


class MemberState(msgspec.Struct, frozen=True, array_like=True):
    """One member of the group, and how far its log is known to reach (-1: not known)."""

    node_id: int
    directory_id: bytes
    voter: bool
    host: str
    port: int
    end_index: int
    heard_ms: int


class QuorumState(msgspec.Struct, frozen=True, array_like=True):
    """The group, as its leader told it."""

    leader_id: int
    term: int
    commit: int
    members: list[MemberState]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(QuorumState).decode


class Quorum:
    """Knows the group from the inside on the leader, and asks the leader elsewhere."""

    def __init__(self, raft: Any, peers: Any) -> None:
        self._raft = raft
        self._peers = peers
        peers.serve(QUORUM_STATE, self._answer)

    async def state(self) -> QuorumState:
        """The group's state; raises KafkaError when there is no leader, or it does not answer."""
        leader = self._raft.leader_id
        if not leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the Raft group has no leader at the moment; try again")
        if self._raft.is_leader:
            return self._own_state()
        try:
            answer = await self._peers.request(leader, QUORUM_STATE, b"", timeout_s=ANSWER_TIMEOUT_S)
        except Exception as error:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the controller (node {leader}) did not answer: {error}; try again"
            ) from error
        return _decode(answer)

    async def _answer(self, peer_id: int, payload: bytes) -> bytes:
        return _encode(self._own_state())

    def _own_state(self) -> QuorumState:
        status = self._raft.status()
        now_ms = int(time.time() * 1000)
        members: list[MemberState] = []
        for voter, group in ((True, status.configuration.voters), (False, status.configuration.observers)):
            for node_id, member in sorted(group.items()):
                view = status.peers.get(node_id)
                if node_id == status.node_id:
                    end, heard = status.last_index, now_ms
                elif view is None:
                    end, heard = NEVER, NEVER
                else:
                    end = NEVER if view.match is None else view.match
                    heard = NEVER if view.heard_ago_s is None else now_ms - int(view.heard_ago_s * 1000)
                members.append(MemberState(node_id, member.directory_id, voter, member.host, member.port, end, heard))
        return QuorumState(status.leader_id, status.term, status.commit, members)
