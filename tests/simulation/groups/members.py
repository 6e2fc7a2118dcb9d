"""Members of groups as the simulation has them: they join, commit, leave, die and come back, over a bad network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from chronik.protocol.messages.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from simulation.groups.world import World

SESSION_MS = 6000
REBALANCE_MS = 8000
HEARTBEAT_S = 1.0
REQUEST_TIMEOUT_S = 12.0
RETRY_S = 0.2
JOIN_VERSION = 9
REJOIN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
TOPIC = "t"


class ClassicMember:
    """A consumer of the classic protocol. Every answer that comes after it gave up waiting is ignored."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] = frozenset()
        self.step = 0  # raised whenever it begins something new; older answers and timers mean nothing
        self.running = True
        self.join()

    def _begin(self) -> int:
        self.step += 1
        return self.step

    def _send(self, call: Any, answered: Any) -> None:
        """Sends and waits; after the timeout, or an error of the coordinator, it starts again with a join."""
        step = self._begin()

        def receive(answer: Any) -> None:
            if self.running and self.step == step:
                if isinstance(answer, ErrorCode):
                    self.world.later(RETRY_S, lambda: self._again(step))
                else:
                    answered(answer)

        self.world.send(call, receive)
        self.world.later(REQUEST_TIMEOUT_S, lambda: self._again(step))

    def _again(self, step: int) -> None:
        if self.running and self.step == step:
            self.join()

    def join(self) -> None:
        self.owned = frozenset()
        request = JoinGroupRequest(
            group_id="classic",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        self._send(
            lambda coordinator, reply: coordinator.join(request, JOIN_VERSION, self.name, "/h", reply), self._joined
        )

    def _joined(self, answer: JoinGroupResponse) -> None:
        code = answer.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
        elif code:
            self._refused(code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            shares: dict[str, list[int]] = {}
            if answer.leader == self.member_id and not answer.skip_assignment:
                names = sorted(member.member_id for member in answer.members)
                self.world.rng.shuffle(names)
                shares = {name: [] for name in names}
                for partition in range(self.world.partitions):
                    shares[names[partition % len(names)]].append(partition)
            self._sync(shares)

    def _sync(self, shares: dict[str, list[int]]) -> None:
        request = SyncGroupRequest(
            group_id="classic",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=json.dumps(parts).encode())
                for name, parts in shares.items()
            ],
        )
        self._send(lambda coordinator, reply: coordinator.sync(request, reply), self._synced)

    def _synced(self, answer: SyncGroupResponse) -> None:
        if answer.error_code:
            self._refused(answer.error_code)
            return
        self.owned = frozenset(json.loads(answer.assignment or b"[]"))
        self.world.checker.assigned(self.generation, self.instance_id or self.name, self.owned)
        self._live()

    def _refused(self, code: int) -> None:
        if code in REJOIN:
            self.member_id = ""
        step = self._begin()
        self.world.later(RETRY_S, lambda: self._again(step))

    def _live(self) -> None:
        step = self._begin()
        self.world.later(HEARTBEAT_S * (0.5 + self.world.rng.random()), lambda: self._beat(step))

    def _beat(self, step: int) -> None:
        if not self.running or self.step != step:
            return
        if self.owned and self.world.rng.random() < 0.5:
            self.world.commit(
                "classic",
                self.member_id,
                self.generation,
                self.world.rng.choice(sorted(self.owned)),
                self.instance_id,
            )
        request = HeartbeatRequest(
            group_id="classic",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        self._send(lambda coordinator, reply: reply(coordinator.heartbeat(request)), self._beaten)

    def _beaten(self, answer: HeartbeatResponse) -> None:
        if not answer.error_code:
            self._live()
        elif answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
        else:
            self._refused(answer.error_code)

    def stop(self, *, politely: bool) -> None:
        self.running = False
        if politely and self.member_id:
            identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
            request = LeaveGroupRequest(group_id="classic", members=[identity])
            self.world.send(lambda coordinator, reply: reply(coordinator.leave(request, 5)), lambda answer: None)

    @property
    def settled(self) -> bool:
        return bool(self.owned) or self.generation >= 0


class ConsumerMember:
    """A consumer of KIP-848: one heartbeat after the other; it gives up what it is told to give up, then says so."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.member_id = name
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()
        self.step = 0
        self.last_heard = world.now
        self.running = True
        self._tell = True  # what it owns has changed
        self._full = True  # it is not sure what the coordinator knows, and says everything
        self._beat()

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        joining = self.epoch == 0
        topic_id = self.world.topic_id
        return ConsumerGroupHeartbeatRequest(
            group_id="consumer",
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=REBALANCE_MS if joining or self._full else -1,
            subscribed_topic_names=[TOPIC] if joining or self._full else None,
            topic_partitions=[]
            if joining
            else [TopicPartitions(topic_id=topic_id, partitions=sorted(self.owned))]
            if self._tell or self._full
            else None,
        )

    def _beat(self) -> None:
        if not self.running:
            return
        self.step += 1
        step = self.step
        request = self._request()

        def receive(answer: Any) -> None:
            if self.running and self.step == step:
                self._answered(answer)

        self.world.send(
            lambda coordinator, reply: coordinator.consumer_heartbeat(request, 1, self.name, "/h", reply), receive
        )

        def timed_out() -> None:
            if self.running and self.step == step:
                self._full = True
                if self.world.now - self.last_heard > SESSION_MS / 1000:
                    self._rejoin()
                self._beat()

        self.world.later(2 * HEARTBEAT_S, timed_out)

    def _rejoin(self) -> None:
        self.epoch, self.owned = 0, frozenset()

    def _answered(self, answer: ConsumerGroupHeartbeatResponse | ErrorCode) -> None:
        code = answer if isinstance(answer, ErrorCode) else answer.error_code
        self._tell, self._full = self._tell and bool(code), bool(code)
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self._rejoin()
        elif not code and isinstance(answer, ConsumerGroupHeartbeatResponse):
            self.last_heard = self.world.now
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                wanted = frozenset(p for part in answer.assignment.topic_partitions for p in part.partitions)
                if wanted != self.owned:
                    self.owned, self._tell = wanted, True
                    self.world.checker.owners_changed()
            if self.owned and self.world.rng.random() < 0.5:
                self.world.commit(
                    "consumer", self.member_id, self.epoch, self.world.rng.choice(sorted(self.owned)), None
                )
        self.step += 1
        step = self.step
        self.world.later(
            HEARTBEAT_S * (0.2 + 0.6 * self.world.rng.random()), lambda: self._beat() if self.step == step else None
        )

    def stop(self, *, politely: bool) -> None:
        self.running = False
        self.owned = frozenset()
        if politely:
            request = ConsumerGroupHeartbeatRequest(group_id="consumer", member_id=self.member_id, member_epoch=-1)
            self.world.send(
                lambda coordinator, reply: coordinator.consumer_heartbeat(request, 1, self.name, "/h", reply),
                lambda answer: None,
            )
