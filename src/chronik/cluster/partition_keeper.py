"""The controller's care for partitions: looks at those that may need something, decides, and proposes in slices.

It follows the image's deltas to know where to look; when a broker comes or goes it looks at all of them. Decisions are
those of `elections`; a decision that came too late is refused by the image (epochs) and made anew from what is true
then. Nothing here outlives a controller's term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import structlog

from chronik.cluster.elections import Decision, Standing, decide
from chronik.cluster.sessions import Sessions
from chronik.metadata.commands import (
    CONTROLLER,
    MAX_CHANGES_PER_COMMAND,
    Command,
    FinishAssignment,
    FinishedAssignment,
    IsrChange,
    LeaderChange,
    SetPartitionLeader,
    UpdateIsr,
)
from chronik.metadata.delta import Delta
from chronik.metadata.model import NO_LEADER, Result
from chronik.metadata.store import MetadataStore

log = structlog.get_logger()

LOOKS_PER_TURN = 1000  # partitions looked at before the event loop gets its turn
BALANCE_MOVES_PER_ROUND = 300  # leaders moved to preferred replicas before clients can settle again

Key = tuple[bytes, int]
Change = TypeVar("Change", LeaderChange, IsrChange, FinishedAssignment)


class KeeperCounters:
    """Counted since this node started, for metrics."""

    __slots__ = ("elections", "isr_shrinks", "reassignments_finished", "unclean_elections")

    def __init__(self) -> None:
        self.elections = 0
        self.unclean_elections = 0
        self.isr_shrinks = 0
        self.reassignments_finished = 0


class _Decided:
    """What one look at partitions came to."""

    __slots__ = ("elections", "finished", "shrinks")

    def __init__(self) -> None:
        self.elections: list[LeaderChange] = []
        self.shrinks: list[IsrChange] = []
        self.finished: list[FinishedAssignment] = []


class PartitionKeeper:
    """One per term of a controller. `unclean(topic name)` says whether a topic may lose records to be available."""

    def __init__(
        self,
        store: MetadataStore,
        sessions: Sessions,
        *,
        unclean: Callable[[str], bool],
        clock: Callable[[], float],
        propose_s: float,
        counters: KeeperCounters | None = None,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._unclean = unclean
        self._clock = clock
        self._propose_s = propose_s
        self.counters = counters or KeeperCounters()
        self._leaderless: dict[Key, int] = {}
        self._dirty: set[Key] = set()
        self._sweep = True
        self._balance = False
        self._forced_unclean: set[Key] = set()
        self.awaited_index = 0
        """Elections wait for everybody to have applied the log so far, or to have lost the lease."""
        self._note_leaderless(store.image.topics_by_id, store.image.applied_index)

    @property
    def busy(self) -> bool:
        """Whether there is something to look at, or to wait for."""
        return self._sweep or self._balance or bool(self._dirty)

    def look_at_all(self, *, balance: bool = False) -> None:
        self._sweep = True
        self._balance = self._balance or balance

    def look_at(self, key: Key, *, unclean: bool = False) -> None:
        self._dirty.add(key)
        if unclean:
            self._forced_unclean.add(key)

    def observe(self, delta: Delta) -> None:
        """Follows the image."""
        topics = self._store.image.topics_by_id
        if delta.restored or delta.brokers_changed or delta.nodes_changed:
            self._sweep = True
        if delta.configs_changed:
            self._dirty.update(self._leaderless)  # an unclean leader may be allowed from now on
        for topic_id, numbers in delta.partitions_changed.items():
            topic = topics[topic_id]
            for number in numbers:
                state = topic.partitions[number]
                if state.leader == NO_LEADER:
                    self._leaderless[topic_id, number] = delta.last_index
                    self._dirty.add((topic_id, number))
                else:
                    self._leaderless.pop((topic_id, number), None)
                    if state.reassigning:
                        self._dirty.add((topic_id, number))
        self._note_leaderless(delta.topics_created, delta.last_index)

    def _note_leaderless(self, topic_ids: Iterable[bytes], index: int) -> None:
        topics = self._store.image.topics_by_id
        for topic_id in topic_ids:
            for number, state in enumerate(topics[topic_id].partitions):
                if state.leader == NO_LEADER:
                    self._leaderless[topic_id, number] = index
                    self._dirty.add((topic_id, number))

    async def run(self) -> None:
        """One round: looks, decides, proposes. What must wait, or came too late, is looked at again next round."""
        decided = await self._look()
        started, before = self._clock(), self.counters.elections
        try:
            await self._propose_slices(decided.elections, SetPartitionLeader)
            await self._propose_slices(decided.shrinks, lambda changes: UpdateIsr(CONTROLLER, changes))
            await self._propose_slices(decided.finished, FinishAssignment)
        except Exception:
            self._sweep = True  # not known how far it came
            raise
        if decided.elections:
            log.info(
                "leadership of partitions changed",
                decided=len(decided.elections),
                new_leaders=self.counters.elections - before,
                took_s=round(self._clock() - started, 3),
            )

    async def _look(self) -> _Decided:
        balance, self._balance = self._balance, False
        looked_at = list(self._all_keys() if self._sweep or balance else self._dirty)
        self._sweep = False
        self._dirty.clear()
        decided = _Decided()
        moves = awaited_index = 0
        standing = Standing.of(self._store.image)
        for position, key in enumerate(looked_at):
            if position % LOOKS_PER_TURN == LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)
                standing = Standing.of(self._store.image)
            decision = self._decide(key, standing, balance=balance and moves < BALANCE_MOVES_PER_ROUND)
            if isinstance(decision, LeaderChange):
                decided.elections.append(decision)
                moves += decision.leader == NO_LEADER
            elif isinstance(decision, IsrChange):
                decided.shrinks.append(decision)
            elif isinstance(decision, FinishedAssignment):
                decided.finished.append(decision)
            elif decision is not None:
                self._dirty.add(key)
                awaited_index = max(awaited_index, self._leaderless.get(key, 0))
        self.awaited_index = awaited_index
        self._balance = self._balance or (balance and moves >= BALANCE_MOVES_PER_ROUND)
        return decided

    def _all_keys(self) -> Iterator[Key]:
        for topic in list(self._store.image.topics_by_id.values()):
            for number in range(len(topic.partitions)):
                yield topic.topic_id, number

    def _decide(self, key: Key, standing: Standing, *, balance: bool) -> Decision | None:
        topic = self._store.image.topics_by_id.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            self._forget(key)
            return None
        partition = topic.partitions[key[1]]
        return decide(
            topic.topic_id,
            key[1],
            partition,
            standing,
            stopped=lambda: self._stopped(key, partition.leader),
            outlived=lambda gone: self._sessions.outlived(partition.leader, gone),
            unclean=lambda: key in self._forced_unclean or self._unclean(topic.name),
            balance=balance,
        )

    def _stopped(self, key: Key, leader: int) -> bool:
        """Whether the last leader of a partition is known to have stopped (see `sessions`, rule 5)."""
        now = self._clock()
        if leader != NO_LEADER:
            return self._sessions.lease_over(leader, now)
        return self._sessions.released(self._leaderless.get(key, self._store.image.applied_index), now)

    def _forget(self, key: Key) -> None:
        self._leaderless.pop(key, None)
        self._forced_unclean.discard(key)

    async def _propose_slices(self, changes: list[Change], command: Callable[[list[Change]], Command]) -> None:
        for start in range(0, len(changes), MAX_CHANGES_PER_COMMAND):
            part = changes[start : start + MAX_CHANGES_PER_COMMAND]
            result = await self._store.propose(command(part), self._propose_s)
            self._account(part, result)

    def _account(self, changes: list[Change], result: Result) -> None:
        lines = result.value if isinstance(result.value, list) else [result] * len(changes)
        for change, line in zip(changes, lines, strict=True):
            if not line.ok:
                self._dirty.add((change.topic_id, change.partition))
                log.debug("a change to a partition came too late", partition=change.partition, reason=line.reason)
            elif isinstance(change, LeaderChange):
                self._count_election(change)
            elif isinstance(change, IsrChange):
                self.counters.isr_shrinks += 1
            else:
                self.counters.reassignments_finished += 1

    def _count_election(self, change: LeaderChange) -> None:
        if change.leader == NO_LEADER:
            return
        self.counters.elections += 1
        if change.unclean:
            self.counters.unclean_elections += 1
            self._forced_unclean.discard((change.topic_id, change.partition))
            topic = self._store.image.topics_by_id.get(change.topic_id)
            log.warning(
                "elected a leader that was not in sync; records may be lost",
                topic=topic.name if topic is not None else change.topic_id.hex(),
                partition=change.partition,
                leader=change.leader,
            )
