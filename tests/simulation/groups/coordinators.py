"""Nodes that coordinate, one after the other: the real coordinator over a simulated log, with its own life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chronik.cluster.internal_topics import OFFSETS_TOPIC
from chronik.groups.coordinator import GroupCoordinator
from chronik.metadata import commands
from chronik.metadata.configs import ConfigView
from chronik.metadata.store import MetadataStore
from chronik.protocol.errors import ErrorCode, KafkaError
from harness.metadata_double import SharedLog, registration
from simulation.groups.log import Leader, ReplicatedLog


class Replicas:
    """The face of ReplicaManager that a coordinator uses."""

    def __init__(self) -> None:
        self.listener: Callable[[Any, bool], None] | None = None

    def on_leadership(self, listener: Callable[[Any, bool], None]) -> None:
        self.listener = listener

    def get(self, topic: str, index: int) -> None:
        return None


class Node:
    """One coordinator. It may go on for a while after it lost the lead: it has just not noticed."""

    def __init__(
        self,
        log: ReplicatedLog,
        store: MetadataStore,
        settings: Mapping[str, str],
        clock_ms: Callable[[], int],
        new_member_id: Callable[[str], str],
    ) -> None:
        self.replicas = Replicas()
        self.coordinator = GroupCoordinator(
            store,
            self.replicas,  # type: ignore[arg-type]
            ConfigView(store.image, 1, dict(settings)),
            clock_ms=clock_ms,
            new_member_id=new_member_id,
        )
        self.coordinator.start()
        self.leader: Leader = log.elect()
        assert self.replicas.listener is not None
        self.replicas.listener(self.leader, True)
        self.alive = True

    def resign(self) -> None:
        """The node notices that it no longer leads: it tells whoever waits."""
        assert self.replicas.listener is not None
        self.replicas.listener(self.leader, False)
        self.coordinator.timers.close()
        self.alive = False

    def crash(self) -> None:
        """kill -9: nothing is ever heard of it again."""
        self.alive = False
        self.coordinator.shards._shards.clear()
        self.coordinator.shards._loader.close()
        self.coordinator.timers.close()


def metadata(topics: Mapping[str, int]) -> MetadataStore:
    """One broker, the offsets topic with one partition, and topics to read."""
    store = SharedLog().join(MetadataStore())
    wanted = {OFFSETS_TOPIC: 1, **topics}
    proposals = [
        registration(1),
        *(
            commands.CreateTopic(name, bytes([number]) * 16, ((1,),) * count)
            for number, (name, count) in enumerate(wanted.items(), 1)
        ),
    ]
    for proposal in proposals:
        _run(store.propose(proposal))
    return store


def _run(coroutine: Any) -> None:
    """The metadata double answers at once."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        assert stop.value.ok, stop.value
        return
    raise AssertionError("the metadata double waited")


def ask(node: Node, call: Callable[[GroupCoordinator], None]) -> ErrorCode | None:
    """Calls the coordinator as a handler does; the error for the request as a whole."""
    try:
        call(node.coordinator)
    except KafkaError as error:
        return error.code
    return None
