"""One term of a controller: what it does with heartbeats, and what it does every tick.

A term begins when this node leads the Raft group and has applied everything committed before; it ends with the
leadership, and takes nothing over into the next. All that is decided goes through the image, so whatever is left undone
is visible there to the next controller. The life around a term, and the requests of peers, are in `controller`.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from chronik.cluster.internal_topics import growth
from chronik.cluster.messages import Heartbeat, Leaving, Verdict
from chronik.cluster.partition_keeper import KeeperCounters, PartitionKeeper
from chronik.cluster.sessions import Sessions
from chronik.cluster.settings import Timings
from chronik.metadata.commands import MAX_CHANGES_PER_COMMAND, AssignPartition, UpdateBrokerStatus
from chronik.metadata.configs import ConfigView
from chronik.metadata.delta import Delta
from chronik.metadata.model import INTERNAL_TOPICS, BrokerInfo, BrokerStatus
from chronik.metadata.store import MetadataStore

log = structlog.get_logger()


class ControllerTerm:
    """The controller's memory. Lives on the event loop."""

    def __init__(
        self,
        store: MetadataStore,
        view: ConfigView,
        timings: Timings,
        clock: Callable[[], float],
        counters: KeeperCounters,
    ) -> None:
        self._store = store
        self._view = view
        self._timings = timings
        self._clock = clock
        self.sessions = Sessions(timings.session_s, timings.lease_s, timings.tick_s)
        now = clock()
        self.sessions.begin(now, store.image.brokers, store.image.version)
        self._registrations = {
            broker.node_id: (broker.epoch, broker.directory_id) for broker in store.image.brokers.values()
        }
        self.keeper = PartitionKeeper(
            store,
            self.sessions,
            unclean=lambda topic: view.topic_settings(topic).unclean_leader_election_enable,
            clock=clock,
            propose_s=timings.propose_s,
            counters=counters,
        )
        self._alive = {broker.node_id for broker in store.image.brokers.values() if broker.alive}
        """As far as observed: by then it is observed as well what a broker lost while it was away."""
        self._returning: set[int] = set()
        self._draining: set[int] = set()
        self._stopped: dict[int, int] = {}
        self._grow = True
        self._balanced_at = now
        self._balanced_version = -1

    # Following the image.

    def observe(self, delta: Delta) -> None:
        for node_id in delta.brokers_changed:
            self._broker_changed(node_id, self._store.image.brokers.get(node_id))
        for node_id in delta.leaders_ended:
            self.sessions.lost_leadership(node_id, delta.last_index)
        if delta.brokers_changed or delta.topics_created or self._internal_changed(delta):
            self._grow = True
        self.keeper.observe(delta)

    def _internal_changed(self, delta: Delta) -> bool:
        """Whether partitions of internal topics changed: one that was growing may have to grow further."""
        topics = (self._store.image.topics.get(name) for name in INTERNAL_TOPICS)
        return any(topic is not None and topic.topic_id in delta.partitions_changed for topic in topics)

    def _broker_changed(self, node_id: int, broker: BrokerInfo | None) -> None:
        now = self._clock()
        self._balanced_at = now  # leaders are given back only some time after the last coming or going
        known = self._registrations.get(node_id)
        if broker is not None and broker.alive:
            self._alive.add(node_id)
        else:
            self._alive.discard(node_id)
            self.sessions.gone(node_id, now)
        if broker is None:
            self.sessions.forget(node_id, now)
        elif known is None or known[0] != broker.epoch:
            same_folder = known is None or known[1] == broker.directory_id
            self.sessions.restarted(node_id, now, same_folder=same_folder)
            self._draining.discard(node_id)
            self._registrations[node_id] = (broker.epoch, broker.directory_id)

    # Heartbeats.

    def heartbeat(self, beat: Heartbeat, arrived_at: float) -> tuple[Verdict, bool]:
        """What to answer, and whether a lease may be renewed."""
        broker = self._store.image.brokers.get(beat.node_id)
        if broker is None or (broker.epoch < beat.epoch and broker.incarnation != beat.incarnation):
            # Either not registered, or a registration that is committed but not yet applied here.
            missing = beat.epoch <= self._store.image.applied_index
            return (Verdict.NOT_REGISTERED if missing else Verdict.ACCEPTED), False
        if broker.incarnation != beat.incarnation:
            return Verdict.SUPERSEDED, False
        self.sessions.heard(beat.node_id, broker.epoch, beat.applied_index, arrived_at)
        if beat.leaving == Leaving.STOPPED:
            self.sessions.end_lease(beat.node_id)
            self._stopped[beat.node_id] = broker.epoch
            return Verdict.ACCEPTED, False
        if beat.leaving == Leaving.DRAINING and broker.online:
            self._draining.add(beat.node_id)
        if not broker.alive:
            self._returning.add(beat.node_id)
            return Verdict.ACCEPTED, False
        if beat.node_id not in self._alive:
            return Verdict.ACCEPTED, False
        if beat.applied_index < self.keeper.awaited_index:
            return Verdict.ACCEPTED, False  # others wait for what this broker does not know yet
        if not self.sessions.knows_its_losses(beat.node_id):
            return Verdict.ACCEPTED, False  # it may believe that it leads what others lead by now
        self.sessions.promise_lease(beat.node_id, arrived_at)
        return Verdict.ACCEPTED, True

    def led_elsewhere_possible(self, node_id: int) -> int:
        """How many partitions the broker leads that somebody else in sync could lead."""
        image = self._store.image
        online = {broker.node_id for broker in image.online_brokers()} - {node_id}
        return sum(
            1
            for topic in image.topics.values()
            for partition in topic.partitions
            if partition.leader == node_id and not online.isdisjoint(partition.isr)
        )

    # Every tick.

    @property
    def urgent(self) -> bool:
        """Whether there is something to do before the next tick."""
        return bool(self._returning or self._draining or self._stopped) or self.keeper.busy

    async def round(self) -> None:
        """Fences the silent, brings back the returned, and sees to partitions."""
        await self._fence()
        await self._follow_leavers()
        await self._bring_back()
        self._maybe_balance()
        if self.keeper.busy:
            await self.keeper.run()
        if self._grow:
            await self._grow_internal_topics()

    async def _fence(self) -> None:
        image = self._store.image
        for node_id in self.sessions.lapsed(self._clock()):
            broker = image.brokers.get(node_id)
            if broker is None:
                self.sessions.forget(node_id, self._clock())
            elif broker.alive:
                reason = "no heartbeat arrived within its session"
                await self._set_status(broker, BrokerStatus.OFFLINE, reason)

    async def _follow_leavers(self) -> None:
        for node_id in list(self._draining):
            self._draining.discard(node_id)
            broker = self._store.image.brokers.get(node_id)
            if broker is not None and broker.online:
                await self._set_status(broker, BrokerStatus.MAINTENANCE, "it is shutting down")
        for node_id, epoch in list(self._stopped.items()):
            broker = self._store.image.brokers.get(node_id)
            if broker is not None and broker.epoch == epoch and broker.alive:
                await self._set_status(broker, BrokerStatus.OFFLINE, "it has stopped")
            del self._stopped[node_id]

    async def _bring_back(self) -> None:
        for node_id in list(self._returning):
            self._returning.discard(node_id)
            broker = self._store.image.brokers.get(node_id)
            if broker is None or broker.alive:
                continue
            if not self.sessions.heard_lately(node_id, broker.epoch, self._clock()):
                continue
            status = BrokerStatus.MAINTENANCE if broker.maintenance else BrokerStatus.ONLINE
            await self._set_status(broker, status, "it sends heartbeats")

    async def _set_status(self, broker: BrokerInfo, status: BrokerStatus, reason: str) -> None:
        command = UpdateBrokerStatus(broker.node_id, status, broker.epoch, reason=reason)
        result = await self._store.propose(command, self._timings.propose_s)
        if result.ok:
            log.info("broker status changed", broker=broker.node_id, status=status.name.lower(), reason=reason)
        else:
            log.info("broker status not changed", broker=broker.node_id, wanted=status.name.lower(), why=result.reason)

    def _maybe_balance(self) -> None:
        now = self._clock()
        version = self._store.image.version
        if now - self._balanced_at < self._timings.rebalance_every_s or version == self._balanced_version:
            return
        self._balanced_at = now
        self._balanced_version = version
        if self._view.broker_bool("auto.leader.rebalance.enable"):
            self.keeper.look_at_all(balance=True)

    async def _grow_internal_topics(self) -> None:
        self._grow = False
        changes = growth(self._store.image, self._view)
        try:
            for start in range(0, len(changes), MAX_CHANGES_PER_COMMAND):
                part = changes[start : start + MAX_CHANGES_PER_COMMAND]
                await self._store.propose(AssignPartition(part), self._timings.propose_s)
        except Exception:
            self._grow = True
            raise
        if changes:
            log.info("internal topics are getting more replicas", partitions=len(changes))
