"""Replicas that cannot take records: they leave the ISR, so that the others can go on without them.

A replica that leads gives leadership up with it, and the controller elects another. The last one in sync stays: nobody
else has what it has, and giving it up would lose records. A log that the disk has stopped works again after a restart
of the node; one that merely has no space left is in sync again by itself when there is some.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from chronik.metadata.commands import MAX_CHANGES_PER_COMMAND, LeaderChange, SetPartitionLeader
from chronik.metadata.model import NO_LEADER

if TYPE_CHECKING:
    from chronik.replication.manager import ReplicaManager
    from chronik.replication.partition import Partition

PROPOSE_TIMEOUT_S = 5.0
RETRY_S = 0.5

log = structlog.get_logger()


class FailedReplicas:
    """Takes the replicas of this node that failed, or cannot append, out of their ISRs."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._waiting: dict[Partition, None] = {}
        self._task: asyncio.Task[None] | None = None

    def withdraw(self, partition: Partition) -> None:
        """This replica cannot take records any more, or not now. Called again whenever metadata gives a failed one a
        role, and whenever an append fails for lack of space."""
        if self._change(partition) is None:
            return
        self._waiting[partition] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._withdraw_all(), name="failed replicas")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()

    async def _withdraw_all(self) -> None:
        """Tries for as long as metadata counts on a failed replica; one that is counted on again comes back here. For
        one without space it tries once per append: by the next one there may be some."""
        while self._waiting:
            batch = list(self._waiting)[:MAX_CHANGES_PER_COMMAND]
            changes = [change for partition in batch if (change := self._change(partition)) is not None]
            if changes:
                try:
                    await self._replicas.store.propose(SetPartitionLeader(changes), timeout_s=PROPOSE_TIMEOUT_S)
                except Exception as error:
                    log.warning("replicas that cannot take records are still in their ISRs", error=str(error))
            await asyncio.sleep(RETRY_S)  # also when it worked: a leader that did not hear of it may ask us in again
            for partition in batch:
                if not partition.failed or self._change(partition) is None:
                    del self._waiting[partition]

    def _change(self, partition: Partition) -> LeaderChange | None:
        """What would take the replica out, or None when it is out, or must stay."""
        info, node_id = partition.info, self._replicas.node_id
        rest = tuple(member for member in info.isr if member != node_id)
        if not rest or len(rest) == len(info.isr):
            return None
        leader = NO_LEADER if info.leader == node_id else info.leader
        return LeaderChange(partition.topic_id, partition.index, leader, info.partition_epoch, rest)
