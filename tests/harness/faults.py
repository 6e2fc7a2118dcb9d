"""What is done to a cluster while a workload runs. Each fault is over, and the cluster whole again, when it returns."""

from __future__ import annotations

import threading

from harness.cluster_view import ask, wait_until_agreed
from harness.node_process import NodeProcess
from harness.waiting import eventually
from harness.workload import Workload

PAUSE_S = 4.0
WHOLE_DEADLINE_S = 60.0


class Faults:
    """The faults by name, over one cluster."""

    def __init__(self, nodes: list[NodeProcess], workload: Workload) -> None:
        self.nodes = nodes
        self.workload = workload

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

    def kill_all(self) -> float:
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.start(wait=False)
        gap = self.workload.wait_for_progress(deadline_s=WHOLE_DEADLINE_S)
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
