"""Carrying out who shall be a member: what AddNode and RemoveNode ask for in the image, done in the Raft group.

The wish is in the image, so it outlives any controller; a step that fails is tried again next time. Joining as an
observer, catching up and the rules of voter changes are Raft's. Removing a node forgets its broker as well; its
replicas elsewhere are untouched, so it should be drained first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from chronik.cluster.settings import Timings
from chronik.metadata.commands import ConfirmNode, RemoveBroker
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import NodeInfo, NodeState
from chronik.metadata.store import MetadataStore

if TYPE_CHECKING:
    from chronik.raft.driver import RaftDriver

log = structlog.get_logger()

VOTER_CHANGE_S = 30.0  # a node may have to catch up first
RETRY_S = 1.0


class GroupMembers(Protocol):
    """The members of the Raft group, and how they change."""

    def member_ids(self) -> set[int]: ...

    async def add_voter(self, node_id: int, timeout_s: float) -> object: ...

    async def remove_voter(self, node_id: int, timeout_s: float) -> object: ...


class RaftMembers:
    """GroupMembers by the Raft driver."""

    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver

    def member_ids(self) -> set[int]:
        configuration = self._driver.status().configuration
        return {*configuration.voters, *configuration.observers}

    async def add_voter(self, node_id: int, timeout_s: float) -> None:
        await self._driver.add_voter(node_id, timeout_s)

    async def remove_voter(self, node_id: int, timeout_s: float) -> None:
        await self._driver.remove_voter(node_id, timeout_s)


class MembershipKeeper:
    """One per term of a controller."""

    def __init__(self, store: MetadataStore, members: GroupMembers, timings: Timings) -> None:
        self._store = store
        self._members = members
        self._timings = timings
        self._running: dict[int, asyncio.Task[None]] = {}

    def run(self) -> None:
        """Starts what is due and not under way; never waits."""
        for node in self._store.image.nodes.values():
            due = node.state in (NodeState.JOINING, NodeState.LEAVING)
            if due and node.node_id not in self._running:
                self._running[node.node_id] = asyncio.get_running_loop().create_task(self._carry_out(node))

    def stop(self) -> None:
        for task in self._running.values():
            task.cancel()

    async def _carry_out(self, node: NodeInfo) -> None:
        try:
            if node.state == NodeState.JOINING:
                await self._add(node)
            else:
                await self._remove(node)
        except Exception as error:
            log.warning(
                "a node's membership could not be changed yet; trying again",
                node=node.node_id,
                wanted=node.state.name.lower(),
                reason=str(error) or repr(error),
            )
            await asyncio.sleep(RETRY_S)
        finally:
            self._running.pop(node.node_id, None)

    async def _add(self, node: NodeInfo) -> None:
        # Asked for in any case: a voter that came back with an empty folder is one by its id alone, and cannot vote.
        await self._members.add_voter(node.node_id, VOTER_CHANGE_S)
        result = await self._store.propose(ConfirmNode(node.node_id, node.directory_id), self._timings.propose_s)
        if result.ok:
            log.info("node is a voter", node=node.node_id)

    async def _remove(self, node: NodeInfo) -> None:
        if node.node_id in self._store.image.brokers:
            await self._store.propose(RemoveBroker(node.node_id), self._timings.propose_s)
        if node.node_id in self._members.member_ids():
            await self._members.remove_voter(node.node_id, VOTER_CHANGE_S)
        result = await self._store.propose(ConfirmNode(node.node_id, node.directory_id), self._timings.propose_s)
        if result.ok:
            log.info("node removed from the cluster", node=node.node_id)


def replicas_on(image: MetadataImage, node_id: int) -> int:
    """How many replicas a broker holds; it should hold none before it is removed."""
    return sum(1 for _, _, partition in image.each_partition() if node_id in partition.replicas)
