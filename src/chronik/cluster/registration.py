"""This node as a broker: it registers itself, says that it is alive, and takes its leave.

Everything runs in the background and never ends by itself: nothing at start-up waits for it. A registration is proposed
through consensus and counts when this node has applied it; only then is it logged. Heartbeats go to the controller,
whoever that is at the moment, and each answer renews the lease under which this node may act as a leader, counted from
when the heartbeat was sent. A process whose id was registered by a newer process is superseded, for good: it must not
serve, and does not register again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import msgspec
import structlog

from chronik.cluster.messages import (
    HEARTBEAT,
    Heartbeat,
    HeartbeatReply,
    Leaving,
    Verdict,
    decode_heartbeat_reply,
    encode,
)
from chronik.cluster.ports import Group, PeerLink
from chronik.cluster.settings import Timings
from chronik.metadata.commands import SUPPORTED_FEATURES, AddNode, RegisterBroker
from chronik.metadata.delta import Delta
from chronik.metadata.model import NO_LEADER, UNSET_EPOCH, BrokerInfo, NodeState
from chronik.metadata.store import MetadataStore
from chronik.protocol.errors import ErrorCode

log = structlog.get_logger()

BEATS_APART_MIN_S = 0.01  # between two heartbeats, however many reasons there are to send one


class BrokerRegistration:
    """`describe` is asked for the registration of this process whenever it matters, so a changed address is noticed.
    `renew_lease` gets a time of `clock`; `on_superseded` is called once, when a newer process has taken this id. With
    `rejoin` a node that was removed asks to be added again, as it does when an operator starts it to join."""

    def __init__(
        self,
        node_id: int,
        store: MetadataStore,
        group: Group,
        peers: PeerLink,
        *,
        describe: Callable[[], RegisterBroker],
        renew_lease: Callable[[float], None],
        revoke_lease: Callable[[], None],
        on_superseded: Callable[[str], None],
        rejoin: bool = False,
        timings: Timings | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.node_id = node_id
        self._store = store
        self._group = group
        self._peers = peers
        self._describe = describe
        self._renew_lease = renew_lease
        self._revoke_lease = revoke_lease
        self._on_superseded = on_superseded
        self._rejoin = rejoin
        self._timings = timings or Timings()
        self._clock = clock
        self._rng = rng or random.Random()
        self._incarnation = describe().incarnation
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._beat_now = asyncio.Event()
        self._answered = asyncio.Event()
        self._was_registered = False
        self._leaving = Leaving.NO
        self.superseded = False
        self.last_reply: HeartbeatReply | None = None

    # Life.

    def start(self) -> None:
        """Begins in the background; returns at once."""
        self._unsubscribe = self._store.subscribe(self._observe)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="broker registration")

    async def stop(self) -> None:
        """Ends at once. For a clean leave, `leave` comes first."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._revoke_lease()

    async def leave(self, timeout_s: float) -> bool:
        """Asks the controller to move this broker's leaders elsewhere and waits for it, then gives the lease back and
        says so. Best effort; tells whether the controller has heard all of it in time."""
        if self._task is None or not self.registered:
            return False
        self._leaving = Leaving.DRAINING
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_drained()
                self._revoke_lease()
                self._leaving = Leaving.STOPPED
                await self._next_answer()
        except TimeoutError:
            log.warning("left without the controller's consent", waited_s=timeout_s)
            return False
        log.info("left cleanly", node=self.node_id)
        return True

    async def _until_drained(self) -> None:
        while True:
            reply = await self._next_answer()
            if reply.led == 0:
                return

    async def _next_answer(self) -> HeartbeatReply:
        """The answer to a heartbeat that is sent from now on."""
        self._answered.clear()
        self._beat_now.set()
        await self._answered.wait()
        assert self.last_reply is not None
        return self.last_reply

    # What is known.

    @property
    def broker(self) -> BrokerInfo | None:
        """This process's registration, if the image has it."""
        broker = self._store.image.brokers.get(self.node_id)
        return broker if broker is not None and broker.incarnation == self._incarnation else None

    @property
    def registered(self) -> bool:
        return self.broker is not None

    def _observe(self, delta: Delta) -> None:
        """The controller waits for us to know that a partition has lost its leader, and we for it to put us online:
        neither should take until the next beat."""
        self._was_registered = self._was_registered or self.registered
        if self.node_id in delta.brokers_changed or delta.restored or self._some_leaderless(delta):
            self._beat_now.set()

    def _some_leaderless(self, delta: Delta) -> bool:
        topics = self._store.image.topics_by_id
        return any(
            topics[topic_id].partitions[number].leader == NO_LEADER
            for topic_id, numbers in delta.partitions_changed.items()
            for number in numbers
        )

    # The loop.

    async def _run(self) -> None:
        failures = 0
        while not self.superseded:
            self._beat_now.clear()
            try:
                worked = await self._step()
            except Exception as error:
                log.debug("not in touch with the controller", reason=str(error) or repr(error))
                worked = False
            failures = 0 if worked else failures + 1
            await self._pause(failures)

    async def _step(self) -> bool:
        wanted = self._describe()
        if not wanted.features:
            wanted = msgspec.structs.replace(wanted, features=SUPPORTED_FEATURES)
        broker = self.broker
        if broker is None or _out_of_date(broker, wanted):
            await self._register(wanted)
            return True
        return await self._beat(broker)

    async def _pause(self, failures: int) -> None:
        timings = self._timings
        if failures:
            pause = min(timings.retry_s * 2 ** min(failures - 1, 10), timings.beat_s if self.registered else 1.0)
        else:
            pause = timings.beat_s if self.registered else timings.retry_s
        await asyncio.sleep(BEATS_APART_MIN_S)
        try:
            async with asyncio.timeout(pause * self._rng.uniform(0.9, 1.0)):
                await self._beat_now.wait()
        except TimeoutError:
            pass

    async def _register(self, wanted: RegisterBroker) -> None:
        known = self._store.image.brokers.get(self.node_id)
        if self._was_registered and known is not None and known.incarnation != self._incarnation:
            self._supersede(known)
            return
        if self._rejoin and not self._was_registered:
            await self._ask_to_be_added(wanted)
        seen = known.epoch if known is not None else UNSET_EPOCH
        command = msgspec.structs.replace(wanted, seen_epoch=seen)
        result = await self._store.propose(command, self._timings.propose_s)
        if result.ok:
            self._was_registered = True
            self._beat_now.set()
            log.info("broker registered", node=self.node_id, epoch=result.value, host=wanted.host, port=wanted.port)
        elif result.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            # The image here has the other registration by now, and knowing it the next try can follow it.
            log.info("another registration of this id came first", node=self.node_id, reason=result.reason)
        else:
            log.error("broker not registered", node=self.node_id, error=result.error.name, reason=result.reason)
            await asyncio.sleep(self._timings.retry_max_s)

    async def _ask_to_be_added(self, wanted: RegisterBroker) -> None:
        node = self._store.image.nodes.get(self.node_id)
        if node is not None and node.state in (NodeState.LEAVING, NodeState.REMOVED):
            command = AddNode(self.node_id, wanted.directory_id, wanted.peer_host, wanted.peer_port)
            await self._store.propose(command, self._timings.propose_s)

    def _supersede(self, other: BrokerInfo) -> None:
        self.superseded = True
        self._revoke_lease()
        reason = (
            f"another process registered as node {self.node_id} (at {other.host}:{other.port}); "
            "give every node an id of its own, and start only one process per node"
        )
        log.error("this process is superseded and stops serving", node=self.node_id, reason=reason)
        self._on_superseded(reason)

    async def _beat(self, broker: BrokerInfo) -> bool:
        controller = self._group.leader_id
        if not controller:
            return False
        sent_at = self._clock()
        leaving = self._leaving
        beat = Heartbeat(self.node_id, self._incarnation, broker.epoch, self._store.followed_index, leaving)
        answer = await self._peers.request(controller, HEARTBEAT, encode(beat), timeout_s=self._timings.beat_timeout_s)
        reply = decode_heartbeat_reply(answer)
        if beat.applied_index < self._store.image.applied_index:
            self._beat_now.set()  # replicas were still following a large change: the controller may wait to hear of it
        if reply.verdict == Verdict.SUPERSEDED:
            known = self._store.image.brokers.get(self.node_id)
            if known is not None and known.incarnation != self._incarnation:
                self._supersede(known)
            return False
        if reply.verdict != Verdict.ACCEPTED:
            return False
        if reply.lease_s > 0 and self._leaving != Leaving.STOPPED:
            self._renew_lease(sent_at + reply.lease_s)
        if leaving == self._leaving:
            self.last_reply = reply
            self._answered.set()
        return True


def _out_of_date(broker: BrokerInfo, wanted: RegisterBroker) -> bool:
    """Whether the registration says something else than the process would say now."""
    return any(
        getattr(broker, field) != getattr(wanted, field)
        for field in ("host", "port", "peer_host", "peer_port", "rack", "host_name", "features", "http", "software")
    )
