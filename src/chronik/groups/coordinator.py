"""The group coordinator of a node: which groups it answers for, and what members ask of it.

It answers for the groups that belong to the partitions of `__consumer_offsets` that this node leads: a shard each,
loaded when leadership comes and closed when it goes. Offsets are in `offset_service`, administration in `group_admin`.
Requests come with a `reply` that is called once, now or later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog

from chronik.cluster.internal_topics import OFFSETS_TOPIC
from chronik.coordination.led_shards import LedShards
from chronik.coordination.loader import Status
from chronik.coordination.timers import SteadyClock, Timers
from chronik.coordination.topic_access import InternalTopicAccess
from chronik.groups.assignors import ASSIGNORS
from chronik.groups.classic_state import ClassicSettings
from chronik.groups.consumer_group import TopicsView
from chronik.groups.consumer_requests import check_request
from chronik.groups.consumer_state import ConsumerSettings
from chronik.groups.group_admin import GroupAdmin
from chronik.groups.lag import LagReadings, PeerRequests
from chronik.groups.offset_service import OffsetService
from chronik.groups.shard import Shard
from chronik.groups.shard_state import ShardSettings
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from chronik.protocol.messages.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from chronik.groups.offset_book import CommittedOffset, Place
    from chronik.metadata.configs import ConfigView
    from chronik.metadata.delta import Delta
    from chronik.metadata.model import BrokerInfo
    from chronik.metadata.store import MetadataStore
    from chronik.replication.manager import ReplicaManager
    from chronik.replication.partition import Partition

log = structlog.get_logger()

WRITE_SWEEP_MS = 1000
MINUTE_MS = 60_000
FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9
FIRST_VERSION_WITH_LEAVING_MEMBERS = 3


class GroupCoordinator:
    """All groups that this node coordinates."""

    def __init__(
        self,
        store: MetadataStore,
        replicas: ReplicaManager,
        configs: ConfigView,
        *,
        transport: PeerRequests | None = None,
        clock_ms: Callable[[], int] | None = None,
        new_member_id: Callable[[str], str] | None = None,
    ) -> None:
        self.store = store
        self.clock_ms: Callable[[], int] = clock_ms if clock_ms is not None else SteadyClock()
        self.topic = InternalTopicAccess(store, configs, OFFSETS_TOPIC)
        self.settings = _settings(configs)
        self.timers = Timers(self.clock_ms)
        self.offsets = OffsetService(self)
        self.admin = GroupAdmin(self)
        self.lag = LagReadings(self, replicas, transport)
        self._replicas = replicas
        self._new_member_id = new_member_id if new_member_id is not None else _new_member_id
        self._expiry_interval_ms = configs.broker_int("offsets.retention.check.interval.ms")
        self.shards = LedShards(self.topic, self._new_shard, Shard.close)
        self._topics_version = 0
        self._unsubscribe: Callable[[], None] | None = None

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Follows leadership from now on."""
        self._replicas.on_leadership(self.shards.leadership)
        self._unsubscribe = self.store.subscribe(self._changed)
        self.timers.schedule(self.clock_ms() + WRITE_SWEEP_MS, self._sweep_writes)
        self.timers.schedule(self.clock_ms() + self._expiry_interval_ms, self._sweep_offsets)

    def stop(self) -> None:
        """Tells everybody who waits that this node no longer coordinates."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        self.lag.close()
        self.timers.close()
        self.shards.close()

    def _new_shard(self, partition: Partition) -> Shard:
        return Shard(partition, self.settings, self.timers, self.clock_ms, self._new_member_id, self.topics)

    def topics(self) -> TopicsView:
        """The topics there are now, with a number that changes when they do."""
        return TopicsView(self.store.image.topics, self._topics_version)

    def _changed(self, delta: Delta) -> None:
        if delta.topics_created or delta.topics_deleted or delta.partitions_changed or delta.restored:
            self._topics_version += 1
        for topic in delta.topics_deleted.values():
            for shard in self.active():
                shard.forget_topic(topic.name)

    def _sweep_writes(self) -> None:
        now_ms = self.clock_ms()
        self.shards.expire_writes(now_ms)
        self.timers.schedule(now_ms + WRITE_SWEEP_MS, self._sweep_writes)

    def _sweep_offsets(self) -> None:
        """One shard per turn of the timers, so that none of them is long."""
        now_ms = self.clock_ms()
        for shard in list(self.active()):
            self.timers.schedule(now_ms, lambda shard=shard: self._expire_in(shard))  # type: ignore[misc]
        self.timers.schedule(now_ms + self._expiry_interval_ms, self._sweep_offsets)

    def _expire_in(self, shard: Shard) -> None:
        if shard.status is Status.ACTIVE:
            count = shard.expire_offsets(self.clock_ms())
            if count:
                log.info("offsets are over and are deleted", partition=shard.partition.index, offsets=count)

    # --- who coordinates what ------------------------------------------------------------------------------------

    def active(self) -> Iterator[Shard]:
        """The shards that answer for their groups."""
        return self.shards.active()

    def shard_of(self, group_id: str, *, empty_id: bool = False) -> Shard:
        """The shard of a group. Raises KafkaError when this node does not, or not yet, coordinate it."""
        if not group_id and not empty_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group needs a name; set group.id")
        return self.shards.of(group_id, f"group {group_id}")

    def coordinator_of(self, key: str) -> BrokerInfo | None:
        """The broker that coordinates a group, if that is known and it is alive."""
        return self.topic.leader_of(key)

    async def find_coordinator(self, key: str) -> BrokerInfo | None:
        """The same, after creating the internal topic if need be; None when it has no leader now."""
        await self.topic.ensure()
        return await self.topic.wait_for_leader(key)

    # --- members -------------------------------------------------------------------------------------------------

    def join(
        self,
        request: JoinGroupRequest,
        version: int,
        client_id: str,
        client_host: str,
        reply: Callable[[JoinGroupResponse], None],
    ) -> None:
        shard = self.shard_of(request.group_id)
        if request.member_id and shard.group(request.group_id) is None:
            reply(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id))
            return
        group = shard.group_to_join(request.group_id)
        group.join(
            request,
            reply,
            self.clock_ms(),
            client_id=client_id,
            client_host=client_host,
            id_required=version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED,
            may_skip_assignment=version >= FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT,
        )
        shard.settle(group)

    def sync(self, request: SyncGroupRequest, reply: Callable[[SyncGroupResponse], None]) -> None:
        shard = self.shard_of(request.group_id)
        group = shard.classic(request.group_id)
        if group is None:
            reply(SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return
        group.sync(request, reply, self.clock_ms())
        shard.settle(group)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        try:
            shard = self.shard_of(request.group_id)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return HeartbeatResponse()  # as Kafka: a load must not make members rejoin
            raise
        group = shard.classic(request.group_id)
        if group is None:
            return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        code = group.heartbeat(request.member_id, request.group_instance_id, request.generation_id, self.clock_ms())
        shard.settle(group)
        return HeartbeatResponse(error_code=code)

    def leave(self, request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
        shard = self.shard_of(request.group_id)
        group = shard.classic(request.group_id)
        members = request.members
        if version < FIRST_VERSION_WITH_LEAVING_MEMBERS:
            members = [MemberIdentity(member_id=request.member_id)]
        if group is None:
            answers = [
                MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for member in members
            ]
        else:
            now_ms = self.clock_ms()
            answers = [group.leave(member, now_ms) for member in members]
            shard.settle(group)
        if version < FIRST_VERSION_WITH_LEAVING_MEMBERS:
            return LeaveGroupResponse(error_code=answers[0].error_code)
        return LeaveGroupResponse(members=answers)

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client_id: str,
        client_host: str,
        reply: Callable[[ConsumerGroupHeartbeatResponse], None],
    ) -> None:
        """A member of a group of KIP-848."""
        check_request(request, version, self.settings.consumer.assignors)
        self.shard_of(request.group_id).heartbeat(request, client_id, client_host, reply)

    # --- transactions --------------------------------------------------------------------------------------------

    def prepare_transactional_commit(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: dict[Place, CommittedOffset],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
    ) -> asyncio.Future[ErrorCode]:
        """Writes offsets that count once the transaction's marker says commit; resolves when they are replicated.

        Raises KafkaError when this node does not coordinate the group, or the member is fenced (KIP-447).
        """
        return self.offsets.prepare_transactional(
            group_id, producer_id, producer_epoch, offsets, generation, member_id, instance_id
        )

    def complete_transaction(self, partition: int, producer_id: int, commit: bool) -> None:
        """A marker for the producer is in this partition of `__consumer_offsets`: its pending offsets count, or go."""
        shard = self.shards.at(partition)
        if shard is not None and shard.status is Status.ACTIVE:
            shard.complete_transaction(producer_id, commit)


def _new_member_id(prefix: str) -> str:
    return f"{prefix}-{uuid4()}"


def _settings(configs: ConfigView) -> ShardSettings:
    number = configs.broker_int
    return ShardSettings(
        classic=ClassicSettings(
            initial_rebalance_delay_ms=number("group.initial.rebalance.delay.ms"),
            min_session_timeout_ms=number("group.min.session.timeout.ms"),
            max_session_timeout_ms=number("group.max.session.timeout.ms"),
            max_size=number("group.max.size"),
        ),
        consumer=ConsumerSettings(
            session_timeout_ms=number("group.consumer.session.timeout.ms"),
            heartbeat_interval_ms=number("group.consumer.heartbeat.interval.ms"),
            max_size=number("group.consumer.max.size"),
            assignors=_assignors(configs),
        ),
        retention_ms=number("offsets.retention.minutes") * MINUTE_MS,
        metadata_bytes_max=number("offset.metadata.max.bytes"),
    )


def _assignors(configs: ConfigView) -> tuple[str, ...]:
    """Those that are configured and exist here; class names of Kafka's own stand for them too."""
    value = configs.broker_value("group.consumer.assignors")
    asked = value if isinstance(value, list | tuple) else str(value or "").split(",")
    names = [str(name).strip().rsplit(".", 1)[-1].removesuffix("Assignor").lower() for name in asked]
    return tuple(name for name in names if name in ASSIGNORS) or tuple(ASSIGNORS)
