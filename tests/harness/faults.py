"""What is done to a cluster while a workload runs. Each fault is over, and the cluster whole again, when it returns."""

from __future__ import annotations

import itertools
import threading
import time
from random import Random

from harness.cluster_view import ask, wait_until_agreed
from harness.fault_proxy import FaultProxy
from harness.node_process import NodeProcess
from harness.operator import administer_at, drain, reassign, wait_for_voters, wait_until_reassigned
from harness.waiting import eventually
from harness.workload import Workload

PAUSE_S = 4.0
SLOW_S = 0.05
CUT_S = 2.5  # longer than a lease, a session and an election
WHOLE_DEADLINE_S = 60.0


class Faults:
    """The faults by name, over one cluster."""

    def __init__(
        self,
        nodes: list[NodeProcess],
        workload: Workload,
        network: FaultProxy | None = None,
        random: Random | None = None,
    ) -> None:
        self.nodes = nodes
        self.workload = workload
        self._network = network
        self._random = random or Random(0)
        self._new_ids = itertools.count(len(nodes) + 1)

    @property
    def network(self) -> FaultProxy:
        assert self._network is not None, "this cluster was started without a network that can be cut"
        return self._network

    def _others(self, node: NodeProcess) -> list[int]:
        return [other.node_id for other in self.nodes if other is not node]

    def _by_id(self, node_id: int) -> NodeProcess:
        return next(node for node in self.nodes if node.node_id == node_id)

    def leader(self, partition: int = 0) -> NodeProcess:
        def found() -> int:
            view = ask(self._alive()[0])
            return next(p[2] for p in view.partitions if p[:2] == (self.workload.topic, partition) and p[2] > 0)

        return self._by_id(eventually(found, "the partition has a leader"))

    def controller(self) -> NodeProcess:
        return self._by_id(eventually(lambda: max(ask(self._alive()[0]).controller, 0), "there is a controller"))

    def follower(self, partition: int = 0) -> NodeProcess:
        leader = self.leader(partition)
        return next(node for node in self.nodes if node is not leader)

    def _alive(self) -> list[NodeProcess]:
        return [node for node in self.nodes if node.running]

    def wait_until_whole(self) -> None:
        """Every node agrees and every replica is in sync again."""
        wait_until_agreed(self.nodes, brokers=[node.node_id for node in self.nodes], deadline_s=WHOLE_DEADLINE_S)

        def in_sync() -> bool:
            view = ask(self.nodes[0])
            return all(leader > 0 and len(isr) == len(replicas) for _, _, leader, replicas, isr in view.partitions)

        eventually(in_sync, "every replica is in sync again", WHOLE_DEADLINE_S)

    def kill(self, node: NodeProcess) -> float:
        """kill -9, writes go on without it, then it comes back; returns how long nothing was acknowledged."""
        node.kill()
        gap = self.workload.wait_for_progress(deadline_s=WHOLE_DEADLINE_S)
        node.start()
        self.wait_until_whole()
        return gap

    def kill_leader(self) -> float:
        return self.kill(self.leader())

    def kill_follower(self) -> float:
        return self.kill(self.follower())

    def kill_controller(self) -> float:
        return self.kill(self.controller())

    def pause_leader(self) -> float:
        """SIGSTOP for longer than a session, then SIGCONT: it must not acknowledge anything as the leader it was."""
        node = self.leader()
        node.pause()
        timer = threading.Timer(PAUSE_S, node.resume)
        timer.start()
        gap = self.workload.wait_for_progress(deadline_s=WHOLE_DEADLINE_S)
        timer.join()
        self.wait_until_whole()
        return gap

    def isolate_leader(self) -> float:
        """Cut off from both others, in both directions; clients still reach it."""
        node = self.leader()
        self.network.isolate(node.node_id, self._others(node))
        return self._heal_after_progress()

    def mute_leader(self) -> float:
        """Nobody hears it, and it hears everybody."""
        node = self.leader()
        self.network.mute(node.node_id, self._others(node))
        return self._heal_after_progress()

    def deafen_leader(self) -> float:
        """It hears nobody, and everybody hears it."""
        node = self.leader()
        self.network.deafen(node.node_id, self._others(node))
        return self._heal_after_progress()

    def isolate_controller(self) -> float:
        node = self.controller()
        self.network.isolate(node.node_id, self._others(node))
        return self._heal_after_progress()

    def cut_leader_from_a_follower(self) -> float:
        """Both still reach the third node: nobody is dead, but one pair does not talk."""
        leader = self.leader()
        self.network.cut(leader.node_id, self._others(leader)[0])
        return self._heal_after_progress()

    def slow_network(self) -> float:
        """Every message takes longer, which is no reason to do anything."""
        for node in self.nodes:
            for other in self._others(node):
                self.network.delay(node.node_id, other, SLOW_S)
        return self._heal_after_progress()

    def _heal_after_progress(self) -> float:
        """Holds the cut until it has been noticed by all and writes go on in spite of it; then heals it."""
        noticed = time.monotonic() + CUT_S
        try:
            eventually(lambda: time.monotonic() >= noticed, "the cut is noticed")
            gap = self._through_every_partition()
        finally:
            self.network.heal()
        self.wait_until_whole()
        return gap

    def _through_every_partition(self) -> float:
        """Waits until each partition has acknowledged something; how long that took."""
        started = time.monotonic()
        before = self.workload.counts()

        def all_moved() -> bool:
            now = self.workload.counts()
            return all(now[p] > before[p] for p in range(self.workload.partitions))

        eventually(all_moved, "every partition acknowledges writes", WHOLE_DEADLINE_S)
        return time.monotonic() - started

    def kill_all(self) -> float:
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.start(wait=False)
        gap = self.workload.wait_for_progress(deadline_s=WHOLE_DEADLINE_S)
        self.wait_until_whole()
        return gap

    def kill_two(self) -> float:
        """No majority is left for a moment."""
        pair = self._random.sample(self.nodes, 2)
        for node in pair:
            node.kill()
        for node in pair:
            node.start(wait=False)
        gap = self._through_every_partition()
        self.wait_until_whole()
        return gap

    def wipe_node(self) -> float:
        """A node loses its disk and is taken back as the operator's page says."""
        node = self._random.choice(self.nodes)
        node.kill()
        node.wipe()
        node.start()
        gap = self._through_every_partition()
        keeper = next(other for other in self.nodes if other is not node)
        administer_at(keeper, "add-node", {"node_id": node.node_id})
        self.wait_until_whole()
        return gap

    def move_replicas(self) -> float:
        """Every partition gets another order of replicas, by way of a smaller number of them."""
        ids = [node.node_id for node in self.nodes]
        for size in (2, 3):
            targets = {p: self._random.sample(ids, size) for p in range(self.workload.partitions)}
            reassign(self._random.choice(self.nodes), self.workload.topic, targets)
            wait_until_reassigned(self.nodes[0])
        gap = self._through_every_partition()
        self.wait_until_whole()
        return gap

    def add_and_drain_node(self) -> float:
        """A fourth node joins, gets replicas, is drained and removed."""
        node_id = next(self._new_ids)
        seed = self._random.choice(self.nodes)
        node = NodeProcess(seed.directory, node_id=node_id, join=seed.peer)
        if self._network is not None:
            node.advertise_peer(f"127.0.0.1:{self._network.front(node_id, node.peer_port)}")
        try:
            node.start()
            wait_for_voters([seed], sorted([*(each.node_id for each in self.nodes), node_id]), WHOLE_DEADLINE_S)
            reassign(seed, self.workload.topic, {0: [node_id, *self._random.sample(self._others(seed), 2)]})
            wait_until_reassigned(seed)
            gap = self._through_every_partition()
            drain(seed, node_id)
            administer_at(seed, "remove-node", {"node_id": node_id})
        finally:
            node.close()
        self.wait_until_whole()
        return gap

    def rolling_restart(self) -> float:
        longest = 0.0
        for node in self.nodes:
            assert node.stop() == 0
            longest = max(longest, self.workload.wait_for_progress(deadline_s=WHOLE_DEADLINE_S))
            node.start()
            self.wait_until_whole()
        return longest


SHORT = ("kill_leader", "kill_follower", "kill_controller", "pause_leader", "kill_all", "rolling_restart")
CUTS = ("isolate_leader", "mute_leader", "cut_leader_from_a_follower")
"""Need a network that can be cut."""
LONG = (
    *SHORT,
    *CUTS,
    "deafen_leader",
    "isolate_controller",
    "slow_network",
    "kill_two",
    "wipe_node",
    "move_replicas",
    "add_and_drain_node",
)
"""Everything, for a cluster with a network that can be cut."""
