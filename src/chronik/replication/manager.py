"""All replicas of this node: which partitions it has, and how they follow the metadata image.

The image is the only source of roles. This node takes none before the image holds the registration of this very
process: by then it has applied everything that was committed before the process started, and metadata has taken from
it whatever an earlier process of this node led. The same moment decides about data that metadata does not know
(`orphans`). Fetching from leaders is in `fetcher`, being fetched from in `fetch_server`, ISR changes are in `isr`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog

from chronik.metadata.configs import ConfigView
from chronik.metadata.model import NO_LEADER, PartitionInfo, ResourceType, TopicInfo
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.failures import FailedReplicas
from chronik.replication.fetch_server import FetchServer
from chronik.replication.fetcher import DataTransport, Fetchers
from chronik.replication.isr import PROPOSE_TIMEOUT_S, IsrUpdater
from chronik.replication.leadership import UNREGISTERED
from chronik.replication.lease import Lease
from chronik.replication.metrics import ReplicationGauges, ReplicationMetrics
from chronik.replication.orphans import OrphanKeeper
from chronik.replication.partition import Partition
from chronik.replication.replica import Replica
from chronik.replication.settings import SettingsSource
from chronik.replication.throttle import ReplicationThrottle
from chronik.replication.wire import FETCH, REPORT

if TYPE_CHECKING:
    from chronik.metadata.delta import Delta
    from chronik.metadata.store import MetadataStore
    from chronik.storage import LogManager, PartitionLog

FOLLOWED_PER_SLICE = 250  # replicas that take their roles before the event loop gets its turn
GLANCES_PER_STEP = 8  # looking at a replica costs this much less than giving it a role

log = structlog.get_logger()

LeadershipListener = Callable[[Partition, bool], None]


class ReplicaManager:
    """The partitions of one node. Lives on the event loop; every method returns at once."""

    def __init__(
        self,
        node_id: int,
        incarnation: bytes,
        store: MetadataStore,
        logs: LogManager,
        *,
        configs: ConfigView | None = None,
        transport: DataTransport | None = None,
        lease: Lease | None = None,
        clock: Callable[[], float] = time.monotonic,
        isr_timeout_s: float = PROPOSE_TIMEOUT_S,
    ) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.store = store
        self.logs = logs
        self.clock = clock
        self.lease = lease if lease is not None else Lease(clock)
        self.metrics = ReplicationMetrics()
        self.registration = UNREGISTERED
        self._topics: dict[str, dict[int, Partition]] = {}
        self._settings = SettingsSource(configs if configs is not None else ConfigView(store.image, node_id))
        self._orphans = OrphanKeeper(node_id, store.image, logs, self.metrics)
        self._listeners: list[LeadershipListener] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._sessions = 0
        self._failures = FailedReplicas(self)
        logs.on_failure = self._log_failed
        self._isr = IsrUpdater(self, isr_timeout_s)
        self._server = FetchServer(self, ReplicationThrottle(self._settings.throttled_rate, clock))
        self._fetchers = Fetchers(self, transport) if transport is not None else None
        if transport is not None:
            transport.serve(FETCH, self._server.fetch)
            transport.serve(REPORT, self._server.report)

    # life

    def start(self) -> None:
        """Follows the image from now on. The logs must have been recovered."""
        self._unsubscribe = self.store.subscribe(self._changed)
        self._isr.start()
        for _ in self._reconcile():
            pass

    def stop(self) -> None:
        """Gives up every role; logs are closed by their manager."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._isr.stop()
        self._failures.stop()
        self._server.stop()
        if self._fetchers is not None:
            self._fetchers.stop()
        for partition in list(self.partitions()):
            self._retire(partition)
        self._topics.clear()

    def on_leadership(self, listener: LeadershipListener) -> None:
        """Calls `listener(partition, True)` when this node becomes a leader and `(partition, False)` when it no longer
        is one; at once for those it leads already. Staying leader in the next epoch is no change; when epochs were
        skipped, somebody else may have led in between, and both calls are made."""
        self._listeners.append(listener)
        for partition in list(self.partitions()):
            if partition.is_leader:
                listener(partition, True)

    # looking up

    def get(self, topic: str, index: int) -> Partition | None:
        """This node's replica of a partition, if it has one."""
        replicas = self._topics.get(topic)
        return replicas.get(index) if replicas is not None else None

    def partition(self, topic: str, index: int) -> Partition:
        """This node's replica; raises what a client has to be told when there is none."""
        replicas = self._topics.get(topic)
        found = replicas.get(index) if replicas is not None else None
        known = self.store.image.topics.get(topic)
        # The image is followed in slices: of a topic that is gone or made anew, the old replica may not have heard yet,
        # and what is written to it would go with it.
        if found is not None and known is not None and found.topic_id == known.topic_id:
            return found
        if self.store.image.partition(topic, index) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}.")
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"This node has no replica of {topic}-{index}; refresh the metadata to find the leader.",
        )

    def by_id(self, topic_id: bytes, index: int) -> Partition | None:
        """This node's replica of a partition of the topic with that id."""
        topic = self.store.image.topics_by_id.get(topic_id)
        found = self.get(topic.name, index) if topic is not None else None
        return found if found is not None and found.topic_id == topic_id else None

    def partitions(self) -> Iterator[Partition]:
        for replicas in self._topics.values():
            yield from replicas.values()

    def gauges(self) -> ReplicationGauges:
        """Counts over all partitions of this node, taken now."""
        found = ReplicationGauges()
        for partition in self.partitions():
            info = partition.info
            if info.leader == NO_LEADER:
                found.offline += 1
            lead = partition.leadership
            if lead is None:
                found.followers += 1
                continue
            found.leaders += 1
            found.under_replicated += len(info.isr) < len(info.replicas)
            found.under_min_isr += len(info.isr) < partition.min_isr
            found.reassigning += info.reassigning
            end = partition.end_offset
            if end:
                found.max_lag = max(found.max_lag, lead.lag(end))
        return found

    # following the image

    def _changed(self, delta: Delta) -> Iterator[None]:
        """In slices: with thousands of replicas a change of all of them takes longer than others can wait."""
        for done, _ in enumerate(self._steps(delta), start=1):
            if done % FOLLOWED_PER_SLICE == 0:
                yield
                if self._unsubscribe is None:
                    return  # stopped meanwhile

    def _steps(self, delta: Delta) -> Iterator[None]:
        """What a change of the image means for this node, a replica at a time."""
        image = self.store.image
        if delta.restored or (self.node_id in delta.brokers_changed and self._registration_now() != self.registration):
            yield from self._reconcile()
            return
        for topic in delta.topics_deleted.values():
            yield from self._delete_topic(topic)
        if self.registration != UNREGISTERED:
            for topic_id in delta.topics_created:
                yield from self._follow_topic(image.topics_by_id[topic_id])
            for topic_id, indexes in delta.partitions_changed.items():
                topic = image.topics_by_id[topic_id]
                for index in sorted(indexes):
                    self._follow(topic, index, topic.partitions[index])
                    yield
        if delta.configs_changed:
            yield from self._configs_changed(delta)
        if delta.brokers_changed:
            yield from self._brokers_changed()

    def _registration_now(self) -> int:
        """The epoch of this process's registration, when the image has it; another process's is not ours."""
        broker = self.store.image.brokers.get(self.node_id)
        return broker.epoch if broker is not None and broker.incarnation == self.incarnation else UNREGISTERED

    def _reconcile(self) -> Iterator[None]:
        """Compares everything: after a start, a snapshot, or a registration that made or ended this node's roles."""
        image = self.store.image
        self.registration = self._registration_now()
        for name, replicas in list(self._topics.items()):
            topic = image.topics.get(name)
            for partition in list(replicas.values()):
                if topic is None or topic.topic_id != partition.topic_id or self.registration == UNREGISTERED:
                    self._forget(partition)
                    yield
        if self.registration == UNREGISTERED:
            return
        yield from self._orphans.settle()
        for topic in list(image.topics.values()):
            yield from self._follow_topic(topic)

    def _follow_topic(self, topic: TopicInfo) -> Iterator[None]:
        for index, info in enumerate(topic.partitions):
            self._follow(topic, index, info)
            yield

    def _follow(self, topic: TopicInfo, index: int, info: PartitionInfo) -> None:
        partition = self.get(topic.name, index)
        if self.node_id not in info.replicas:
            if partition is not None:
                self._drop_replica(partition)
            return
        if partition is None:
            partition = self._adopt(topic, index)
        if partition.info is info:
            return
        partition.apply_settings(self._settings.of(topic.name))
        led, epoch = partition.is_leader, partition.leader_epoch
        partition.update(info)
        self._role_changed(partition, led, epoch)

    def _adopt(self, topic: TopicInfo, index: int) -> Partition:
        existing = self._orphans.claim(topic, index)
        settings = self._settings.of(topic.name)
        if existing is not None:
            existing.config = settings.log
        partition = Partition(self, topic.name, topic.topic_id, index, settings, existing)
        self._topics.setdefault(topic.name, {})[index] = partition
        return partition

    def _role_changed(self, partition: Partition, led: bool, old_epoch: int) -> None:
        if self._fetchers is not None:
            if partition.follows:
                self._fetchers.follow(partition)
            else:
                self._fetchers.leave(partition)
        leads = partition.is_leader
        skipped = led and leads and partition.leader_epoch > old_epoch + 1
        if led and (not leads or skipped):
            self._announce(partition, False)
        if leads and (not led or skipped):
            self._announce(partition, True)
        if partition.failed:
            self._failures.withdraw(partition)

    def _log_failed(self, failed: PartitionLog) -> None:
        partition = self.get(failed.topic, failed.partition)
        if partition is not None and partition.opened_log is failed:
            led, epoch = partition.is_leader, partition.leader_epoch
            partition.log_failed()
            self._role_changed(partition, led, epoch)

    def _announce(self, partition: Partition, became_leader: bool) -> None:
        for listener in self._listeners:
            try:
                listener(partition, became_leader)
            except Exception:
                log.exception("a listener to leadership failed", topic=partition.topic, partition=partition.index)

    def _delete_topic(self, topic: TopicInfo) -> Iterator[None]:
        for partition in list(self._topics.get(topic.name, {}).values()):
            if partition.topic_id == topic.topic_id:
                self._forget(partition)
                yield
        self._orphans.topic_deleted(topic)

    def _drop_replica(self, partition: Partition) -> None:
        """Metadata moved this replica elsewhere, which it does only when others are in sync: the data goes."""
        self._forget(partition)
        self.logs.delete(partition.topic, partition.index)

    def _forget(self, partition: Partition) -> None:
        self._retire(partition)
        replicas = self._topics[partition.topic]
        del replicas[partition.index]
        if not replicas:
            del self._topics[partition.topic]

    def _retire(self, partition: Partition) -> None:
        led, epoch = partition.is_leader, partition.leader_epoch
        partition.stand_by()
        self._role_changed(partition, led, epoch)

    def _configs_changed(self, delta: Delta) -> Iterator[None]:
        names = {name for kind, name in delta.configs_changed if kind == ResourceType.TOPIC}
        if any(kind == ResourceType.BROKER for kind, _ in delta.configs_changed):
            names = set(self._topics)
        for name in sorted(names & self._topics.keys()):
            settings = self._settings.of(name)
            for partition in list(self._topics.get(name, {}).values()):
                partition.apply_settings(settings)
                yield

    def _brokers_changed(self) -> Iterator[None]:
        """A follower that is in step may join once its broker is online; nobody reports while nothing is written."""
        for position, partition in enumerate(list(self.partitions())):
            if partition.is_leader and len(partition.isr) < len(partition.info.replicas):
                partition.reconsider_isr()
            if position % GLANCES_PER_STEP == 0:
                yield

    # what partitions ask of their node

    def open_log(self, replica: Replica) -> PartitionLog:
        return self.logs.create(replica.topic, replica.index, replica.topic_id, replica.settings.log)

    def may_join_isr(self, node_id: int, registration: int) -> bool:
        broker = self.store.image.brokers.get(node_id)
        return broker is not None and broker.alive and broker.epoch == registration

    def isr_may_change(self, replica: Replica) -> None:
        assert isinstance(replica, Partition)
        self._isr.consider(replica)

    def cannot_append(self, replica: Replica) -> None:
        assert isinstance(replica, Partition)
        self._failures.withdraw(replica)

    def follower_synced(self, replica: Replica) -> None:
        if self._fetchers is not None:
            self._fetchers.synced(replica)

    # what fetching and the ISR ask of their node

    @property
    def lag_limit_s(self) -> float:
        return self._settings.lag_limit_s()

    def next_session(self) -> int:
        """A number that no fetch session of this node, and with all likelihood of its earlier processes, had."""
        self._sessions += 1
        return int.from_bytes(self.incarnation[:4], "big") << 31 | self._sessions
