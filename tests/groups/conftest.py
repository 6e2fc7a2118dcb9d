"""Nodes whose groups rebalance quickly, and members that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from harness.clients.group_member import HEARTBEAT_MS, SESSION_MS, GroupMember
from harness.node_process import NodeProcess, three_nodes

QUICK = {
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "offsets.topic.num.partitions": "10",
}

StartMember = Callable[..., GroupMember]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("node"), settings=QUICK).start()
    yield running
    running.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Three nodes, ready."""
    nodes = three_nodes(tmp_path, QUICK)
    for node in nodes:
        node.start(wait=False)
    for node in nodes:
        node.wait_ready()
    yield nodes
    for node in nodes:
        node.close()


@contextmanager
def members_of_a_test(directory: Path) -> Iterator[StartMember]:
    """Starts members; whoever is left at the end is killed."""
    members: list[GroupMember] = []

    def start(library: str, bootstrap: str, group: str, topic: str, instance: str | None = None) -> GroupMember:
        member = GroupMember(library, bootstrap, group, topic, directory / "members.log", instance)
        members.append(member)
        return member

    try:
        yield start
    finally:
        for member in members:
            member.close()


@pytest.fixture
def start_member(tmp_path: Path) -> Iterator[StartMember]:
    with members_of_a_test(tmp_path) as start:
        yield start


@pytest.fixture
def name() -> str:
    return f"n-{uuid4().hex[:10]}"
