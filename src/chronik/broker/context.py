"""What a handler is given: the services of the node, and what is known about the request it answers.

What lives here: `Services` (one per node), `RequestContext` (one per request) and `PendingResponse` (an answer that
comes later). What does not: any decision; handlers decide, the router carries.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from struct import Struct
from typing import TYPE_CHECKING, Any

import msgspec

from chronik.broker.fetch_sessions import FetchSessions
from chronik.broker.metrics import BrokerMetrics
from chronik.broker.produce_answers import ProduceAnswers
from chronik.broker.produce_waits import ProduceWaits
from chronik.broker.producer_ids import ProducerIds
from chronik.broker.quorum import Quorum
from chronik.broker.topic_descriptions import TopicDescriptions
from chronik.cluster.controller_client import ControllerClient
from chronik.cluster.placement import Cursor
from chronik.metadata.model import NO_LEADER
from chronik.protocol.wire import Buffer, Message

if TYPE_CHECKING:
    from chronik.broker.connection import Connection
    from chronik.config import NodeConfig
    from chronik.metadata.configs import ConfigView
    from chronik.metadata.store import MetadataStore
    from chronik.replication.manager import ReplicaManager


_CORRELATION_ID = Struct(">i")
_CORRELATION_ID_POSITION = 4


class Services:
    """The parts of a node that handlers use. One object per node, filled in by whoever assembles the node.

    `coordinators` are looked up by name: "groups", "transactions"; and, made here of `raft` and `transport`,
    "controller" and "quorum". An API that needs one that is absent is neither served nor advertised. `controller_id`
    tells who leads the Raft group, -1 when nobody is known to. `executor` runs what is too slow for the loop:
    re-encoding and down-conversion.
    """

    def __init__(
        self,
        *,
        config: NodeConfig,
        store: MetadataStore,
        replicas: ReplicaManager,
        configs: ConfigView,
        controller_id: Callable[[], int] | None = None,
        logs: Any = None,
        raft: Any = None,
        transport: Any = None,
        executor: Executor | None = None,
        coordinators: dict[str, Any] | None = None,
        metrics: BrokerMetrics | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.replicas = replicas
        self.configs = configs
        self.controller_id: Callable[[], int] = controller_id if controller_id is not None else _nobody
        self.logs = logs
        self.raft = raft
        self.transport = transport
        self.executor = executor
        self.coordinators: dict[str, Any] = coordinators if coordinators is not None else {}
        if raft is not None and transport is not None:
            self.coordinators.setdefault("controller", ControllerClient(raft, transport))
            self.coordinators.setdefault("quorum", Quorum(raft, transport))
        self.metrics = metrics or BrokerMetrics()
        self.fetch_sessions = FetchSessions(configs.broker_int("max.incremental.fetch.session.cache.slots"))
        self.fetch_max_bytes = configs.broker_int("fetch.max.bytes")
        self.fetch_budget: Callable[[], int] = lambda: self.fetch_max_bytes  # the listener's account, once there is one
        self.topic_descriptions = TopicDescriptions(store.image)
        self.encoded_metadata: dict[tuple[int, bool, bool], tuple[tuple[int, int], EncodedResponse]] = {}
        self.produce_answers = ProduceAnswers()
        self.produce_waits = ProduceWaits()
        self.placement_cursor = Cursor(random.randrange(1 << 16))
        self.producer_ids = ProducerIds(config.node_id, store)
        self.apis: Sequence[tuple[int, int, int]] = ()  # (key, lowest, highest version) of what the router serves


def _nobody() -> int:
    return NO_LEADER


class PendingResponse:
    """The answer of a handler whose work has taken effect, or that waits without holding up anything else.

    A handler returns it and later calls `finish` once, on the loop. With `exclusive` the connection starts no later
    request before that. `on_abandoned` is called when the client is gone before.
    """

    __slots__ = ("_complete", "_response", "exclusive", "finished", "on_abandoned")

    def __init__(self, *, exclusive: bool = False) -> None:
        self.exclusive = exclusive
        self.finished = False
        self.on_abandoned: Callable[[], None] | None = None
        self._response: Message | list[Buffer] | None = None
        self._complete: Callable[[Message | list[Buffer] | None], None] | None = None

    def finish(self, response: Message | list[Buffer] | None) -> None:
        """Answer, with a message or a whole frame. None means that this request gets no response."""
        if self.finished:
            return
        self.finished = True
        self.on_abandoned = None
        self._response = response
        if self._complete is not None:
            self._complete(response)

    def attach(self, complete: Callable[[Message | list[Buffer] | None], None]) -> None:
        """Used by the router: where the answer goes."""
        self._complete = complete
        if self.finished:
            complete(self._response)


class EncodedResponse:
    """A response that was encoded before and is sent again, with the correlation id of this request."""

    __slots__ = ("_first", "_rest")

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        """`buffers` are a whole frame: length, correlation id, and what follows."""
        self._first = bytes(buffers[0])
        self._rest = list(buffers[1:])

    def addressed(self, correlation_id: int) -> list[Buffer]:
        first = bytearray(self._first)
        _CORRELATION_ID.pack_into(first, _CORRELATION_ID_POSITION, correlation_id)
        return [first, *self._rest]


class RequestContext(msgspec.Struct, eq=False):
    """One request: which version of which API, from whom, and the services to answer it with."""

    services: Services
    connection: Connection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    started: float
    outcome: int = 0
    """The Kafka error code that the metrics count; handlers with errors per item set it."""

    @property
    def store(self) -> MetadataStore:
        return self.services.store

    @property
    def replicas(self) -> ReplicaManager:
        return self.services.replicas

    @property
    def config(self) -> NodeConfig:
        return self.services.config

    @property
    def logs(self) -> Any:
        return self.services.logs

    @property
    def coordinators(self) -> dict[str, Any]:
        return self.services.coordinators

    @property
    def client_host(self) -> str:
        """The address of the client, as group descriptions show it."""
        return self.connection.peer_host
