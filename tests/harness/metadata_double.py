"""Consensus without a network or a disk: every proposal is committed and applied at once, in one process.

`SharedLog` lets several stores, as on several nodes, follow one history; a store that is held back is a node that lags.
"""

from __future__ import annotations

from chronik.metadata import commands
from chronik.metadata.model import BrokerStatus, Result
from chronik.metadata.store import MetadataStore


class SharedLog:
    """The committed history, and the stores that follow it."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.failure: Exception | None = None
        self._stores: list[MetadataStore] = []
        self._held: set[int] = set()

    def join(self, store: MetadataStore) -> MetadataStore:
        """From now on the store applies what is committed, and proposes through this log."""
        self._stores.append(store)
        store.attach(LogConsensus(self, store))
        self._catch_up(store)
        return store

    def leave(self, store: MetadataStore) -> None:
        """The store's node is dead."""
        self._stores.remove(store)

    def hold(self, store: MetadataStore) -> None:
        self._held.add(id(store))

    def release(self, store: MetadataStore) -> None:
        self._held.discard(id(store))
        self._catch_up(store)

    def commit(self, data: bytes) -> dict[int, object]:
        self.entries.append((len(self.entries) + 1, data))
        results: dict[int, object] = {}
        for store in self._stores:
            applied = self._catch_up(store)
            if applied:
                results[id(store)] = applied[-1]
        return results

    def _catch_up(self, store: MetadataStore) -> list[object]:
        if id(store) in self._held:
            return []
        return store.apply(self.entries[store.image.applied_index :])


class LogConsensus:
    """What one store proposes to."""

    def __init__(self, log: SharedLog, store: MetadataStore) -> None:
        self._log = log
        self._store = store

    async def propose(self, data: bytes, timeout_s: float) -> object:
        if self._log.failure is not None:
            raise self._log.failure
        results = self._log.commit(data)
        if id(self._store) not in results:
            raise TimeoutError("this node did not apply the entry in time")
        return results[id(self._store)]

    async def read_barrier(self, timeout_s: float) -> object:
        if self._log.failure is not None:
            raise self._log.failure
        self._log.release(self._store)
        return None


def local_store() -> MetadataStore:
    """A store of its own, whose proposals are applied before `propose` returns."""
    return SharedLog().join(MetadataStore())


def incarnation(node_id: int, life: int = 1) -> bytes:
    return bytes([node_id, life]) * 8


def registration(node_id: int, life: int = 1, *, seen_epoch: int = -1, **fields: object) -> commands.RegisterBroker:
    """A broker as tests know it: host `host-N`, one data folder per node."""
    values: dict[str, object] = {
        "host": f"host-{node_id}",
        "port": 9092,
        "peer_host": f"host-{node_id}",
        "peer_port": 9192,
        "directory_id": bytes([node_id]) * 16,
        "host_name": f"machine-{node_id}",
        "features": {"chronik.version": (1, 1)},
        **fields,
    }
    return commands.RegisterBroker(node_id, incarnation(node_id, life), seen_epoch=seen_epoch, **values)  # type: ignore[arg-type]


async def bring_up(store: MetadataStore, *node_ids: int, **fields: object) -> None:
    """Registers brokers and puts them online."""
    for node_id in node_ids:
        registered = await store.propose(registration(node_id, **fields))
        assert isinstance(registered, Result) and registered.ok, registered
        online = await store.propose(commands.UpdateBrokerStatus(node_id, BrokerStatus.ONLINE))
        assert online.ok, online
