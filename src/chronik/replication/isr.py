"""Keeping the in-sync replicas of the partitions this node leads: who joins, who leaves, and agreeing on it.

Every change is an `UpdateIsr` command that names the leader epoch and the partition epoch it was decided in and the
registrations of those who join, so that of two leaders, or two decisions, only one can ever succeed. Changes of many
partitions travel together, one command at a time. Who is to join or leave is decided by `replica_state`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog

from chronik.metadata.commands import MAX_CHANGES_PER_COMMAND, IsrChange, UpdateIsr
from chronik.metadata.model import Result
from chronik.replication.leadership import UNREGISTERED, Leadership

if TYPE_CHECKING:
    from chronik.replication.manager import ReplicaManager
    from chronik.replication.partition import Partition

PROPOSE_TIMEOUT_S = 3.0
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
RECHECK_S = 0.25  # how often a high watermark that waits for a follower to join is looked at again
SHOWN = 3  # partitions that a log line names
SWEEP_SLICE = 500  # partitions looked at before the loop gets a turn
SWEEPS_PER_LAG_LIMIT = 10  # a member is out this soon after the limit: writes wait for it until then
SWEEP_EVERY_MAX_S = 1.0

log = structlog.get_logger()


class Begun(NamedTuple):
    """A change under way, and whom it lets in and puts out."""

    partition: Partition
    lead: Leadership
    change: IsrChange
    joins: bool
    leaves: bool

    def still_pending(self) -> bool:
        """Whether this leadership goes on, and nothing has settled the change."""
        return self.lead is self.partition.leadership and self.lead.pending_isr == self.change.isr


class IsrUpdater:
    """Proposes the ISR changes of one node."""

    def __init__(self, replicas: ReplicaManager, propose_timeout_s: float = PROPOSE_TIMEOUT_S) -> None:
        self._replicas = replicas
        self._propose_timeout_s = propose_timeout_s
        self._dirty: dict[Partition, None] = {}
        self._waiting: dict[Partition, None] = {}
        self._recheck: asyncio.TimerHandle | None = None
        self._proposer: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_for_ever(), name="isr sweep")

    def stop(self) -> None:
        for task in (self._proposer, self._sweeper):
            if task is not None:
                task.cancel()
        if self._recheck is not None:
            self._recheck.cancel()
        self._dirty.clear()
        self._waiting.clear()

    def consider(self, partition: Partition) -> None:
        """A follower may have to join or leave, or the high watermark waits for one that is about to."""
        self._dirty[partition] = None
        if self._proposer is None or self._proposer.done():
            self._proposer = asyncio.get_running_loop().create_task(self._propose_all(), name="isr changes")

    async def _propose_all(self) -> None:
        retry_s = RETRY_FIRST_S
        while self._dirty:
            begun = self._begin()
            if not begun:
                await asyncio.sleep(0)
                continue
            if await self._propose(begun):
                retry_s = RETRY_FIRST_S
            else:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    def _begin(self) -> list[Begun]:
        begun: list[Begun] = []
        while self._dirty and len(begun) < MAX_CHANGES_PER_COMMAND:
            partition = next(iter(self._dirty))
            del self._dirty[partition]
            lead = partition.leadership
            wanted = partition.wanted_isr(self._replicas.lag_limit_s)
            if lead is None or wanted is None or lead.pending_isr is not None:
                continue
            if wanted == lead.info.isr and not lead.uncertain:
                self._look_again(partition)
                continue
            info = lead.info
            change = IsrChange(
                partition.topic_id,
                partition.index,
                info.leader_epoch,
                info.partition_epoch,
                wanted,
                tuple(self._registration(lead, node_id) for node_id in wanted),
            )
            lead.begin_isr_change(wanted)
            members, meant = set(info.isr), set(wanted)
            begun.append(Begun(partition, lead, change, bool(meant - members), bool(members - meant)))
        return begun

    def _registration(self, lead: Leadership, node_id: int) -> int:
        """The registration that a member reported under; for the leader itself, its own."""
        follower = lead.followers.get(node_id)
        if follower is None:
            return self._replicas.registration
        return follower.link.registration if follower.link is not None else UNREGISTERED

    async def _propose(self, begun: list[Begun]) -> bool:
        """Proposes one command and takes its outcome in; False when the outcome is not known."""
        command = UpdateIsr(self._replicas.node_id, [each.change for each in begun], self._replicas.registration)
        try:
            result = await self._replicas.store.propose(command, timeout_s=self._propose_timeout_s)
        except Exception as error:
            log.warning("ISR changes have no known outcome and are tried again", changes=len(begun), error=str(error))
            for each in begun:
                if each.still_pending():
                    each.lead.isr_change_unknown()
                    self._dirty[each.partition] = None
            return False
        outcomes = result.value if result.ok and isinstance(result.value, list) else [result] * len(begun)
        for each, outcome in zip(begun, outcomes, strict=True):
            if each.still_pending():
                # A change that was applied has been settled by the image already; this one was refused.
                each.lead.isr_change_refused()
                if each.lead.uncertain:
                    self._dirty[each.partition] = None
                each.partition.advance_high_watermark()
            self._count(each, outcome)
        self._say(begun, outcomes)
        return True

    def _count(self, each: Begun, outcome: Result) -> None:
        metrics = self._replicas.metrics
        if not outcome.ok:
            metrics.isr_refusals += 1
            return
        metrics.isr_shrinks += each.leaves
        metrics.isr_expansions += each.joins

    def _say(self, begun: list[Begun], outcomes: list[Result]) -> None:
        """One line for thousands of changes, with the first ones by name."""
        changed = [each for each, outcome in zip(begun, outcomes, strict=True) if outcome.ok]
        refused = [outcome.reason for outcome in outcomes if not outcome.ok]
        shown = [f"{each.partition.topic}-{each.partition.index}: {list(each.change.isr)}" for each in changed[:SHOWN]]
        if changed:
            log.info("ISRs changed", partitions=len(changed), now=shown)
        if refused:
            log.info("ISR changes were refused", partitions=len(refused), reasons=refused[:SHOWN])

    # looking again

    def _look_again(self, partition: Partition) -> None:
        """Nothing to propose now; if the high watermark waits for somebody, it must not do so for ever."""
        self._waiting[partition] = None
        if self._recheck is None:
            self._recheck = asyncio.get_running_loop().call_later(RECHECK_S, self._recheck_waiting)

    def _recheck_waiting(self) -> None:
        self._recheck = None
        waiting, self._waiting = self._waiting, {}
        for partition in waiting:
            partition.advance_high_watermark()

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(sweep_every_s(self._replicas.lag_limit_s))
            await self._sweep()

    async def _sweep(self) -> None:
        """Looks for members that lag, in slices, so that the loop stays free with thousands of partitions.

        Most have nobody behind, which costs next to nothing to see."""
        lag_limit_s = self._replicas.lag_limit_s
        for position, partition in enumerate(list(self._replicas.partitions())):
            lead = partition.leadership
            if (
                lead is not None
                and lead.unsettled(partition.end_offset)
                and partition.wanted_isr(lag_limit_s) != lead.info.isr
            ):
                self.consider(partition)
            if position % SWEEP_SLICE == SWEEP_SLICE - 1:
                await asyncio.sleep(0)


def sweep_every_s(lag_limit_s: float) -> float:
    """How long members that lag may go unnoticed, beyond the limit."""
    return min(SWEEP_EVERY_MAX_S, lag_limit_s / SWEEPS_PER_LAG_LIMIT)
