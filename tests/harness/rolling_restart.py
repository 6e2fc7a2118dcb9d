"""Stopping and starting the nodes of a cluster, one after the other, as an operator does for an upgrade."""

from __future__ import annotations

from collections.abc import Iterator

from harness.cluster_view import ask, wait_until_agreed
from harness.node_process import NodeProcess
from harness.waiting import eventually

IN_SYNC_S = 30.0


def rolling_restart(nodes: list[NodeProcess]) -> Iterator[NodeProcess]:
    """Yields each node once it is back and every replica of the cluster is in sync again."""
    ids = [node.node_id for node in nodes]
    for node in nodes:
        assert node.stop() == 0
        node.start()
        wait_until_agreed(nodes, brokers=ids)
        eventually(
            lambda: all(len(isr) == len(replicas) for *_, replicas, isr in ask(nodes[0]).partitions),
            "all replicas are in sync",
            IN_SYNC_S,
        )
        yield node
