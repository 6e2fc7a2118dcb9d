"""The controller: it comes to life on the node that leads the Raft group, and answers the other nodes.

Here are the beginning and end of a term, the loop, and the requests (`heartbeat`, `elect_leaders`). What is decided is
in `controller_term`, `partition_keeper` and `elections`; what is known is in the image.

A lease is only ever granted on top of a read barrier that began after the heartbeat had arrived: a quorum then followed
this leader after the heartbeat was sent, so any later controller is elected later than that, and gives everybody a full
lease from then. A deposed controller that does not know it yet can therefore promise nothing.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Callable

import structlog

from chronik.cluster.controller_term import ControllerTerm
from chronik.cluster.elections_on_demand import elect_on_demand
from chronik.cluster.membership import GroupMembers, MembershipKeeper
from chronik.cluster.messages import (
    ELECT_LEADERS,
    HEARTBEAT,
    HeartbeatReply,
    Leaving,
    Verdict,
    decode_elect_request,
    decode_heartbeat,
    encode,
)
from chronik.cluster.partition_keeper import KeeperCounters
from chronik.cluster.ports import Group, PeerLink
from chronik.cluster.settings import Timings
from chronik.metadata.commands import SetClusterId
from chronik.metadata.configs import ConfigView
from chronik.metadata.store import MetadataStore
from chronik.protocol.errors import ErrorCode, KafkaError

log = structlog.get_logger()

BEHIND_WAIT_SHARE = 0.5  # of a beat: how long an answer waits for this node to know what the broker knows


class Controller:
    """One per node; idle unless the node leads. `start` and `stop` bracket its life."""

    def __init__(
        self,
        node_id: int,
        store: MetadataStore,
        group: Group,
        peers: PeerLink,
        view: ConfigView,
        *,
        members: GroupMembers | None = None,
        timings: Timings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node_id = node_id
        self.counters = KeeperCounters()
        self._store = store
        self._group = group
        self._view = view
        self._members = members
        self._timings = timings or Timings()
        self._clock = clock
        self._term: ControllerTerm | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._barrier = SharedBarrier(lambda: group.read_barrier(self._timings.beat_timeout_s))
        peers.serve(HEARTBEAT, self.handle_heartbeat)
        peers.serve(ELECT_LEADERS, self.handle_elect_leaders)

    @property
    def active(self) -> bool:
        """Whether this node is the controller and has taken up its work."""
        return self._term is not None

    def start(self) -> None:
        self._group.on_leadership(self._leadership_changed)

    async def stop(self) -> None:
        await self._end()

    def _leadership_changed(self, leads: bool, term: int) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._term = None
        if leads:
            self._task = asyncio.get_running_loop().create_task(self._reign(), name="controller")

    async def _end(self) -> None:
        task, self._task = self._task, None
        self._term = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _reign(self) -> None:
        """One term, from the first confirmed moment of leadership to its end by cancellation."""
        if not await self._confirm_leadership():
            return
        term = ControllerTerm(self._store, self._view, self._timings, self._clock, self.counters)

        def observe(delta: object) -> None:
            self._wake.set()

        membership = MembershipKeeper(self._store, self._members, self._timings) if self._members else None
        unsubscribe = [self._store.subscribe(term.observe), self._store.subscribe(observe)]
        self._term = term
        log.info("this node is the controller", node=self.node_id, brokers=len(self._store.image.brokers))
        try:
            while True:
                await self._round(term)
                if membership is not None:
                    membership.run()
                await self._until_next_round()
        finally:
            for stop in unsubscribe:
                stop()
            if membership is not None:
                membership.stop()

    async def _confirm_leadership(self) -> bool:
        """Waits for a quorum to confirm this leader, and for the image to hold what was committed before."""
        while self._group.leader_id == self.node_id:
            try:
                await self._group.read_barrier(self._timings.propose_s)
                return True
            except Exception as error:
                log.info("leadership is not confirmed yet", reason=str(error))
                await asyncio.sleep(self._timings.retry_s)
        return False

    async def _round(self, term: ControllerTerm) -> None:
        try:
            if self._store.image.cluster_id is None:
                await self._found_cluster()
            await term.round()
        except Exception as error:
            # Nothing is lost by it: all that is to be done is in the image, and is found again next round.
            log.warning("the controller could not finish a round and goes on", reason=str(error) or repr(error))
            await asyncio.sleep(self._timings.tick_s)

    async def _until_next_round(self) -> None:
        try:
            async with asyncio.timeout(self._timings.tick_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _found_cluster(self) -> None:
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        result = await self._store.propose(SetClusterId(cluster_id), self._timings.propose_s)
        if result.ok:
            log.info("the cluster has an id", cluster_id=result.value)

    # Requests of peers.

    async def handle_heartbeat(self, peer_id: int, payload: bytes) -> bytes:
        arrived_at = self._clock()
        beat = decode_heartbeat(payload)
        if beat.applied_index > self._store.image.applied_index:
            # Others may have committed, and applied, what this node's own disk has not stored yet. Judged by an older
            # image, a broker that has just been put online would get no lease until its next heartbeat.
            await self._store.wait_until(
                lambda image: image.applied_index >= beat.applied_index, self._timings.beat_s * BEHIND_WAIT_SHARE
            )
        term = self._term
        if term is None:
            return encode(HeartbeatReply(Verdict.NOT_CONTROLLER, controller_id=self._group.leader_id))
        verdict, lease = term.heartbeat(beat, arrived_at)
        led = term.led_elsewhere_possible(beat.node_id) if beat.leaving == Leaving.DRAINING else 0
        if term.urgent:
            self._wake.set()
        lease_s = 0.0
        if lease and await self._leads_still(term):
            lease_s = self._timings.lease_s
        return encode(HeartbeatReply(verdict, lease_s, self.node_id, led))

    async def _leads_still(self, term: ControllerTerm) -> bool:
        try:
            await self._barrier.passed()
        except Exception as error:
            log.debug("no lease granted: leadership is not confirmed", reason=str(error))
            return False
        return self._term is term

    async def handle_elect_leaders(self, peer_id: int, payload: bytes) -> bytes:
        request = decode_elect_request(payload)
        if self._term is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} is not the controller")
        return encode(await elect_on_demand(self._term.keeper, self._store, request, self._wake.set))


class SharedBarrier:
    """Read barriers for many at once: whoever asks gets one that begins after he asked; while one is under way, all
    who ask share the next."""

    def __init__(self, barrier: Callable[[], object]) -> None:
        self._barrier = barrier
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def passed(self) -> None:
        """Returns once a barrier that began after this call has passed; raises what it raises."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run_after(self._running))
            self._next.add_done_callback(_note_outcome)
        await asyncio.shield(self._next)

    async def _run_after(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        self._running, self._next = self._next, None
        result = self._barrier()
        assert asyncio.iscoroutine(result) or isinstance(result, asyncio.Future)
        await result


def _note_outcome(task: asyncio.Task[None]) -> None:
    """Everybody who asked may have gone; a failure that nobody waits for is none."""
    if not task.cancelled():
        task.exception()
