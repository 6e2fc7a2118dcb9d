"""What `chronik cluster` can ask of a node: how it sees the cluster, who shall belong to it, what shall be moved.

Each action is a function of its arguments, found by its name in `ACTIONS`. Changes are commands, as all changes are; a
plan that moves replicas runs on the node that was asked, one at a time, and tells how far it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from chronik.cluster.membership import replicas_on
from chronik.cluster.move_throttle import held_to
from chronik.cluster.moves import MOVES_AT_ONCE, MovesStalled, Progress, carry_out
from chronik.cluster.rebalance import Plan, plan_drain, plan_rebalance
from chronik.metadata.commands import AddNode, RemoveNode, UpdateBrokerStatus
from chronik.metadata.model import NO_LEADER, BrokerInfo, BrokerStatus, NodeState
from chronik.metadata.store import as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from chronik.metadata.store import MetadataStore
    from chronik.raft.driver import RaftDriver

log = structlog.get_logger()

Arguments = dict[str, Any]
MOVES_LISTED_MAX = 1000
"""How many moves of a plan an answer lists; it always counts all of them."""


MEMBERS_LOOK_S = 0.2
MOVES_AT_ONCE_MAX = 1000


class Administration:
    """One per node. Lives on the event loop."""

    def __init__(self, node_id: int, store: MetadataStore, raft: RaftDriver) -> None:
        self.node_id = node_id
        self.store = store
        self.raft = raft
        self._plan: asyncio.Task[None] | None = None
        self._plan_name = ""
        self._progress = Progress(0, 0, 0)
        self._plan_failure: str | None = None

    async def run(self, action: str, arguments: Arguments, timeout_s: float) -> Any:
        """The result of an action, or a KafkaError that says what to do."""
        handle = ACTIONS.get(action)
        if handle is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no action '{action}'; upgrade this node to use it.")
        try:
            return await handle(self, arguments, timeout_s)
        except Exception as error:
            raise as_kafka_error(error) from error

    # --- looking -------------------------------------------------------------------------------------------------

    async def status(self, arguments: Arguments, timeout_s: float) -> Any:
        """This node's own view; the command line asks every node and compares."""
        return self.view()

    def view(self) -> dict[str, Any]:
        """The cluster as this node knows it."""
        image, raft = self.store.image, self.raft.status()
        under_replicated = leaderless = partitions = 0
        for _, _, partition in image.each_partition():
            partitions += 1
            under_replicated += len(partition.isr) < len(partition.target)
            leaderless += partition.leader == NO_LEADER
        return {
            "node_id": self.node_id,
            "cluster_id": image.cluster_id,
            "controller": raft.leader_id or None,
            "role": str(raft.role),
            "voter": raft.is_voter,
            "term": raft.term,
            "commit": raft.commit,
            "applied": raft.applied,
            "lag": {str(peer): view.lag for peer, view in raft.peers.items() if view.lag is not None},
            "voters": sorted(raft.configuration.voters),
            "observers": sorted(raft.configuration.observers),
            "voters_reachable": raft.voters_reachable,
            "feature_level": image.feature_level,
            "brokers": [_broker(broker) for _, broker in sorted(image.brokers.items())],
            "topics": len(image.topics),
            "partitions": partitions,
            "under_replicated": under_replicated,
            "leaderless": leaderless,
        }

    # --- members -------------------------------------------------------------------------------------------------

    async def add_node(self, arguments: Arguments, timeout_s: float) -> Any:
        """Makes a node that has joined as an observer a voter, or one again that came back with an empty folder."""
        await self.store.read_barrier(timeout_s)
        if not await self._eventually(lambda: self._registered_with_its_folder(self._broker(arguments)), timeout_s):
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Node {arguments['node_id']} runs with another data folder than it is registered with; wait until it "
                "is online (see `chronik cluster status`), then add it again.",
            )
        broker = self._broker(arguments)
        command = AddNode(broker.node_id, broker.directory_id, broker.peer_host, broker.peer_port)
        (await self.store.propose(command, timeout_s)).raise_for_error()
        done = await self._eventually(lambda: self._is_added(broker), timeout_s)
        return {"node_id": broker.node_id, "voter": done}

    async def remove_node(self, arguments: Arguments, timeout_s: float) -> Any:
        """Takes a node out of the cluster for good. One that still holds replicas is refused, unless forced."""
        node_id = int(arguments["node_id"])
        # Another node may know of replicas that came or went: what this one knows must not decide.
        await self.store.read_barrier(timeout_s)
        held = replicas_on(self.store.image, node_id)
        if not held and node_id not in self._members() and node_id not in self.store.image.nodes:
            known = ", ".join(map(str, sorted(self._members())))
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"Node {node_id} is not a member; the members are {known}."
            )
        if held and not arguments.get("force"):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Node {node_id} still holds {held} replicas; move them with `chronik cluster drain {node_id}` first, "
                "or give them up with --force.",
            )
        self._require_others(node_id)
        (await self.store.propose(RemoveNode(node_id), timeout_s)).raise_for_error()
        gone = await self._eventually(lambda: node_id not in self._members(), timeout_s)
        return {"node_id": node_id, "removed": gone}

    async def _eventually(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """The members change in the Raft group, which a node that is being removed may be the last to hear of by the
        metadata: so the group is looked at as well, and not only when the metadata changes."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return False
            await self.store.wait_until(lambda image: condition(), min(left_s, MEMBERS_LOOK_S))
        return True

    def _require_others(self, node_id: int) -> None:
        """Were those that are left no quorum, the removal could never be completed, nor anything else."""
        raft = self.raft.status()
        if node_id in raft.configuration.voters and not raft.has_quorum_without(node_id):
            rest = ", ".join(str(voter) for voter in sorted(raft.configuration.voters) if voter != node_id)
            why = f"the voters that are left ({rest}) would be no quorum" if rest else "it is the only voter"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Node {node_id} cannot be removed now: {why}; add or start another node first.",
            )

    def _registered_with_its_folder(self, broker: BrokerInfo) -> bool:
        """Whether a voter that came back with another folder has registered since. Until then its registration names
        the folder that is gone, and to add that would be to say of a node without a vote that it has one."""
        raft = self.raft.status()
        peer = raft.peers.get(broker.node_id)
        if peer is None or peer.same_folder is not False or not peer.voter:
            return True
        return broker.directory_id != raft.configuration.voters[broker.node_id].directory_id

    def _is_added(self, broker: BrokerInfo) -> bool:
        """Whether it votes with the folder it has now, as the controller has confirmed."""
        node = self.store.image.nodes.get(broker.node_id)
        return node is not None and node.state == NodeState.MEMBER and node.directory_id == broker.directory_id

    def _members(self) -> set[int]:
        configuration = self.raft.status().configuration
        return {*configuration.voters, *configuration.observers, *self.store.image.brokers}

    def _broker(self, arguments: Arguments) -> BrokerInfo:
        node_id = int(arguments["node_id"])
        broker = self.store.image.brokers.get(node_id)
        if broker is None:
            known = ", ".join(map(str, sorted(self.store.image.brokers))) or "none"
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"Node {node_id} is not registered (registered: {known}); start it with --join first.",
            )
        return broker

    # --- moving --------------------------------------------------------------------------------------------------

    async def drain(self, arguments: Arguments, timeout_s: float) -> Any:
        """Puts a node into maintenance, so that nothing new is placed on it, and moves its replicas away. A node that
        is dead or was removed by force has nothing to copy from, but its replicas can be made anew elsewhere."""
        node_id = int(arguments["node_id"])
        pace = Pace.of(arguments)
        await self.store.read_barrier(timeout_s)
        gone = node_id not in self.store.image.brokers and replicas_on(self.store.image, node_id)
        broker = None if gone else self._broker(arguments)
        execute = bool(arguments.get("execute"))
        if execute and broker is not None:
            # Before the plan is made: what is placed on the node after that would not be in it.
            self._require_no_plan()
            status = BrokerStatus.MAINTENANCE if broker.alive else broker.status
            command = UpdateBrokerStatus(node_id, status, maintenance=True, reason="it is being drained")
            (await self.store.propose(command, timeout_s)).raise_for_error()
        plan = await self._planned(lambda image: plan_drain(image, node_id))
        if execute:
            self._start(f"draining node {node_id}", plan, pace)
        return _plan(plan)

    async def undrain(self, arguments: Arguments, timeout_s: float) -> Any:
        """Takes a node out of maintenance: it may be given replicas and leads again. What was moved stays moved."""
        await self.store.read_barrier(timeout_s)
        broker = self._broker(arguments)
        self._require_no_plan()
        status = BrokerStatus.ONLINE if broker.alive else broker.status
        command = UpdateBrokerStatus(broker.node_id, status, maintenance=False, reason="it is no longer drained")
        (await self.store.propose(command, timeout_s)).raise_for_error()
        return {"node_id": broker.node_id, "status": status.name.lower()}

    async def rebalance(self, arguments: Arguments, timeout_s: float) -> Any:
        """Spreads replicas and leaders evenly over the nodes that are online."""
        pace = Pace.of(arguments)
        await self.store.read_barrier(timeout_s)
        plan = await self._planned(plan_rebalance)
        if arguments.get("execute"):
            self._start("rebalancing", plan, pace)
        return _plan(plan)

    async def progress(self, arguments: Arguments, timeout_s: float) -> Any:
        """How far the plan that was started on this node is."""
        return {
            "plan": self._plan_name,
            "running": self._plan is not None and not self._plan.done(),
            "done": self._progress.done,
            "failed": self._progress.failed,
            "total": self._progress.total,
            "failure": self._plan_failure,
        }

    async def _planned(self, make: Callable[[Any], Plan]) -> Plan:
        return await asyncio.get_running_loop().run_in_executor(None, make, self.store.image.detached())

    def _require_no_plan(self) -> None:
        if self._plan is not None and not self._plan.done():
            raise KafkaError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS, f"This node is {self._plan_name} already; wait until that is done."
            )

    def _start(self, name: str, plan: Plan, pace: Pace) -> None:
        self._require_no_plan()
        self._plan_name, self._plan_failure = name, None
        self._progress = Progress(0, 0, len(plan.moves))
        self._plan = asyncio.get_running_loop().create_task(self._carry_out(plan, pace), name=name)

    async def _carry_out(self, plan: Plan, pace: Pace) -> None:
        def note(progress: Progress) -> None:
            self._progress = progress

        try:
            async with held_to(self.store, plan.moves, pace.bytes_per_s):
                self._progress = await carry_out(self.store, plan.moves, at_once=pace.at_once, progress=note)
            log.info("a plan was carried out", plan=self._plan_name, moved=self._progress.done)
        except MovesStalled as error:
            self._plan_failure = str(error)
        except Exception as error:
            self._plan_failure = as_kafka_error(error).message
            log.warning("a plan was given up", plan=self._plan_name, reason=self._plan_failure)

    def stop(self) -> None:
        """What was begun goes on by itself; the rest of a plan is made again by whoever asks."""
        if self._plan is not None:
            self._plan.cancel()


class Pace(NamedTuple):
    """How fast a plan may go: partitions at the same time, and bytes per second from every node (None: no limit)."""

    at_once: int
    bytes_per_s: int | None

    @classmethod
    def of(cls, arguments: Arguments) -> Pace:
        at_once = arguments.get("at_once")
        if at_once is None:
            at_once = MOVES_AT_ONCE
        elif not isinstance(at_once, int) or not 1 <= at_once <= MOVES_AT_ONCE_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"From 1 to {MOVES_AT_ONCE_MAX} partitions can move at once, not {at_once}."
            )
        rate = arguments.get("throttle")
        if rate is not None and (not isinstance(rate, int) or rate < 1):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"A throttle is at least 1 byte per second, not {rate}.")
        return cls(at_once, rate)


def _broker(broker: BrokerInfo) -> dict[str, Any]:
    return {
        "node_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
        "status": broker.status.name.lower(),
        "maintenance": broker.maintenance,
        "rack": broker.rack,
        "incarnation": broker.incarnation.hex(),
        "http": broker.http,
        "software": broker.software,
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "moves": len(plan.moves),
        "copies": sum(move.copies for move in plan.moves),
        "listed": [
            {"topic": move.topic, "partition": move.partition, "before": move.before, "after": move.after}
            for move in plan.moves[:MOVES_LISTED_MAX]
        ],
        "stuck": [
            {"topic": topic, "partition": partition, "reason": reason} for topic, partition, reason in plan.stuck
        ],
    }


ACTIONS: dict[str, Callable[[Administration, Arguments, float], Awaitable[Any]]] = {
    "status": Administration.status,
    "add-node": Administration.add_node,
    "remove-node": Administration.remove_node,
    "drain": Administration.drain,
    "undrain": Administration.undrain,
    "rebalance": Administration.rebalance,
    "progress": Administration.progress,
}
