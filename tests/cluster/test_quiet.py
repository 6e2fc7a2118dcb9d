"""A cluster that nobody asks for anything does nothing; connections that come and go leave nothing behind."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import psutil
import pytest

from harness.node_process import NodeProcess
from harness.one_node import OneNode
from harness.operator import members
from harness.waiting import eventually

IDLE_CPU_SHARE_MAX = 0.06
"""Of one core. Heartbeats of consensus and of brokers are all that is left."""
GROWTH_BYTES_MAX = 12 * 1024 * 1024


@dataclass(frozen=True)
class Usage:
    term: int
    cpu_s: float
    memory: int
    files: int


def usage(node: NodeProcess) -> Usage:
    process = psutil.Process(node.pid)
    times = process.cpu_times()
    with OneNode(node):  # a connection of our own is open at every measurement
        files = psutil.Process(node.pid).num_fds()
    return Usage(members(node)["term"], times.user + times.system, process.memory_info().rss, files)


def stay_idle(nodes: list[NodeProcess], seconds: float) -> None:
    before = {node.node_id: usage(node) for node in nodes}
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until, "time passes", seconds + 5)
    for node in nodes:
        was, now = before[node.node_id], usage(node)
        assert now.term == was.term, f"node {node.node_id} saw an election while nothing happened"
        share = (now.cpu_s - was.cpu_s) / seconds
        assert share < IDLE_CPU_SHARE_MAX, f"node {node.node_id} uses {share:.1%} of a core to do nothing"
        assert now.memory - was.memory < GROWTH_BYTES_MAX, f"node {node.node_id} grows: {was} {now}"


def come_and_go(nodes: list[NodeProcess], times: int) -> None:
    """Half of the connections are used before they go, a third is cut off in the middle of a frame."""
    for node in nodes:
        before = usage(node)
        for number in range(times):
            if number % 2:
                with OneNode(node) as at:
                    at.partition("nothing")
                continue
            with socket.create_connection(("127.0.0.1", node.kafka_port)) as raw:
                if number % 3 == 0:
                    raw.sendall(b"\x00\x00\x01\x00half a frame")
        eventually(lambda n=node, b=before: usage(n).files <= b.files + 2, "all files are closed again")
        after = usage(node)
        assert after.memory - before.memory < GROWTH_BYTES_MAX, f"node {node.node_id} grows: {before} {after}"
        assert after.term == before.term


def test_connections_that_come_and_go_leave_nothing_behind(trio: list[NodeProcess]) -> None:
    come_and_go(trio, 30)  # what is loaded and kept at first use is no leak
    come_and_go(trio, 300)


def test_an_idle_cluster_elects_nobody_and_uses_next_to_nothing(trio: list[NodeProcess]) -> None:
    stay_idle(trio, 6.0)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_idle_cluster_stays_quiet_for_ten_minutes(trio: list[NodeProcess]) -> None:
    come_and_go(trio, 1000)
    stay_idle(trio, 600.0)
