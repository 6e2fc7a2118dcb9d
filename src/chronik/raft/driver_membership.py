"""Membership as a person knows it: join, become a voter, leave, move to another address. One step at a time.

Steps are made on the leader; every other node asks it. A node that was started to join asks any node it knows, is told
who leads, enters as an observer, catches up, and then asks to become a voter. What a step means for quorums is in
`configuration.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
import structlog

from chronik.raft.driver_errors import ChangeFailed, LeaderUnreachable, NoLeader, ProposeError
from chronik.raft.driver_group import Group
from chronik.raft.errors import ChangeRefused, NotLeader, ProposalDropped
from chronik.raft.transport_frames import PeerError, RemoteError
from chronik.raft.types import UNKNOWN_DIRECTORY, ChangeKind, ConfigurationChange, Member

log = structlog.get_logger()

CHANGE = "raft.change"
JOIN = "raft.join"
JOIN_TIMEOUT_S = 3.0
STEP_RETRY_S = 0.05
CONNECT_S = 0.1
LISTENING_S = 0.5

Action = Literal["add_voter", "remove", "update_address"]


class ChangeRequest(msgspec.Struct, array_like=True, frozen=True):
    """What another node asks the leader to do, and how long it waits."""

    action: Action
    member: Member
    timeout_s: float


class JoinAnswer(msgspec.Struct, array_like=True, frozen=True):
    """Not the leader: ask there (0: nobody leads now). The leader: joined, and these are the members."""

    leader_id: int
    host: str = ""
    port: int = 0
    joined: bool = False
    members: list[Member] = []


_encode = msgspec.msgpack.Encoder().encode
_decode_change = msgspec.msgpack.Decoder(ChangeRequest).decode
_decode_member = msgspec.msgpack.Decoder(Member).decode
_decode_join_answer = msgspec.msgpack.Decoder(JoinAnswer).decode
_decode_index = msgspec.msgpack.Decoder(int).decode


class Membership:
    """Changes of the membership, made here or asked for from here."""

    def __init__(self, group: Group, directory_id: bytes) -> None:
        self._group = group
        self._directory_id = directory_id
        self._steps = asyncio.Lock()
        group.transport.serve(CHANGE, self._serve_change)
        group.transport.serve(JOIN, self._serve_join)

    # --- what anybody may ask for ------------------------------------------------------------------------------------

    async def add_voter(self, node_id: int, timeout_s: float) -> None:
        """Makes an observer that has caught up a voter; a voter whose folder was emptied is first made an observer."""
        await self._change("add_voter", Member(node_id), timeout_s)

    async def remove(self, node_id: int, timeout_s: float) -> None:
        """Removes a voter or an observer, alive or dead, also this node or the leader."""
        await self._change("remove", Member(node_id), timeout_s)

    async def update_address(self, member: Member, timeout_s: float) -> None:
        """Tells the group where a member is now."""
        await self._change("update_address", member, timeout_s)

    async def _change(self, action: Action, member: Member, timeout_s: float) -> None:
        group = self._group
        deadline = group.loop.time() + timeout_s
        problem = ""
        while True:
            group.require_part()
            left_s = deadline - group.loop.time()
            if left_s <= 0:
                cause = problem or group.explain()
                raise LeaderUnreachable(cause) if group.core.leader_id else NoLeader(f"nothing was changed: {cause}")
            if group.leads:
                index = await self._make(action, member, deadline)
                break
            if not group.core.leader_id:
                await group.change(deadline)
                continue
            try:
                request = _encode(ChangeRequest(action, member, left_s))
                answer = await group.transport.request(
                    group.core.leader_id, CHANGE, request, timeout_s=left_s, connect_s=CONNECT_S
                )
                index = _decode_index(answer)
                break
            except RemoteError as error:
                if error.code != "not_leader":
                    raise ChangeFailed(error.message, retriable=error.retriable) from None
                problem = error.message
            except PeerError as error:
                problem = str(error)
            await group.change(min(deadline, group.loop.time() + STEP_RETRY_S))
        if action == "remove" and member.node_id == group.core.node_id:
            return  # who is out may never hear of it being committed
        try:
            async with asyncio.timeout_at(deadline):
                await group.waiting.until_applied(index)
        except TimeoutError:
            raise ChangeFailed("the change is made, but this node has not applied it yet", retriable=True) from None

    # --- on the leader -----------------------------------------------------------------------------------------------

    async def _make(self, action: Action, member: Member, deadline: float) -> int:
        """All steps of an action; returns the index after which it holds."""
        actions: dict[Action, Callable[[Member, float], Awaitable[int]]] = {
            "add_voter": self._make_voter,
            "remove": self._make_absent,
            "update_address": self._make_address,
        }
        try:
            async with asyncio.timeout_at(deadline):
                async with self._steps:
                    return await actions[action](member, deadline)
        except TimeoutError:
            raise ChangeFailed(
                f"'{action}' of node {member.node_id} did not come through in time: {self._group.explain()}: try again",
                retriable=True,
            ) from None

    async def _step(self, kind: ChangeKind, member: Member) -> int:
        """One change, committed and applied here; waits while an earlier one is still under way."""
        group = self._group
        while True:
            group.require_part()
            try:
                term, index = group.core.propose_change(ConfigurationChange(kind, member))
                break
            except NotLeader as error:
                raise ChangeFailed(str(error), retriable=True) from None
            except ProposalDropped as error:
                raise ChangeFailed(str(error), retriable=True) from None
            except ChangeRefused as error:
                if not error.retriable:
                    raise ChangeFailed(str(error), retriable=False) from None
            await asyncio.sleep(STEP_RETRY_S)
        log.info("proposed a membership change", change=kind.name.lower(), node=member.node_id, index=index)
        applied: asyncio.Future[object] = group.loop.create_future()
        group.waiting.proposal(index, term, applied)
        group.touch()
        try:
            await applied
        finally:
            group.waiting.forget(index, applied)
        log.info("a membership change is committed", change=kind.name.lower(), node=member.node_id, index=index)
        return index

    async def _make_voter(self, member: Member, deadline: float) -> int:
        core, node_id = self._group.core, member.node_id
        folder = self._folder_of(node_id)
        present = core.configuration.voters.get(node_id)
        if present is not None:
            if folder in (None, present.directory_id) or present.directory_id == UNKNOWN_DIRECTORY:
                return self._group.waiting.applied
            assert folder is not None
            await self._step(ChangeKind.DEMOTE_VOTER, Member(node_id, folder))
        observer = core.configuration.observers.get(node_id)
        if observer is None:
            raise ChangeFailed(
                f"node {node_id} is not known to the cluster: start it with --join and the peer address of a member",
                retriable=False,
            )
        if folder is not None and folder != observer.directory_id:
            observer = Member(node_id, folder, observer.host, observer.port)
            await self._step(ChangeKind.ADD_OBSERVER, observer)
        await self._until_caught_up(node_id)
        return await self._step(ChangeKind.ADD_VOTER, observer)

    async def _until_caught_up(self, node_id: int) -> None:
        group = self._group
        while True:
            if not group.leads:
                raise ChangeFailed("this node stopped to lead: try again", retriable=True)
            status = group.core.status()
            peer = status.peers.get(node_id)
            heard = peer is not None and peer.active and peer.match > 0
            if heard and peer is not None and status.commit - peer.match <= group.settings.catch_up_entries_max:
                return
            await asyncio.sleep(STEP_RETRY_S)

    def _folder_of(self, node_id: int) -> bytes | None:
        """The directory id that a node has now, as it says itself."""
        if node_id == self._group.core.node_id:
            return self._directory_id
        peer = self._group.transport.peers().get(node_id)
        if peer is not None and peer.directory_id is not None:
            return peer.directory_id
        progress = self._group.core.status().peers.get(node_id)
        known = progress is not None and progress.directory_id != UNKNOWN_DIRECTORY
        return progress.directory_id if progress is not None and known else None

    async def _make_absent(self, member: Member, deadline: float) -> int:
        await self._until_listening(member.node_id)
        configuration = self._group.core.configuration
        if member.node_id in configuration.voters:
            return await self._step(ChangeKind.REMOVE_VOTER, Member(member.node_id))
        if member.node_id in configuration.observers:
            return await self._step(ChangeKind.REMOVE_OBSERVER, Member(member.node_id))
        return self._group.waiting.applied

    async def _until_listening(self, node_id: int) -> None:
        """A moment for a living node to be sent the log as it grows: then it hears of its own removal, too."""
        group = self._group
        until = group.loop.time() + LISTENING_S
        while group.leads and group.loop.time() < until:
            peer = group.core.status().peers.get(node_id)
            if peer is None or not peer.active or peer.state == "replicate":
                return
            await asyncio.sleep(STEP_RETRY_S)

    async def _make_address(self, member: Member, deadline: float) -> int:
        configuration = self._group.core.configuration
        present = configuration.voters.get(member.node_id) or configuration.observers.get(member.node_id)
        if present is None:
            raise ChangeFailed(f"node {member.node_id} is not a member: let it join first", retriable=False)
        if (present.host, present.port) == (member.host, member.port):
            return self._group.waiting.applied
        if present.directory_id not in (UNKNOWN_DIRECTORY, member.directory_id):
            raise ChangeFailed(
                f"node {member.node_id} came back with another data folder: add it as a voter again first",
                retriable=False,
            )
        return await self._step(ChangeKind.UPDATE_ADDRESS, member)

    async def _serve_change(self, peer: int, payload: bytes) -> bytes:
        request = _decode_change(payload)
        group = self._group
        try:
            group.require_part()
            if not group.leads:
                raise RemoteError("not_leader", f"node {group.core.node_id} does not lead", retriable=True)
            deadline = group.loop.time() + request.timeout_s
            return _encode(await self._make(request.action, request.member, deadline))
        except ProposeError as error:
            raise RemoteError("refused", str(error), retriable=error.retriable) from None

    # --- joining -----------------------------------------------------------------------------------------------------

    async def join(self, host: str, port: int) -> bool:
        """Asks the node at an address to let this one in, or where to ask; whether that worked."""
        group = self._group
        own = Member(group.core.node_id, self._directory_id, *group.transport.address)
        for _ in range(2):
            answer = _decode_join_answer(
                await group.transport.request_address(host, port, JOIN, _encode(own), JOIN_TIMEOUT_S)
            )
            for member in answer.members:
                if member.host:
                    group.transport.set_peer(member.node_id, member.host, member.port)
            if answer.joined:
                return True
            if not answer.leader_id or not answer.host:
                return False
            host, port = answer.host, answer.port
        return False

    async def _serve_join(self, peer: int, payload: bytes) -> bytes:
        group = self._group
        member = _decode_member(payload)
        if member.node_id != peer:
            raise RemoteError("bad_request", f"node {peer} cannot join in the name of node {member.node_id}")
        try:
            group.require_part()
            if not group.leads:
                return _encode(self._redirect())
            group.transport.set_peer(member.node_id, member.host, member.port)
            async with asyncio.timeout(JOIN_TIMEOUT_S), self._steps:
                await self._let_in(member)
        except TimeoutError:
            raise RemoteError("timeout", f"joining did not come through: {group.explain()}", retriable=True) from None
        except ProposeError as error:
            raise RemoteError("refused", str(error), retriable=error.retriable) from None
        configuration = group.core.configuration
        members = [*configuration.voters.values(), *configuration.observers.values()]
        return _encode(JoinAnswer(group.core.node_id, joined=True, members=members))

    async def _let_in(self, member: Member) -> None:
        """Makes sure that the node, with the folder it has now, is at least an observer, at the address it has now."""
        configuration = self._group.core.configuration
        voter = configuration.voters.get(member.node_id)
        if voter is not None and voter.directory_id not in (UNKNOWN_DIRECTORY, member.directory_id):
            log.warning(
                "a voter came back with another data folder and is an observer from now on", node=member.node_id
            )
            await self._step(ChangeKind.DEMOTE_VOTER, member)
            return
        present = voter or configuration.observers.get(member.node_id)
        if present is None or (voter is None and present.directory_id != member.directory_id):
            await self._step(ChangeKind.ADD_OBSERVER, member)
        elif (present.host, present.port) != (member.host, member.port):
            await self._step(ChangeKind.UPDATE_ADDRESS, member)

    def _redirect(self) -> JoinAnswer:
        leader_id = self._group.core.leader_id
        if not leader_id:
            return JoinAnswer(0)
        peer = self._group.transport.peers().get(leader_id)
        return JoinAnswer(leader_id, peer.host, peer.port) if peer is not None else JoinAnswer(leader_id)
